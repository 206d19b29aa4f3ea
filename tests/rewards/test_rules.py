from __future__ import annotations

import pytest

from rewards.rules import format_score, length, plan_basics, write_basics


@pytest.mark.parametrize(
    ("valid", "has_thought", "score"), [(True, True, 1.0), (True, False, 0.5), (False, True, 0.0), (False, False, 0.0)]
)
def test_format(valid: bool, has_thought: bool, score: float) -> None:
    assert format_score(valid, has_thought) == score


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", 0),
        ("Lima is the capital of Peru.", 6),
        ("Lima\\cite{textid1} is, by 3,400 km , large \\cite{textid2, textid3}.", 6),  # Lima is, by 3,400 km large
        ("well-known", 1),
        ("利马是首都。", 5),
        ("秘鲁 has 利马", 5),
        ("서울은 수도다", 2),  # Korean is written with spaces
        ("# - * .", 0),
    ],
)
def test_length(text: str, words: int) -> None:
    assert length(text) == words


def nodes(count: int) -> list[dict[str, str]]:
    return [{"title": f"Part {'abcdefghi'[i]}", "plan": "What it is."} for i in range(count)]


@pytest.mark.parametrize(
    ("count", "language", "score"),
    [(1, "en", 0.5), (2, "en", 1.0), (7, "en", 1.0), (8, "en", 0.5), (3, "zh", 0.5), (9, "zh", 0.0), (0, "en", 0.5)],
)
def test_plan_basics(count: int, language: str, score: float) -> None:
    assert plan_basics(nodes(count), language, (2, 7)) == score


def test_sections_of_one_title_are_one_section() -> None:
    assert plan_basics(nodes(1) * 2, "en", (2, 7)) == 0.5
    assert plan_basics([*nodes(1), {"title": " PART  A", "plan": "Again."}], "en", (2, 7)) == 0.5
    assert plan_basics(nodes(4) * 2, "en", (2, 7)) == 0.5  # four, and too many all the same


@pytest.mark.parametrize(
    ("content", "language", "thirds"),
    [
        ("one two three", "en", 3),
        ("one two", "en", 2),  # too short
        ("one two three four five six", "en", 2),  # too long
        ("one two three \\cite{a} \\cite{b, c}", "en", 3),  # two commands, three keys
        ("one two three \\cite{a} \\cite{b} \\cite{c}", "en", 2),  # three commands
        ("one two three", "zh", 2),
        ("one \\cite{a} \\cite{b} \\cite{c}", "zh", 0),
    ],
)
def test_write_basics(content: str, language: str, thirds: int) -> None:
    assert write_basics(content, content, language, (3, 5), (0, 2)) == thirds / 3


def test_the_least_length_and_the_language_are_asked_of_what_is_kept() -> None:
    assert write_basics("one two three four", "one two", "en", (3, 5), (0, 2)) == 2 / 3
    assert write_basics("one two three four five six", "one two three", "en", (3, 5), (0, 2)) == 2 / 3  # the most of all of it
    assert write_basics("秘鲁的首都 one two three", "one two three", "en", (3, 9), (0, 2)) == 1
