from __future__ import annotations

import copy
import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from rewards.warp import COMPONENTS, WarpAtomic
from rlcore.errors import ConfigError
from rlcore.targets import Target, build
from rlcore.types import Outcome, Query, RewardResult, Trajectory

CONF = Path(__file__).parents[2] / "conf" / "reward" / "warp_atomic.yaml"
ONE_TO_THREE = {
    "initialize": {"format": 1, "basic": 2, "coverage": 3},
    "search": {"format": 1, "recall": 3},
    "write": {"format": 1, "basic": 2, "citation": 3},
    "expand": {"format": 1, "decision": 2, "position": 3, "basic": 4},
    "terminate": {"format": 1, "decision": 3},
}
BASIC = {"sections": [2, 3], "subsections": [1, 3], "words": [3, 5], "citations": [0, 1]}
NODES = [{"title": "Peru", "plan": "The land."}, {"title": "Chad", "plan": "The lake."}]


def sample(action: str, reference: dict[str, Any]) -> dict[str, Any]:
    messages = [{"role": "user", "content": "Question: What of Peru? Lima is a city, and one a port."}]
    return {"id": "q1/0", "action": action, "language": "en", "messages": messages, "reference": reference}


def outcome(action: dict[str, Any] | None, **more: Any) -> dict[str, Any]:
    base = {"valid": action is not None, "has_thought": True, "action": action, "retrieved": [], "cited": [], "invented": []}
    return {**base, **more}


SAMPLES = {
    "initialize": sample("initialize", {"titles": ["Peru", "Chad"], "required": ["Peru", "Oman"]}),
    "search": sample("search", {"golden_doc_ids": ["d1", "d2"]}),
    "write": sample("write", {"citations": ["textid1"]}),
    "expand": sample("expand", {"decision": "expand", "position": "section-2"}),
    "terminate": sample("terminate", {"decision": "terminate", "position": None}),
}
INIT = {"name": "init-plan", "title": "Two lands", "sections": NODES}
SEARCH = {"name": "search", "keywords": ["peru"]}
WRITE = {"name": "write", "content": "Lima is large \\cite{textid1}"}
EXPAND = {"name": "extend-plan", "position": "section-2", "subsections": NODES}
NOP = {"name": "nop"}


def score(name: str, result: dict[str, Any], weights: dict[str, Any] = ONE_TO_THREE) -> RewardResult:
    return WarpAtomic(weights, BASIC)(Trajectory(Query("q1", copy.deepcopy(SAMPLES[name])), "g", 0, outcome=Outcome(result)))


@pytest.mark.parametrize(
    ("name", "result", "components", "value"),
    [
        ("initialize", outcome(INIT), {"format": 1, "basic": 1, "coverage": 0.5}, (1 + 2 + 1.5) / 6),
        ("initialize", outcome({**INIT, "sections": NODES[:1]}), {"format": 1, "basic": 0.5, "coverage": 0.5}, (1 + 1 + 1.5) / 6),
        ("search", outcome(SEARCH, retrieved=["d9", "d2"]), {"format": 1, "recall": 0.5, "precision": 0.5, "f1": 0.5}, 2.5 / 4),
        (
            "search",
            outcome(SEARCH, retrieved=["d2", "d1", "d9", "d8"], has_thought=False),
            {"format": 0.5, "recall": 1, "precision": 0.5, "f1": 2 / 3},
            3.5 / 4,
        ),
        ("search", outcome(SEARCH), {"format": 1, "recall": 0, "precision": 0, "f1": 0}, 1 / 4),
        ("write", outcome(WRITE, cited=["textid1"]), {"format": 1, "basic": 1, "citation": 1}, 1),
        ("write", outcome(WRITE, cited=["textid1", "textid7"]), {"format": 1, "basic": 1, "citation": 2 / 3}, 5 / 6),
        ("write", outcome(WRITE, cited=["textid1"], invented=["textid9"]), {"format": 1, "basic": 1, "citation": 0}, 3 / 6),
        ("write", outcome({"name": "write", "content": "Lima"}), {"format": 1, "basic": 2 / 3, "citation": 0}, (1 + 4 / 3) / 6),
        ("expand", outcome(EXPAND), {"format": 1, "decision": 1, "position": 1, "basic": 1}, 1),
        ("expand", outcome({**EXPAND, "subsections": NODES[:1]}), {"format": 1, "decision": 1, "position": 1, "basic": 1}, 1),
        (
            "expand",
            outcome({**EXPAND, "position": "section-20", "subsections": NODES * 2}),
            {"format": 1, "decision": 1, "position": 0, "basic": 0.5},
            (1 + 2 + 2) / 10,
        ),
        ("expand", outcome(NOP), {"format": 1, "decision": 0, "position": 0, "basic": 0}, 0.1),
        ("terminate", outcome(NOP), {"format": 1, "decision": 1}, 1),
        ("terminate", outcome(EXPAND), {"format": 1, "decision": 0}, 0.25),
    ],
)
def test_values_by_hand(name: str, result: dict[str, Any], components: dict[str, float], value: float) -> None:
    reward = score(name, result)
    assert reward.reason is None
    assert reward.components == pytest.approx(components)
    assert reward.value == pytest.approx(value)


@pytest.mark.parametrize("name", COMPONENTS)
def test_invalid_output_is_a_real_zero(name: str) -> None:
    reward = score(name, outcome(None, error="bad_json"))
    assert (reward.value, reward.components) == (0.0, dict.fromkeys(COMPONENTS[name], 0.0))


