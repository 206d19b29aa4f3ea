"""Citation, retrieval, decision and planning: golden tables worked out by hand."""

from __future__ import annotations

import pytest

from rewards.citation import citation_score
from rewards.decision import decision_score, position_score
from rewards.overlap import f1, precision, recall
from rewards.planning import coverage
from rewards.retrieval import f1_at, precision_at, recall_at


@pytest.mark.parametrize(
    ("found", "wanted", "p", "r", "f"),
    [
        ("ab", "ab", 1, 1, 1),
        ("abcd", "ab", 1 / 2, 1, 2 / 3),
        ("a", "ab", 1, 1 / 2, 2 / 3),
        ("abc", "bcd", 2 / 3, 2 / 3, 2 / 3),
        ("aab", "bc", 1 / 2, 1 / 2, 1 / 2),  # a counts once
        ("a", "b", 0, 0, 0),
        ("", "", 1, 1, 1),
        ("a", "", 0, 0, 0),
        ("", "a", 0, 0, 0),
    ],
)
def test_precision_recall_f1(found: str, wanted: str, p: float, r: float, f: float) -> None:
    assert precision(list(found), list(wanted)) == pytest.approx(p)
    assert recall(list(found), list(wanted)) == pytest.approx(r)
    assert f1(list(found), list(wanted)) == pytest.approx(f)


@pytest.mark.parametrize(
    ("cited", "reference", "invented", "score"),
    [
        (["t1", "t2"], ["t2", "t1"], [], 1.0),
        (["t1", "t2", "t3"], ["t1"], [], 0.5),  # P 1/3, R 1
        (["t1", "t9"], ["t1"], ["t9"], 0.0),
        ([], [], ["t9"], 0.0),
        ([], [], [], 1.0),
        (["t1"], [], [], 0.0),
        ([], ["t1"], [], 0.0),
    ],
)
def test_citation(cited: list[str], reference: list[str], invented: list[str], score: float) -> None:
    assert citation_score(cited, reference, invented) == pytest.approx(score)


@pytest.mark.parametrize(
    ("retrieved", "golden", "budget", "p", "r", "f"),
    [
        ("abcdef", "be", None, 1 / 3, 1, 1 / 2),
        ("abcdef", "be", 4, 1 / 4, 1 / 2, 1 / 3),  # e is the fifth
        ("abcdef", "be", 1, 0, 0, 0),
        ("ab", "abcd", 2, 1, 1 / 2, 2 / 3),  # more golden ones than the budget holds
        ("aab", "b", 2, 0, 0, 0),  # a repeat uses up budget
        ("", "a", 5, 0, 0, 0),
    ],
)
def test_retrieval(retrieved: str, golden: str, budget: int | None, p: float, r: float, f: float) -> None:
    assert precision_at(list(retrieved), list(golden), budget) == pytest.approx(p)
    assert recall_at(list(retrieved), list(golden), budget) == pytest.approx(r)
    assert f1_at(list(retrieved), list(golden), budget) == pytest.approx(f)


def test_retrieval_without_a_meaning_is_an_error() -> None:
    with pytest.raises(ValueError, match="golden"):
        recall_at(["a"], [])
    with pytest.raises(ValueError, match="budget must be at least 1, got 0"):
        precision_at(["a"], ["a"], 0)


@pytest.mark.parametrize(
    ("action", "reference", "score"),
    [
        ("extend-plan", "expand", 1),
        ("nop", "terminate", 1),
        ("nop", "expand", 0),
        ("extend-plan", "terminate", 0),
        ("write", "expand", 0),
    ],
)
def test_decision(action: str, reference: str, score: float) -> None:
    assert decision_score(action, reference) == score


@pytest.mark.parametrize(
    ("position", "reference", "score"),
    [
        ("section-2", "section-2", 1),
        ("section-2", "section-20", 0),
        ("section-2.1", "section-2", 0),
        (None, "section-2", 0),
        (None, None, 0),
    ],
)
def test_position(position: str | None, reference: str | None, score: float) -> None:
    assert position_score(position, reference) == score


@pytest.mark.parametrize(
    ("titles", "required", "score"),
    [
        (["Peru", "The cities of NORWAY"], ["Peru", "Norway"], 1.0),
        (["Peru"], ["Peru", "Norway", "Chad", "Oman"], 0.25),
        (["Nigeria today"], ["Niger", "geria"], 0.0),  # whole words only
        (["Guinea-Bissau"], ["Guinea"], 1.0),
        (["Peru and Chad"], ["Peru", "Chad"], 0.5),  # a title is worth one topic
        (["Peru, Chad, Oman and Mali", "History", "Outlook"], ["Peru", "Chad", "Oman", "Mali"], 0.25),
        (["Peru and Chad", "Peru"], ["Peru", "Chad"], 1.0),  # whichever way of counting is the best
        (["Peru and Chad", "Chad and Oman", "Oman"], ["Chad", "Peru", "Oman"], 1.0),
        (["Peru and Chad", " peru  and CHAD"], ["Peru", "Chad"], 0.5),
        (["Peru", "Peru again"], ["Peru", "Chad"], 0.5),
        (["Guinea-Bissau", "Guinea"], ["Guinea", "Guinea-Bissau"], 1.0),
        (["Straße und Bahn"], ["STRASSE"], 1.0),  # casefold
        (["Ｐｅｒｕ", "On its  coast"], ["peru", "its coast"], 1.0),  # full width, doubled space
        (["On C++", "A (language)"], ["C++", "(language)", "C.+"], 2 / 3),  # signs are text, not patterns
        (["秘鲁概况"], ["秘鲁", "挪威"], 0.5),
        (["São Tomé"], ["Sa"], 0.0),
        ([], ["Peru"], 0.0),
    ],
)
def test_coverage(titles: list[str], required: list[str], score: float) -> None:
    assert coverage(titles, required) == score


@pytest.mark.parametrize("required", [[], [" "]])
def test_coverage_of_nothing_is_an_error(required: list[str]) -> None:
    with pytest.raises(ValueError, match="required"):
        coverage(["Peru"], required)
