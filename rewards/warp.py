"""The per-action reward of atomic RL on report writing (AgentCPM-Report): one action, scored against the teacher's.

    sample (query.data) + parsed action (outcome.data) -> components in [0, 1] -> weighted mean

| action     | components                                                                     |
| ---------- | ------------------------------------------------------------------------------ |
| initialize | format, basic (count and language of sections), coverage (topics in titles)     |
| search     | format, recall (of the teacher's documents)                                     |
| write      | format, basic (length, citations, language), citation (F1 of keys)              |
| expand     | format, decision, position, basic (count and language of subsections)           |
| terminate  | format, decision                                                                |

Expand and terminate are the two answers to one question, so the row is the teacher's answer and the model may give the other:
then only the format counts. Output that does not parse is a real 0 on every component: it was observed and it is bad. A sample
or an outcome that cannot be scored is `unavailable`, never 0. No judge is asked here.
"""

from __future__ import annotations

import math
from typing import Any

from rewards import rules
from rewards.citation import citation_score
from rewards.decision import decision_score, position_score
from rewards.planning import coverage
from rewards.retrieval import recall_at
from rlcore.errors import ConfigError
from rlcore.types import RewardResult, Trajectory, scored, unavailable

COMPONENTS = {
    "initialize": ("format", "basic", "coverage"),
    "search": ("format", "recall"),
    "write": ("format", "basic", "citation"),
    "expand": ("format", "decision", "position", "basic"),
    "terminate": ("format", "decision"),
}
LIMITS = ("sections", "subsections", "words", "citations")


class _Unscorable(Exception):
    """The sample or the outcome lacks what the action's reward needs."""


class WarpAtomic:
    """value = sum_c w_c s_c / sum_c w_c over the components c of the sample's action; in [0, 1].

    `weights[action][component]` are finite and not negative; a component that is left out weighs 0 but is still reported.
    `basic` holds inclusive ranges [least, most]: "sections", "subsections", "words" (of a written section) and "citations".
    Raises ConfigError naming the entry that cannot be used.
    """

    def __init__(self, weights: dict[str, dict[str, float]], basic: dict[str, list[int]]) -> None:
        self.weights = _checked_weights(weights)
        self.basic = _checked_limits(basic)

    def __call__(self, trajectory: Trajectory) -> RewardResult:
        sample, outcome = trajectory.query.data, trajectory.outcome.data
        try:
            action = _get(sample, "sample", "action", str)
            if action not in COMPONENTS:
                raise _Unscorable(f"sample.action must be one of {', '.join(COMPONENTS)}, got {action!r}")
            scores = getattr(self, f"_{action}")(sample, _get(sample, "sample", "reference", dict), outcome)
        except _Unscorable as error:
            return unavailable(str(error))
        weights = self.weights[action]
        return scored(sum(w * scores[name] for name, w in weights.items()) / sum(weights.values()), scores)

    def _initialize(self, sample: dict[str, Any], reference: dict[str, Any], outcome: dict[str, Any]) -> dict[str, float]:
        required = _texts(reference, "reference", "required")
        if (action := _parsed(outcome)) is None:
            return dict.fromkeys(COMPONENTS["initialize"], 0.0)
        sections = _nodes(action, "sections")
        return {
            "format": _format(outcome),
            "basic": rules.plan_basics(sections, _get(sample, "sample", "language", str), self.basic["sections"]),
            "coverage": coverage([node["title"] for node in sections], required),
        }

    def _search(self, sample: dict[str, Any], reference: dict[str, Any], outcome: dict[str, Any]) -> dict[str, float]:
        golden = _texts(reference, "reference", "golden_doc_ids")
        if _parsed(outcome) is None:
            return dict.fromkeys(COMPONENTS["search"], 0.0)
        retrieved = _texts(outcome, "outcome", "retrieved", may_be_empty=True)
        return {"format": _format(outcome), "recall": recall_at(retrieved, golden)}  # the environment has cut to its budget

    def _write(self, sample: dict[str, Any], reference: dict[str, Any], outcome: dict[str, Any]) -> dict[str, float]:
        keys = _texts(reference, "reference", "citations", may_be_empty=True)
        if (action := _parsed(outcome)) is None:
            return dict.fromkeys(COMPONENTS["write"], 0.0)
        content, language = _get(action, "action", "content", str), _get(sample, "sample", "language", str)
        cited = _texts(outcome, "outcome", "cited", may_be_empty=True)
        invented = _texts(outcome, "outcome", "invented", may_be_empty=True)
        return {
            "format": _format(outcome),
            "basic": rules.write_basics(content, language, self.basic["words"], self.basic["citations"]),
            "citation": citation_score(cited, keys, invented),
        }

    def _expand(self, sample: dict[str, Any], reference: dict[str, Any], outcome: dict[str, Any]) -> dict[str, float]:
        position = _get(reference, "reference", "position", str)
        scores = {**self._decide("expand", reference, outcome), "position": 0.0, "basic": 0.0}
        action = _parsed(outcome)
        if action is not None and scores["decision"] == 1.0:
            language, subsections = _get(sample, "sample", "language", str), _nodes(action, "subsections")
            scores["position"] = position_score(_get(action, "action", "position", str), position)
            scores["basic"] = rules.plan_basics(subsections, language, self.basic["subsections"])
        return scores

    def _terminate(self, sample: dict[str, Any], reference: dict[str, Any], outcome: dict[str, Any]) -> dict[str, float]:
        return self._decide("terminate", reference, outcome)

    def _decide(self, decision: str, reference: dict[str, Any], outcome: dict[str, Any]) -> dict[str, float]:
        if _get(reference, "reference", "decision", str) != decision:
            raise _Unscorable(f"reference.decision is {reference['decision']!r} in a sample of the action {decision!r}")
        if (action := _parsed(outcome)) is None:
            return {"format": 0.0, "decision": 0.0}
        return {"format": _format(outcome), "decision": decision_score(_get(action, "action", "name", str), decision)}


