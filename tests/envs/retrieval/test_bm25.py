from __future__ import annotations

import json
from math import log

import pytest

from envs.retrieval.bm25 import KeywordIndex, tokens
from envs.retrieval.corpus import Document
from rlcore.errors import ConfigError

# Passages of 2, 2 and 4 terms.
DOCUMENTS = [
    Document("a", "red", "blue", "urn:a"),
    Document("b", "green", "blue", "urn:b"),
    Document("c", "red", "red red 第", "urn:c"),
]


def test_terms_are_words_without_case_and_pairs_of_chinese_characters():
    assert tokens("The Löwe's No. 42") == ["the", "löwe", "s", "no", "42"]
    assert tokens("北京大学 and 水") == ["北京", "京大", "大学", "and", "水"]
    assert tokens("GPT模型2") == ["gpt", "模型", "2"]
    assert tokens(" ,. ") == []


def test_scores_are_those_of_the_formula(tmp_path):
    """Lucene's: idf = ln(1 + (N - n + 0.5) / (n + 0.5)), times tf / (tf + 1.5 (1 - 0.75 + 0.75 |d| / 8/3))."""
    KeywordIndex.build(DOCUMENTS, "hash").save(tmp_path)
    index = KeywordIndex.load(tmp_path, "hash")
    (found,) = index.search(["RED!"], 3)
    idf = log(1 + (3 - 2 + 0.5) / (2 + 0.5))
    by_hand = {"a": idf * 1 / (1 + 1.5 * (0.25 + 0.75 * 2 / (8 / 3))), "c": idf * 3 / (3 + 1.5 * (0.25 + 0.75 * 4 / (8 / 3)))}
    assert dict(found) == pytest.approx(by_hand, rel=1e-5)
    assert [id for id, _ in found] == ["c", "a"]


def test_documents_without_a_common_term_are_not_found_and_k_may_exceed_the_store(tmp_path):
    index = KeywordIndex.build(DOCUMENTS, "hash")
    assert [[id for id, _ in hits] for hits in index.search(["green", "violet", "", "第"], 50)] == [["b"], [], [], ["c"]]
    assert len(index.search(["red"], 1)[0]) == 1
    assert index.search([], 5) == []


def test_an_empty_store_finds_nothing(tmp_path):
    KeywordIndex.build(DOCUMENTS, "hash").save(tmp_path)  # what lay there before is gone
    KeywordIndex.build([], "other").save(tmp_path)
    assert KeywordIndex.load(tmp_path, "other").search(["red", "blue"], 5) == [[], []]


def test_an_index_of_another_corpus_and_a_torn_or_missing_one_are_refused(tmp_path):
    KeywordIndex.build(DOCUMENTS, "hash").save(tmp_path)
    with pytest.raises(ConfigError, match="corpus_sha256 'hash', but 'other' is wanted"):
        KeywordIndex.load(tmp_path, "other")
    (tmp_path / "ids.json").write_text(json.dumps(["a", "b"]))
    with pytest.raises(ConfigError, match="torn"):
        KeywordIndex.load(tmp_path, "hash")
    with pytest.raises(ConfigError, match="tools.build_index ... --bm25"):
        KeywordIndex.load(tmp_path / "nowhere", "hash")
