"""Texts of known quality (probe.yaml), and the question every judge has to answer before it may score: is good above bad?"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from rewards.judged import Unavailable
from rlcore.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ProbeItem:
    """A question with its passages and two texts on it, with citations: `good` answers it from the passages, `bad` is off the
    question, shallow and not supported. `good_plan` and `bad_plan` plan such texts, a section a line. `padding` is stock phrases
    that add nothing to either."""

    id: str
    language: str
    question: str
    passages: dict[str, str]
    good: str
    bad: str
    good_plan: str
    bad_plan: str
    padding: str


@lru_cache(maxsize=1)
def probe_items() -> tuple[ProbeItem, ...]:
    """The fixed set."""
    import yaml

    path = Path(__file__).with_name("probe.yaml")
    return tuple(ProbeItem(**item) for item in yaml.safe_load(path.read_text(encoding="utf-8")))


async def check_judge(
    score: Callable[[ProbeItem, str], Awaitable[dict[str, float]]], margin: float, *, plans: bool = False
) -> None:
    """Score the good and the bad text, or plan, of every item by `score` (components of a reward, through its own prompts).

    Raises ConfigError with both means when, for a component, the good ones are not above the bad ones by `margin`, or with the
    reason when the judge gave no score.
    """
    items = probe_items()
    pairs = [(item.good_plan, item.bad_plan) if plans else (item.good, item.bad) for item in items]
    calls = [score(item, text) for item, pair in zip(items, pairs, strict=True) for text in pair]
    try:
        scores = await asyncio.gather(*calls)
    except Unavailable as error:
        raise ConfigError(f"the judge's self-test gave no score: {error}") from error
    good, bad = scores[::2], scores[1::2]
    for name in good[0]:
        above, below = (sum(s[name] for s in part) / len(items) for part in (good, bad))
        if above < below + margin:
            raise ConfigError(
                f"the judge's self-test failed: {name} of known good {'plans' if plans else 'texts'} is {above:.2f} and of known "
                f"bad ones {below:.2f}, which is not {margin:g} apart; use another judge, or margin=null to train with this one "
                "all the same"
            )
