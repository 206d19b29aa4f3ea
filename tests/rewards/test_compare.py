"""RACE and pairwise comparison: golden values by hand, and judges that favour a place."""

from __future__ import annotations

import asyncio

import pytest

from rewards.compare import Dimensions, against_reference, agreed, gaps, majority, normalised
from rewards.rubric import REPORT
from rlcore.errors import ConfigError
from tests.rewards.scripted_judge import ScriptedJudge

TASK = Dimensions.of_task(
    {
        "insight": [{"criterion": "Causes", "explanation": "says why", "weight": 0.75}, {"criterion": "Outlook", "weight": 0.25}],
        "readability": [{"criterion": "Structure", "weight": 1}],
    },
    {"insight": 0.6, "readability": 0.4},
)
PLAIN = Dimensions.plain(REPORT)


def compare(say, dimensions=PLAIN, tolerance=0.1):
    judge = ScriptedJudge(say)
    return asyncio.run(against_reference(judge, "Why?", "TARGET", "REFERENCE", dimensions, "en", tolerance, "c")), judge


def by_text(target: float, reference: float):
    return lambda material, id: target if material[f"text {id[0]}"] == "TARGET" else reference


@pytest.mark.parametrize(("t", "r", "value"), [(6, 4, 0.6), (5, 5, 0.5), (0, 5, 0), (5, 0, 1), (0, 0, 0)])
def test_normalised(t, r, value):
    assert normalised(t, r) == value


@pytest.mark.parametrize(
    ("first", "second", "value"),
    [(0.6, 0.5, 0.55), (0.6, 0.6, 0.6), (0.7, 0.5, 0.5), (0.9, 0.1, 0.5), (0.9, 0.7, 0.8), (0.15, 0.3, 0.225)],
)
def test_two_orders_that_disagree_are_a_tie(first, second, value):
    assert agreed(first, second, 0.1) == pytest.approx(value)


@pytest.mark.parametrize(("signed", "share"), [([1, 2, -5], 1), ([-1, 0, 0], 0), ([1, -1, 0], 0.5), ([0, 0], 0.5), ([], 0.5)])
def test_majority(signed, share):
    assert majority(signed) == share


def test_race_by_hand():
    numbers = {"insight.1": (8, 4), "insight.2": (4, 8), "readability.1": (6, 6)}

    def say(material, id):
        side, criterion = id.split(".", 1)
        return numbers[criterion][material[f"text {side}"] != "TARGET"]

    (value, parts), judge = compare(say, TASK)
    # insight: T = 0.75 * 8 + 0.25 * 4 = 7, R = 0.75 * 4 + 0.25 * 8 = 5; T = 0.6 * 7 + 0.4 * 6 = 6.6, R = 0.6 * 5 + 0.4 * 6 = 5.4
    assert value == pytest.approx(6.6 / 12) and parts == {"insight": pytest.approx(7 / 12), "readability": 0.5}
    assert len(judge.calls) == 2 and "- insight.1: Causes: says why" in judge.calls[0]["messages"][-1]["content"]


def test_race_in_both_orders():
    assert compare(by_text(6, 4))[0] == (pytest.approx(0.6), dict.fromkeys(REPORT.ids, pytest.approx(0.6)))
    # A judge that only sees the place: 0.8 in one order, 0.2 in the other.
    assert compare(lambda material, id: 8 if id[0] == "a" else 2)[0][0] == 0.5
    # Fair but for a small preference of the first: 6.5 : 4 and 6 : 4.5.
    small = lambda material, id: by_text(6, 4)(material, id) + 0.5 * (id[0] == "a")  # noqa: E731
    assert compare(small)[0][0] == pytest.approx((6.5 / 10.5 + 6 / 10.5) / 2)
    # And one whose preference turns the verdict: 6.2 : 4.8 and 5.2 : 5.8, 0.09 apart.
    turned = lambda material, id: by_text(5.2, 4.8)(material, id) + (id[0] == "a")  # noqa: E731
    assert compare(turned, tolerance=0.01)[0][0] == 0.5
    assert compare(turned, tolerance=0.1)[0][0] == pytest.approx((6.2 / 11 + 5.2 / 11) / 2)


def test_gaps_are_signed_by_text_not_by_place():
    for say, expected in [
        (lambda material, id: 3 if material["text a"] == "TARGET" else -3, [3, 3, 3, 3]),
        (lambda material, id: 2, [2, 2, -2, -2]),  # always the first
    ]:
        judge = ScriptedJudge(say)
        found = asyncio.run(gaps(judge, "Why?", "TARGET", "OTHER", REPORT, "en", 2, "c"))
        assert found == dict.fromkeys(REPORT.ids, expected)
        assert sorted(call["attempt"] for call in judge.calls) == [0, 0, 2, 2]  # two trials are two questions to the cache


@pytest.mark.parametrize(
    ("criterions", "weights"),
    [
        (None, {}),
        ({"a": []}, {"a": 1}),
        ({"a": [{"criterion": "Causes", "weight": 1}]}, {"b": 1}),
        ({"a": [{"criterion": "Causes", "weight": 0}]}, {"a": 1}),
        ({"a": [{"criterion": "Causes", "weight": "1"}]}, {"a": 1}),
        ({"a": [{"criterion": "Causes", "weight": 1}]}, {"a": 0}),
        ({"a": [{"criterion": "Causes", "weight": 1}]}, {"a": float("nan")}),
        ({"a": [{"weight": 1}]}, {"a": 1}),
        ({"a": ["Causes"]}, {"a": 1}),
    ],
)
def test_bad_criteria_of_a_task(criterions, weights):
    with pytest.raises(ConfigError):
        Dimensions.of_task(criterions, weights)
