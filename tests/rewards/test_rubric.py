from __future__ import annotations

import math

import pytest

from rewards.rubric import FIVE, PLAN, REPORT, SECTION, VERDICT, Criterion, Rubric, Scale, checklist_rubric
from rlcore.errors import ConfigError


def test_the_shipped_rubrics_have_pinned_ids_in_both_languages():
    assert [PLAN.ids, SECTION.ids, REPORT.ids] == [
        ["guidance", "hierarchy", "coherence"],
        ["relevance", "coverage", "depth", "novelty"],
        ["comprehensiveness", "insight", "instruction_following", "readability"],
    ]
    for rubric in (PLAN, SECTION, REPORT):
        for criterion in rubric.criteria:
            assert set(criterion.text) == {"en", "zh"} and criterion.said_in("fr") == criterion.text["en"]
            assert len(criterion.names) == 2 and all(criterion.names)


def test_the_weighted_mean_by_hand():
    rubric = Rubric("r", (Criterion("a", {"en": "A: good?"}, 1), Criterion("b", {"en": "B: good?"}, 3)), FIVE)
    assert rubric.mean({"a": 1, "b": 5}) == 4 and rubric.share({"a": 1, "b": 5}) == 0.75
    assert rubric.share({"a": 1, "b": 1}) == 0 and rubric.share({"a": 5, "b": 5}) == 1
    assert rubric.weighted({"a": 2}).mean({"a": 2, "b": 5}) == 2


@pytest.mark.parametrize(
    ("value", "in_five", "in_verdict"),
    [
        (1, True, True), (0.5, False, True), (3.7, True, False), (0.7, False, False), (5, True, False), (6, False, False),
        (True, False, False), ("1", False, False), (None, False, False), (math.nan, False, False), (math.inf, False, False),
        (10**400, False, False), (-(10**400), False, False), ([1], False, False),
    ],
)  # fmt: skip
def test_what_is_on_a_scale(value, in_five, in_verdict):
    assert (value in FIVE, value in VERDICT) == (in_five, in_verdict)


def test_schemas():
    assert FIVE.json_schema() == {"type": "number", "minimum": 1, "maximum": 5}
    assert VERDICT.json_schema() == {"enum": [0, 0.5, 1]}


@pytest.mark.parametrize(
    ("low", "high", "step"), [(1, 1, None), (2, 1, None), (math.nan, 1, None), (0, math.inf, None), (0, 1, 0.3), (0, 1, 0)]
)
def test_scales_that_are_none(low, high, step):
    with pytest.raises(ConfigError, match="scale"):
        Scale(low, high, step)


@pytest.mark.parametrize(
    ("criteria", "message"),
    [
        ((), "no criterion"),
        ((Criterion("Depth!", {"en": "Depth: deep?"}),), "'Depth!'"),
        ((Criterion("a", {"en": "A: good?"}), Criterion("a", {"en": "B: good?"})), "'a' is there twice"),
        ((Criterion("a", {"en": "A: good?"}), Criterion("b", {"en": "A: good?"})), "another criterion's"),
        ((Criterion("a", {}),), "no text"),
        ((Criterion("a", {"en": " x "}),), "text.en must say"),
        ((Criterion("a", {"en": "A: good?"}, math.nan),), "weight"),
        ((Criterion("a", {"en": "A: good?"}, -1),), "weight"),
        ((Criterion("a", {"en": "A: good?"}, True),), "weight"),
        ((Criterion("a", {"en": "A: good?"}, 0),), "at least one weight"),
    ],
)
def test_the_lint_names_what_is_wrong(criteria, message):
    with pytest.raises(ConfigError, match=message):
        Rubric("r", criteria, FIVE)


def test_a_checklist_is_a_rubric_of_its_items():
    assert checklist_rubric(["Lima", "1,285,216"]).ids == ["item_1", "item_2"]
    with pytest.raises(ConfigError, match="no criterion"):
        checklist_rubric([])
