from __future__ import annotations

import pytest

from envs.retrieval.chunks import chunk
from rlcore.errors import ConfigError


def test_a_short_text_is_one_passage_and_no_text_none():
    assert chunk(" One  sentence.\n") == ["One sentence."]
    assert chunk(" \n\n ") == []


def test_passages_end_at_sentences_and_repeat_whole_words():
    text = "Alpha beta gamma. Delta epsilon zeta. Eta theta iota."  # sentences of 17, 19 and 15 characters
    assert chunk(text, size=40, overlap=0) == ["Alpha beta gamma. Delta epsilon zeta.", "Eta theta iota."]
    # the last 8 characters before the cut are "n zeta. ": the first whole word in them is "zeta."
    assert chunk(text, size=40, overlap=8) == ["Alpha beta gamma. Delta epsilon zeta.", "zeta. Eta theta iota."]


def test_a_stop_before_a_small_letter_ends_nothing():
    text = "Use e.g. this rule here. Then it stops"
    assert chunk(text, size=30, overlap=0) == ["Use e.g. this rule here.", "Then it stops"]
    assert chunk("Some text, i.e. a bc tokens", size=20, overlap=0) == ["Some text, i.e. a bc", "tokens"]  # between words


def test_a_paragraph_ends_a_passage_where_no_sentence_does():
    assert chunk("A heading of words\n\nanother line without stops", size=30, overlap=0) == [
        "A heading of words",
        "another line without stops",
    ]


def test_chinese_is_cut_at_its_own_stops_without_spaces():
    text = "第一句话在这里。他说：“你好。”然后是第三句话了"
    assert chunk(text, size=18, overlap=3) == ["第一句话在这里。他说：“你好。”", "好。”然后是第三句话了"]


def test_text_without_any_place_to_cut_is_cut_hard_and_nothing_is_lost():
    text = "".join(chr(ord("a") + i % 26) for i in range(100))
    passages = chunk(text, size=30, overlap=10)
    assert [len(passage) for passage in passages] == [30, 30, 30, 30, 20]
    assert passages[0] + "".join(passage[10:] for passage in passages[1:]) == text


def test_every_passage_is_within_the_size_and_every_word_is_in_one():
    words = [f"word{i}" + "." * (i % 7 == 0) for i in range(400)]
    passages = chunk(" ".join(words), size=64, overlap=20)
    assert max(map(len, passages)) <= 64
    assert sorted({word for passage in passages for word in passage.split()}) == sorted(words)
    for one, two in zip(passages, passages[1:], strict=False):
        assert two.split()[0] in one[-20:]


@pytest.mark.parametrize(("size", "overlap"), [(1, 0), (100, 50), (100, -1)])
def test_sizes_that_cannot_work(size, overlap):
    with pytest.raises(ConfigError, match=f"chunk size {size} must be at least 2, and overlap {overlap}"):
        chunk("text", size, overlap)
