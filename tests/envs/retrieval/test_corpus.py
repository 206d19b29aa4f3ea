from __future__ import annotations

import hashlib
import json

import pytest

from envs.retrieval.corpus import Document, corpus_sha256, read_corpus, write_corpus
from rlcore.errors import ConfigError

LIMA = {"id": "city-PE-1", "title": "Lima", "contents": "Lima is the capital of Peru.", "url": "urn:x:1"}


def test_corpus_round_trip_and_hash(tmp_path):
    documents = [Document(**LIMA), Document("b", "São Paulo", "A city in Brazil.", "urn:x:2")]
    write_corpus(tmp_path / "corpus.jsonl", documents)
    assert read_corpus(tmp_path / "corpus.jsonl") == {"city-PE-1": documents[0], "b": documents[1]}
    raw = (tmp_path / "corpus.jsonl").read_bytes()
    assert corpus_sha256(tmp_path / "corpus.jsonl") == hashlib.sha256(raw).hexdigest()
    assert [path.name for path in tmp_path.iterdir()] == ["corpus.jsonl"]  # no temporary file is left


def test_passage_is_title_and_contents():
    assert Document(**LIMA).passage == "Lima. Lima is the capital of Peru."
    assert Document(**LIMA).score == 0.0


@pytest.mark.parametrize(
    ("bad_line", "complaint"),
    [
        ("{not json", "not JSON"),
        (b'{"id": "\xff"}', "not JSON ('utf-8' codec"),
        ("[" * 100_000, "not JSON"),
        ("", "not JSON"),
        ("[1]", "exactly the keys"),
        (json.dumps({**LIMA, "id": "new", "text": "x"}), "exactly the keys"),
        (json.dumps({"id": "new", "title": "t", "contents": "c"}), "exactly the keys"),
        (json.dumps({**LIMA, "id": "new", "contents": "  "}), "contents must be a non-blank string"),
        (json.dumps({**LIMA, "id": 7}), "id must be a non-blank string, got 7"),
        (json.dumps(LIMA), "'city-PE-1' was used by an earlier line"),
    ],
)
def test_a_bad_line_is_named(tmp_path, bad_line, complaint):
    path = tmp_path / "corpus.jsonl"
    bad = bad_line if isinstance(bad_line, bytes) else bad_line.encode()
    path.write_bytes(json.dumps(LIMA).encode() + b"\n" + bad + b"\n")
    with pytest.raises(ConfigError, match="corpus.jsonl, line 2") as error:
        read_corpus(path)
    assert complaint in str(error.value)


def test_a_missing_corpus_names_the_command_that_makes_it(tmp_path):
    with pytest.raises(ConfigError, match=f"python -m tools.build_world --out {tmp_path}"):
        read_corpus(tmp_path / "corpus.jsonl")
