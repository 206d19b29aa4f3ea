"""Is a judge swayed by place, by length or by its own hand? Measured on the fixed set of texts in rewards/probe.yaml.

    python -m tools.judge_bias --url http://localhost:8000/v1 --model judge
    python -m tools.judge_bias --url ... --model judge --other-url ... --other-model another --out bias.json

| figure              | what it is                                                                           | without bias    |
| ------------------- | ------------------------------------------------------------------------------------ | --------------- |
| accuracy            | share of comparisons, both orders, in which the good text is above the bad one       | 1               |
| position/preference | gap in favour of the first text, on a scale of 5; the texts' own difference cancels  | 0               |
| position/flips      | share of comparisons whose winner changes with the order                             | 0               |
| position/same_text  | gap in favour of the first of two equal texts                                        | 0               |
| length/preference   | gap in favour of a text with stock phrases added, against the text itself            | 0 or below      |
| length/score        | what the stock phrases add to the score (a share of the scale) of the text by itself | 0 or below      |
| length/screened     | the same with what the rewards put before the judge (rewards/screen.py)              | 0 or below      |
| self/preference     | gap in favour of the judge's own answers, against the set's good ones                | see self/excess |
| self/excess         | self/preference less the other judge's gap for the same answers (with --other-model) | 0               |

Its own answers may be better than the set's: self/preference alone proves nothing, which is why another judge may say so. A
figure is a mean over what was answered; `unanswered` counts the rest.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import TypeVar

from envs.warp.citations import drop_citations
from rewards.compare import gaps
from rewards.judged import Unusable, ask_scores, rubric_messages
from rewards.probe import ProbeItem, probe_items
from rewards.rubric import SECTION
from rewards.screen import Screen
from rlcore.errors import ConfigError
from rlcore.files import write_atomic
from rlcore.judge import Judge, JudgeFailed
from rlcore.judge_config import JudgeConfig, JudgeEndpointConfig, read_key
from rlcore.judge_pool import JudgePool
from rlcore.metrics import mean

T = TypeVar("T")


class _Probe:
    """Questions to one judge; those without a usable answer are counted and left out."""

    def __init__(self, judge: Judge) -> None:
        self.judge, self.unanswered = judge, 0

    async def _or_none(self, call: Awaitable[T]) -> T | None:
        try:
            return await call
        except (JudgeFailed, Unusable):
            self.unanswered += 1
            return None

    async def pairs(self, items: Sequence[ProbeItem], texts: Sequence[tuple[str, str]]) -> list[tuple[float, float]]:
        """For every item and criterion the gap in favour of the first text of its pair: put in front, and put second."""

        async def one(item: ProbeItem, text: str, other: str) -> list[tuple[float, float]]:
            found = await self._or_none(gaps(self.judge, item.question, text, other, SECTION, item.language, 1, "bias/pair"))
            return [(front, behind) for front, behind in (found or {}).values()]

        return [pair for part in await asyncio.gather(*map(one, items, *zip(*texts, strict=True))) for pair in part]

    async def score(self, item: ProbeItem, text: str) -> float | None:
        """The text's score by itself, a share of the scale."""
        material = {"task": item.question, "text": text}
        scores = await self._or_none(
            ask_scores(self.judge, rubric_messages(item.language, material, SECTION), SECTION, component="bias/score")
        )
        return None if scores is None else SECTION.share(scores)

    async def answer(self, item: ProbeItem) -> str | None:
        """The judge's own text on the item's question."""
        task = {
            "en": "Answer the question from the passages in four sentences of plain text.",
            "zh": "根据资料用四句纯文本回答问题。",
        }
        content = "\n\n".join([item.question, *item.passages.values(), task[item.language]])
        reply = await self._or_none(self.judge.ask([{"role": "user", "content": content}], component="bias/answer"))
        text = reply.text.rpartition("</think>")[2].strip() if reply else ""
        if reply and (reply.finish_reason == "length" or not text):
            self.unanswered += 1
            return None
        return text or None