def test_a_left_out_component_weighs_nothing_but_is_reported() -> None:
    reward = score("search", outcome(SEARCH, retrieved=["d1"], has_thought=False), {**ONE_TO_THREE, "search": {"recall": 2}})
    assert (reward.value, reward.components) == (
        0.5,
        {"format": 0.5, "recall": 0.5, "precision": 1.0, "f1": pytest.approx(2 / 3)},
    )


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("search", {"reference": {}}, "reference.golden_doc_ids"),
        ("search", {"reference": {"golden_doc_ids": []}}, "reference.golden_doc_ids must be a list of at least one text"),
        ("search", {"reference": None}, "sample.reference must be a dict"),
        ("search", {"action": "ponder"}, "sample.action must be one of initialize"),
        ("initialize", {"reference": {"titles": []}}, "reference.required"),
        ("write", {"reference": {}}, "reference.citations"),
        ("write", {"reference": {"citations": [3]}}, "reference.citations"),
        ("expand", {"reference": {"decision": "expand", "position": None}}, "reference.position"),
        ("expand", {"reference": {"decision": "terminate", "position": "section-2"}}, "reference.decision is 'terminate'"),
        ("terminate", {"reference": {}}, "reference.decision"),
    ],
)
@pytest.mark.parametrize("valid", [True, False])
def test_a_bad_sample_is_unavailable_not_zero(name: str, change: dict[str, Any], words: str, valid: bool) -> None:
    actions = {"initialize": INIT, "search": SEARCH, "write": WRITE, "expand": EXPAND, "terminate": NOP}
    data = {**SAMPLES[name], **change}
    result = Outcome(outcome(actions[name] if valid else None))
    reward = WarpAtomic(ONE_TO_THREE, BASIC)(Trajectory(Query("q", data), "g", 0, outcome=result))
    assert not reward.available
    assert words in reward.reason


@pytest.mark.parametrize(("name", "result"), [("initialize", INIT), ("write", WRITE), ("expand", EXPAND)])
def test_a_sample_without_language_is_unavailable(name: str, result: dict[str, Any]) -> None:
    data = {k: v for k, v in SAMPLES[name].items() if k != "language"}
    reward = WarpAtomic(ONE_TO_THREE, BASIC)(Trajectory(Query("q", data), "g", 0, outcome=Outcome(outcome(result))))
    assert not reward.available
    assert "sample.language must be a str" in reward.reason


@pytest.mark.parametrize(
    ("name", "result", "words"),
    [
        ("search", {}, "outcome.valid must be a bool"),
        ("search", {**outcome(SEARCH), "action": None}, "outcome.action must be a dict"),
        ("search", {**outcome(SEARCH), "has_thought": 1}, "outcome.has_thought must be a bool"),
        ("search", {**outcome(SEARCH), "retrieved": None}, "outcome.retrieved"),
        ("write", outcome(SEARCH), "action.content"),
        ("write", {**outcome(WRITE), "invented": "textid9"}, "outcome.invented"),
        ("initialize", outcome({**INIT, "sections": [{"title": "Peru"}]}), "action.sections"),
        ("expand", outcome({**EXPAND, "subsections": None}), "action.subsections"),
    ],
)
def test_a_malformed_outcome_is_unavailable_not_zero(name: str, result: dict[str, Any], words: str) -> None:
    reward = score(name, result)
    assert not reward.available
    assert words in reward.reason


def test_the_value_stays_in_the_unit_interval_for_any_weights() -> None:
    rng = random.Random(0)
    for _ in range(200):
        weights = {a: {c: rng.choice([0, rng.random(), 10 ** rng.uniform(-9, 9)]) for c in row} for a, row in COMPONENTS.items()}
        for row in weights.values():
            row["format"] += 1e-6
        assert score("expand", outcome(EXPAND), weights).value <= 1.0
        assert 0.0 <= score("expand", outcome(NOP), weights).value <= 1.0


@pytest.mark.parametrize(
    ("action", "row", "words"),
    [
        ("search", {"format": 1, "recal": 1}, "weights.search.recal: unknown component, there are format, recall"),
        ("search", {"recall": -0.1}, "weights.search.recall"),
        ("search", {"recall": float("nan")}, "weights.search.recall"),
        ("search", {"recall": float("inf")}, "weights.search.recall"),
        ("search", {"recall": True}, "weights.search.recall"),
        ("search", {"recall": "1"}, "weights.search.recall"),
        ("search", {"format": 0, "recall": 0.0}, "weights.search"),
        ("search", {}, "weights.search"),
        ("search", 1.0, "weights.search"),
        ("serch", {"recall": 1}, "serch"),
    ],
)
def test_bad_weights_are_named(action: str, row: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        WarpAtomic({**ONE_TO_THREE, action: row}, BASIC)


def test_every_action_needs_weights() -> None:
    with pytest.raises(ConfigError, match="weights must have the actions"):
        WarpAtomic({"search": {"recall": 1}}, BASIC)


@pytest.mark.parametrize(
    ("name", "limits"),
    [("words", [5, 3]), ("words", [1]), ("words", 5), ("words", [1.0, 2]), ("words", [True, 2]), ("word", [1, 2])],
)
def test_bad_limits_are_named(name: str, limits: Any) -> None:
    with pytest.raises(ConfigError, match=name):
        WarpAtomic(ONE_TO_THREE, {**BASIC, name: limits})


def test_the_shipped_weights_build_and_put_quality_above_format() -> None:
    reward = build(Target(**yaml.safe_load(CONF.read_text(encoding="utf-8"))))
    for action, row in reward.weights.items():
        assert sum(row.values()) == pytest.approx(1.0), action
        assert row["format"] <= 0.1, action
