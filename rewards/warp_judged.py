"""The per-action reward of atomic RL with a judge beside the rules (AgentCPM-Report's Table 1).

    rules (rewards/warp.py) + holistic and faithfulness (a judge) -> components in [0, 1] -> weighted mean

| action     | judged components                                                                                  |
| ---------- | -------------------------------------------------------------------------------------------------- |
| initialize | holistic (guidance, hierarchical clarity, logical coherence), faithfulness (to the passages shown) |
| write      | holistic (relevance, coverage, depth, novelty), faithfulness (each sentence to what it cites)      |
| expand     | as initialize, faithfulness to the draft that was shown; both 0 when the decision was wrong        |

    holistic = kept x fit x share of the scale;    faithfulness = kept x supported share

`kept` is the share of the text that a judge was shown (rewards/screen.py; of a plan 800 words at most) and `fit` =
min(1, most words / words), so that neither what is written for the judge nor mere length can pay. Each criterion is reported as
holistic.<id>, before both factors, and the number of claims as faithfulness.claims.

A judged component that cannot be had makes the whole reward unavailable, with the component's name and the reason. It is never 0,
and never left out: a mean over what is left would be another reward, decided by the state of a server.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from rewards import warp
from rewards.faithfulness import plan_faithfulness, section_faithfulness
from rewards.judged import Unavailable, ask_scores, named, rubric_messages
from rewards.probe import ProbeItem, check_judge
from rewards.rubric import PLAN, SECTION
from rewards.rules import length
from rewards.screen import Screen, view
from rewards.sentences import Sentence, sentences
from rewards.warp import Unscorable, WarpAtomic
from rlcore.errors import ConfigError
from rlcore.judge import Judge
from rlcore.types import RewardResult, Trajectory, scored, unavailable

MOST_PLAN_WORDS = 800  # seven sections of a hundred, and to spare
JUDGED = {"initialize": PLAN, "write": SECTION, "expand": PLAN}
COMPONENTS = {
    action: (*names, "holistic", "faithfulness") if action in JUDGED else names for action, names in warp.COMPONENTS.items()
}


class WarpAtomicJudged:
    """value = sum_c w_c s_c / sum_c w_c over the components of the sample's action; in [0, 1]. See the module.

    `weights`, `basic` and `quotes` are those of rewards.warp.WarpAtomic, with "holistic" and "faithfulness" where the table has
    them; what weighs nothing is not asked for. `judge` is asked. `no_claims` is the faithfulness of a text without a claim.
    `margin` is what `self_test` asks of the judge, None for no test (a judge too small to tell good from bad). Raises
    ConfigError.
    """

    def __init__(
        self,
        weights: dict[str, dict[str, float]],
        basic: dict[str, list[int]],
        judge: Judge,
        quotes: bool = False,
        no_claims: float = 1.0,
        margin: float | None = 0.2,
    ) -> None:
        self.weights = warp.checked_weights(weights, COMPONENTS)
        rules = {action: {name: 1.0 for name in names} for action, names in warp.COMPONENTS.items()}
        self.rules = WarpAtomic(rules, basic, quotes)
        for name, value in [("no_claims", no_claims), ("margin", margin if margin is not None else 0)]:
            if isinstance(value, bool) or not 0 <= value <= 1:
                raise ConfigError(f"{name} must be a number between 0 and 1, got {value!r}")
        self.judge, self.no_claims, self.margin = judge, no_claims, margin

    async def __call__(self, trajectory: Trajectory) -> RewardResult:
        sample, outcome = trajectory.query.data, trajectory.outcome.data
        try:
            action, scores = self.rules.components(trajectory)
            if action in JUDGED:
                scores |= await self._judged(action, sample, warp.parsed(outcome), right=scores.get("decision", 1.0) == 1.0)
        except (Unscorable, Unavailable) as error:
            return unavailable(str(error))
        return scored(warp.weighted_mean(self.weights[action], scores), scores)

    async def self_test(self) -> None:
        """Does the judge score known good sections and plans above known bad ones, in this reward's own prompts?

        Asked is what has a weight. Raises ConfigError.
        """
        if self.margin is None:
            return
        for action in ("write", "initialize"):
            alike = [self.weights[other] for other, rubric in JUDGED.items() if rubric is JUDGED[action]]
            if names := [name for name in ("holistic", "faithfulness") if any(row.get(name) for row in alike)]:
                await check_judge(partial(self._probe, action, names), self.margin, plans=action == "initialize")

    async def _probe(self, action: str, names: list[str], item: ProbeItem, text: str) -> dict[str, float]:
        passages = [{"key": key, "text": passage} for key, passage in item.passages.items()]
        prompt = [{"role": "user", "content": "\n".join([item.question, *item.passages.values()])}]
        sample = {"question": item.question, "language": item.language, "messages": prompt, "passages": passages}
        scores = await self._ask(names, action, sample, sentences(text), text)
        return {f"{action}/{name}": scores[name] for name in names}

    async def _judged(
        self, action: str, sample: dict[str, Any], reply: dict[str, Any] | None, *, right: bool
    ) -> dict[str, float]:
        """The judged components, and those of the rubric's criteria."""
        names = [name for name in ("holistic", "faithfulness") if self.weights[action].get(name)]
        if not names:
            return {}
        if reply is None or not right:
            return dict.fromkeys(names, 0.0)
        bound = math.inf if action == "write" else MOST_PLAN_WORDS
        screen = Screen(JUDGED[action], [warp.shown(sample)], quotes=self.rules.quotes, most_words=bound)
        lines = screen.lines(reply["content"]) if action == "write" else _plan_lines(screen, reply)
        stays = [sentence for line in lines for sentence in line]
        if not stays:  # nothing but what no judge needs to see
            return {**dict.fromkeys(names, 0.0), "kept": screen.kept}
        scores = await self._ask(names, action, sample, stays, view(lines))
        most = self.rules.basic["words"][1]
        fit = min(1.0, most / max(length(reply["content"]), 1)) if action == "write" else 1.0
        for name, factor in [("holistic", screen.kept * fit), ("faithfulness", screen.kept)]:
            if name in scores:
                scores[name] *= factor
        return {**scores, "kept": screen.kept}

    async def _ask(
        self, names: Sequence[str], action: str, sample: dict[str, Any], stays: Sequence[Sentence], text: str
    ) -> dict[str, float]:
        """Ask for the named components of a text, of which `stays` are the sentences, at the same time."""
        calls = {
            "holistic": lambda: self._holistic(action, sample, text),
            "faithfulness": lambda: self._faithful(action, sample, stays),
        }
        found = await asyncio.gather(*(named(f"{action}/{name}", calls[name]()) for name in names))
        return {name: value for part in found for name, value in part.items()}

    async def _holistic(self, action: str, sample: dict[str, Any], text: str) -> dict[str, float]:
        rubric = JUDGED[action]
        material = {"task": _text(sample, "question"), "shown": warp.shown(sample), "text": text}
        question = rubric_messages(_text(sample, "language"), material, rubric)
        scores = await ask_scores(self.judge, question, rubric, component=f"{action}/holistic")
        return {"holistic": rubric.share(scores), **{f"holistic.{id}": rubric.scale.share(s) for id, s in scores.items()}}

    async def _faithful(self, action: str, sample: dict[str, Any], stays: Sequence[Sentence]) -> dict[str, float]:
        sources = {"draft": warp.shown(sample)} if action == "expand" else _passages(sample)
        ask: dict[str, Any] = {
            "judge": self.judge,
            "sources": sources,
            "language": _text(sample, "language"),
            "component": f"{action}/faithfulness",
            "no_claims": self.no_claims,
        }
        if action == "write":
            value, claims = await section_faithfulness(statements=stays, **ask)
        else:
            value, claims = await plan_faithfulness(text="\n".join(sentence.text for sentence in stays), **ask)
        return {"faithfulness": value, "faithfulness.claims": float(claims)}


def _plan_lines(screen: Screen, reply: dict[str, Any]) -> list[list[Sentence]]:
    """The plan that is left after screening: its title, then a line for each section's title and plan."""
    parts = [] if reply["name"] != "init-plan" else screen.lines(reply["title"], heading=True)
    for node in warp.planned(reply, "sections" if reply["name"] == "init-plan" else "subsections"):
        both = [*screen.lines(node["title"], heading=True), *screen.lines(node["plan"])]
        parts.append([sentence for line in both for sentence in line])
    return [part for part in parts if part]


def _passages(sample: dict[str, Any]) -> dict[str, str]:
    passages = sample.get("passages")
    if not isinstance(passages, list) or not all(isinstance(p, dict) and {"key", "text"} <= p.keys() for p in passages):
        raise Unscorable(f"sample.passages must be a list of {{key, text}}, got {passages!r}")
    return {passage["key"]: passage["text"] for passage in passages}


def _text(sample: dict[str, Any], name: str) -> str:
    if not isinstance(sample.get(name), str):
        raise Unscorable(f"sample.{name} must be a text, got {sample.get(name)!r}")
    return sample[name]