async def measure(judge: Judge, other: Judge | None = None, items: Sequence[ProbeItem] = ()) -> dict[str, float]:
    """The figures of the module's table; one for which nothing was answered is left out."""
    items, probe = items or probe_items(), _Probe(judge)
    good, bad = ([drop_citations(text) for text in texts] for texts in zip(*((i.good, i.bad) for i in items), strict=True))
    padded = [f"{text}{' ' if item.language == 'en' else ''}{item.padding}" for item, text in zip(items, good, strict=True)]
    quality = await probe.pairs(items, list(zip(good, bad, strict=True)))
    same = await probe.pairs(items, list(zip(good, good, strict=True)))
    length = await probe.pairs(items, list(zip(padded, good, strict=True)))
    figures = {
        "accuracy": [float(gap > 0) for pair in quality for gap in pair],
        "position/preference": [(front - behind) / 2 for front, behind in quality],
        "position/flips": [float(front * behind < 0) for front, behind in quality],
        "position/same_text": [(front - behind) / 2 for front, behind in same],
        "length/preference": [(front + behind) / 2 for front, behind in length],
    }
    figures |= await _length_scores(probe, items, good, padded)
    figures |= await _self_preference(probe, items, good, other)
    return {name: mean(values) for name, values in figures.items() if values} | {"unanswered": float(probe.unanswered)}


async def _length_scores(
    probe: _Probe, items: Sequence[ProbeItem], good: Sequence[str], padded: Sequence[str]
) -> dict[str, list[float]]:
    figures: dict[str, list[float]] = {"length/score": [], "length/screened": []}
    for item, plain, long in zip(items, good, padded, strict=True):
        screens = [Screen(SECTION, list(item.passages.values()), item.question) for _ in range(2)]
        views = [screen(text) for screen, text in zip(screens, (plain, long), strict=True)]
        scores = await asyncio.gather(*(probe.score(item, text) for text in (plain, long, *views)))
        raw, raw_long, plain_view, long_view = scores
        if raw is not None and raw_long is not None:
            figures["length/score"].append(raw_long - raw)
        if plain_view is not None and long_view is not None:
            figures["length/screened"].append(screens[1].kept * long_view - screens[0].kept * plain_view)
    return figures


async def _self_preference(
    probe: _Probe, items: Sequence[ProbeItem], good: Sequence[str], other: Judge | None
) -> dict[str, list[float]]:
    answers = await asyncio.gather(*map(probe.answer, items))
    answered = [(item, answer, text) for item, answer, text in zip(items, answers, good, strict=True) if answer is not None]
    if not answered:
        return {}
    asked, pairs = [item for item, _, _ in answered], [(answer, text) for _, answer, text in answered]
    own = [(front + behind) / 2 for front, behind in await probe.pairs(asked, pairs)]
    figures = {"self/preference": own}
    if other is not None and own:
        others = [(front + behind) / 2 for front, behind in await _Probe(other).pairs(asked, pairs)]
        figures["self/excess"] = [mean(own) - mean(others)] if others else []
    return figures


def _judge(url: str, model: str, key_env: str | None, structured: bool, timeout_s: float) -> JudgePool:
    endpoint = JudgeEndpointConfig(url, model, key_env, structured=structured)
    config = JudgeConfig(timeout_s=timeout_s, budget_s=5 * timeout_s)
    return JudgePool(config, {"main": endpoint}, {"main": read_key("--key-env", endpoint.key_env)})


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.judge_bias", description="The position, length and self bias of a judge."
    )
    parser.add_argument("--url", required=True, help="an OpenAI-compatible API, such as http://localhost:8000/v1")
    parser.add_argument("--model", required=True, help="the judge's name there")
    parser.add_argument("--key-env", help="the environment variable with its key")
    parser.add_argument("--other-url", help="another judge's API (--url when left out), for self/excess")
    parser.add_argument("--other-model", help="the other judge's name")
    parser.add_argument("--unstructured", action="store_true", help="send no JSON schema (a server that takes none)")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds for one answer; more for a judge on a busy machine")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    args = parser.parse_args(argv)
    try:
        options = {"key_env": args.key_env, "structured": not args.unstructured, "timeout_s": args.timeout}
        judge = _judge(args.url, args.model, **options)
        other = None
        if args.other_model:
            other = _judge(args.other_url or args.url, args.other_model, **options)
        figures = asyncio.run(_checked(judge, other))
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for name, value in figures.items():
        print(f"{name:<22}{value:>8.3f}")
    if args.out:
        write_atomic(args.out, json.dumps(figures, indent=2) + "\n")
    return 0 if len(figures) > 1 else 1


async def _checked(judge: JudgePool, other: JudgePool | None) -> dict[str, float]:
    for one in (judge, *([other] if other else [])):
        await one.check()
    return await measure(judge, other)


if __name__ == "__main__":
    sys.exit(main())
