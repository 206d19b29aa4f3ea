"""The per-action reward of atomic RL on report writing (AgentCPM-Report): one action, scored against the teacher's.

    sample (query.data) + parsed action (outcome.data) -> components in [0, 1] -> weighted mean

| action     | components                                                                  |
| ---------- | --------------------------------------------------------------------------- |
| initialize | format, basic (count and language of sections), coverage (titles of topics) |
| search     | format, recall, precision and f1 (of the teacher's documents)               |
| write      | format, basic (length, citations, language), citation (F1 of keys)          |
| expand     | format, decision, position, basic (count and language of subsections)       |
| terminate  | format, decision                                                            |

Expand and terminate are the two answers to one question, so the row is the teacher's answer and the model may give the other:
then only the format counts. Output that does not parse is a real 0 on every component: it was observed and it is bad. A sample
or an outcome that cannot be scored is `unavailable`, never 0. No judge is asked here; rewards/warp_judged.py adds what one says.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

from rewards import rules
from rewards.citation import citation_score
from rewards.decision import decision_score, position_score
from rewards.planning import coverage
from rewards.retrieval import f1_at, precision_at, recall_at
from rewards.rubric import SECTION
from rewards.screen import Screen
from rlcore.errors import ConfigError
from rlcore.types import RewardResult, Trajectory, scored, unavailable

COMPONENTS = {
    "initialize": ("format", "basic", "coverage"),
    "search": ("format", "recall", "precision", "f1"),
    "write": ("format", "basic", "citation"),
    "expand": ("format", "decision", "position", "basic"),
    "terminate": ("format", "decision"),
}
LIMITS = ("sections", "subsections", "words", "citations")


class Unscorable(Exception):
    """The sample or the outcome lacks what the action's reward needs."""


class WarpAtomic:
    """value = sum_c w_c s_c / sum_c w_c over the components c of the sample's action; in [0, 1].

    `weights[action][component]` are finite and not negative; a component that is left out weighs 0 but is still reported.
    `basic` holds inclusive ranges [least, most]: "sections", "subsections", "words" (of a written section) and "citations".
    `quotes`: a cited sentence may be its source's own words, at any length (rewards/screen.py). Raises ConfigError naming the
    entry that cannot be used.
    """

    def __init__(self, weights: dict[str, dict[str, float]], basic: dict[str, list[int]], quotes: bool = False) -> None:
        self.weights, self.quotes = checked_weights(weights, COMPONENTS), quotes
        self.basic = _checked_limits(basic)

    def __call__(self, trajectory: Trajectory) -> RewardResult:
        try:
            action, scores = self.components(trajectory)
        except Unscorable as error:
            return unavailable(str(error))
        return scored(weighted_mean(self.weights[action], scores), scores)

    def components(self, trajectory: Trajectory) -> tuple[str, dict[str, float]]:
        """The sample's action and its components. Raises Unscorable."""
        sample, outcome = trajectory.query.data, trajectory.outcome.data
        action = _get(sample, "sample", "action", str)
        if action not in COMPONENTS:
            raise Unscorable(f"sample.action must be one of {', '.join(COMPONENTS)}, got {action!r}")
        return action, getattr(self, f"_{action}")(sample, _get(sample, "sample", "reference", dict), outcome)

    def _initialize(self, sample: dict[str, Any], reference: dict[str, Any], outcome: dict[str, Any]) -> dict[str, float]:
        required = _texts(reference, "reference", "required")
        if (action := parsed(outcome)) is None:
            return dict.fromkeys(COMPONENTS["initialize"], 0.0)
        sections = planned(action, "sections")
        return {
            "format": _format(outcome),
            "basic": rules.plan_basics(sections, _get(sample, "sample", "language", str), self.basic["sections"]),
            "coverage": coverage([node["title"] for node in sections], required),
        }

    def _search(self, sample: dict[str, Any], reference: dict[str, Any], outcome: dict[str, Any]) -> dict[str, float]:
        golden = _texts(reference, "reference", "golden_doc_ids")
        if parsed(outcome) is None:
            return dict.fromkeys(COMPONENTS["search"], 0.0)
        retrieved = _texts(outcome, "outcome", "retrieved", may_be_empty=True)
        overlap = {"recall": recall_at, "precision": precision_at, "f1": f1_at}  # the environment has cut to its budget
        return {"format": _format(outcome), **{name: score(retrieved, golden) for name, score in overlap.items()}}

    def _write(self, sample: dict[str, Any], reference: dict[str, Any], outcome: dict[str, Any]) -> dict[str, float]:
        keys = _texts(reference, "reference", "citations", may_be_empty=True)
        if (action := parsed(outcome)) is None:
            return dict.fromkeys(COMPONENTS["write"], 0.0)
        content, language = _get(action, "action", "content", str), _get(sample, "sample", "language", str)
        kept = Screen(SECTION, [shown(sample)], quotes=self.quotes)(content)
        cited = _texts(outcome, "outcome", "cited", may_be_empty=True)
        invented = _texts(outcome, "outcome", "invented", may_be_empty=True)
        return {
            "format": _format(outcome),
            "basic": rules.write_basics(content, kept, language, self.basic["words"], self.basic["citations"]),
            "citation": citation_score(cited, keys, invented),
        }

    def _expand(self, sample: dict[str, Any], reference: dict[str, Any], outcome: dict[str, Any]) -> dict[str, float]:
        position = _get(reference, "reference", "position", str)
        scores = {**self._decide("expand", reference, outcome), "position": 0.0, "basic": 0.0}
        action = parsed(outcome)
        if action is not None and scores["decision"] == 1.0:
            language, subsections = _get(sample, "sample", "language", str), planned(action, "subsections")
            scores["position"] = position_score(_get(action, "action", "position", str), position)
            scores["basic"] = rules.plan_basics(subsections, language, self.basic["subsections"])
        return scores

    def _terminate(self, sample: dict[str, Any], reference: dict[str, Any], outcome: dict[str, Any]) -> dict[str, float]:
        return self._decide("terminate", reference, outcome)

    def _decide(self, decision: str, reference: dict[str, Any], outcome: dict[str, Any]) -> dict[str, float]:
        if _get(reference, "reference", "decision", str) != decision:
            raise Unscorable(f"reference.decision is {reference['decision']!r} in a sample of the action {decision!r}")
        if (action := parsed(outcome)) is None:
            return {"format": 0.0, "decision": 0.0}
        return {"format": _format(outcome), "decision": decision_score(_get(action, "action", "name", str), decision)}