def _format(outcome: dict[str, Any]) -> float:
    return rules.format_score(True, _get(outcome, "outcome", "has_thought", bool))


def _parsed(outcome: dict[str, Any]) -> dict[str, Any] | None:
    """The parsed action, None when the model's output was invalid."""
    return _get(outcome, "outcome", "action", dict) if _get(outcome, "outcome", "valid", bool) else None


def _get(data: dict[str, Any], where: str, name: str, kind: type) -> Any:
    if not isinstance(data.get(name), kind):
        raise _Unscorable(f"{where}.{name} must be a {kind.__name__}, got {data.get(name)!r}")
    return data[name]


def _texts(data: dict[str, Any], where: str, name: str, *, may_be_empty: bool = False) -> list[str]:
    items = _get(data, where, name, list)
    if not all(isinstance(item, str) and item for item in items) or not (items or may_be_empty):
        raise _Unscorable(f"{where}.{name} must be a list of {'' if may_be_empty else 'at least one '}text, got {items!r}")
    return items


def _nodes(action: dict[str, Any], name: str) -> list[dict[str, str]]:
    nodes = _get(action, "action", name, list)
    if not all(isinstance(n, dict) and isinstance(n.get("title"), str) and isinstance(n.get("plan"), str) for n in nodes):
        raise _Unscorable(f"action.{name} must be a list of {{title, plan}}, got {nodes!r}")
    return nodes


def _checked_weights(weights: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    if set(weights) != set(COMPONENTS):
        raise ConfigError(f"weights must have the actions {sorted(COMPONENTS)}, got {sorted(weights)}")
    for action, row in weights.items():
        if not isinstance(row, dict):
            raise ConfigError(f"weights.{action} must map components to numbers, got {row!r}")
        for name, weight in row.items():
            if name not in COMPONENTS[action]:
                raise ConfigError(f"weights.{action}.{name}: unknown component, {action} has {', '.join(COMPONENTS[action])}")
            number = isinstance(weight, int | float) and not isinstance(weight, bool)
            if not (number and math.isfinite(weight) and weight >= 0):
                raise ConfigError(f"weights.{action}.{name} must be a finite number >= 0, got {weight!r}")
        if not any(row.values()):
            raise ConfigError(f"weights.{action}: at least one weight must be above 0, got {row!r}")
    return {action: dict(row) for action, row in weights.items()}


def _checked_limits(basic: dict[str, list[int]]) -> dict[str, rules.Range]:
    if set(basic) != set(LIMITS):
        raise ConfigError(f"basic must have the limits {sorted(LIMITS)}, got {sorted(basic)}")
    for name, limits in basic.items():
        pair = isinstance(limits, list | tuple) and len(limits) == 2
        whole = pair and all(isinstance(x, int) and not isinstance(x, bool) for x in limits)
        if not (whole and 0 <= limits[0] <= limits[1]):
            raise ConfigError(f"basic.{name} must be two whole numbers [least, most], got {limits!r}")
    return {name: (limits[0], limits[1]) for name, limits in basic.items()}