def shown(sample: dict[str, Any]) -> str:
    """What the model was shown: the user message of the sample's prompt, with question, outline and passages."""
    messages = _get(sample, "sample", "messages", list)
    if not messages or not isinstance(messages[-1], dict) or not isinstance(messages[-1].get("content"), str):
        raise Unscorable(f"sample.messages must end with a message, got {messages!r}")
    return messages[-1]["content"]


def _format(outcome: dict[str, Any]) -> float:
    return rules.format_score(True, _get(outcome, "outcome", "has_thought", bool))


def parsed(outcome: dict[str, Any]) -> dict[str, Any] | None:
    """The parsed action, None when the model's output was invalid."""
    return _get(outcome, "outcome", "action", dict) if _get(outcome, "outcome", "valid", bool) else None


def _get(data: dict[str, Any], where: str, name: str, kind: type) -> Any:
    if not isinstance(data.get(name), kind):
        raise Unscorable(f"{where}.{name} must be a {kind.__name__}, got {data.get(name)!r}")
    return data[name]


def _texts(data: dict[str, Any], where: str, name: str, *, may_be_empty: bool = False) -> list[str]:
    items = _get(data, where, name, list)
    if not all(isinstance(item, str) and item for item in items) or not (items or may_be_empty):
        raise Unscorable(f"{where}.{name} must be a list of {'' if may_be_empty else 'at least one '}text, got {items!r}")
    return items


def planned(action: dict[str, Any], name: str) -> list[dict[str, str]]:
    nodes = _get(action, "action", name, list)
    if not all(isinstance(n, dict) and isinstance(n.get("title"), str) and isinstance(n.get("plan"), str) for n in nodes):
        raise Unscorable(f"action.{name} must be a list of {{title, plan}}, got {nodes!r}")
    return nodes


def weighted_mean(weights: dict[str, float], scores: dict[str, float]) -> float:
    """sum_c w_c s_c / sum_c w_c; a component that has no weight counts nothing."""
    return sum(w * scores[name] for name, w in weights.items() if w) / sum(weights.values())


def checked_weights(weights: dict[str, dict[str, float]], components: dict[str, tuple[str, ...]]) -> dict[str, dict[str, float]]:
    """The weights of each action's components. Raises ConfigError naming the entry that cannot be used."""
    if set(weights) != set(components):
        raise ConfigError(f"weights must have the actions {sorted(components)}, got {sorted(weights)}")
    for action, row in weights.items():
        check_row(f"weights.{action}", row, components[action])
    return {action: dict(row) for action, row in weights.items()}


def check_row(where: str, row: Any, components: Collection[str]) -> None:
    """Raises ConfigError unless the row gives some of the components weights that are finite and >= 0, not all of them 0."""
    if not isinstance(row, dict):
        raise ConfigError(f"{where} must map components to numbers, got {row!r}")
    for name, weight in row.items():
        if name not in components:
            raise ConfigError(f"{where}.{name}: unknown component, there are {', '.join(components)}")
        number = isinstance(weight, int | float) and not isinstance(weight, bool)
        if not (number and math.isfinite(weight) and weight >= 0):
            raise ConfigError(f"{where}.{name} must be a finite number >= 0, got {weight!r}")
    if not any(row.values()):
        raise ConfigError(f"{where}: at least one weight must be above 0, got {row!r}")


def _checked_limits(basic: dict[str, list[int]]) -> dict[str, rules.Range]:
    if set(basic) != set(LIMITS):
        raise ConfigError(f"basic must have the limits {sorted(LIMITS)}, got {sorted(basic)}")
    for name, limits in basic.items():
        pair = isinstance(limits, list | tuple) and len(limits) == 2
        whole = pair and all(isinstance(x, int) and not isinstance(x, bool) for x in limits)
        if not (whole and 0 <= limits[0] <= limits[1]):
            raise ConfigError(f"basic.{name} must be two whole numbers [least, most], got {limits!r}")
    return {name: (limits[0], limits[1]) for name, limits in basic.items()}
