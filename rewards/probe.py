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
    question, shallow and not supported. `padding` is stock phrases that add nothing to either."""

    id: str
    language: str
    question: str
    passages: dict[str, str]
    good: str
    bad: str
    padding: str


@lru_cache(maxsize=1)
def probe_items() -> tuple[ProbeItem, ...]:
    """The fixed set."""
    import yaml

    path = Path(__file__).with_name("probe.yaml")
    return tuple(ProbeItem(**item) for item in yaml.safe_load(path.read_text(encoding="utf-8")))


async def check_judge(score: Callable[[ProbeItem, str], Awaitable[dict[str, float]]], margin: float) -> None:
    """Score the good and the bad text of every item by `score` (components of a reward, through its own prompts).

    Raises ConfigError with both means when, for a component, the good ones are not above the bad ones by `margin`, or with the
    reason when the judge gave no score.
    """
    items = probe_items()
    calls = [score(item, text) for item in items for text in (item.good, item.bad)]
    try:
        scores = await asyncio.gather(*calls)
    except Unavailable as error:
        raise ConfigError(f"the judge's self-test gave no score: {error}") from error
    good, bad = scores[::2], scores[1::2]
    for name in (name for name in good[0] if "." not in name):
        above, below = (sum(s[name] for s in part) / len(items) for part in (good, bad))
        if above < below + margin:
            raise ConfigError(
                f"the judge's self-test failed: {name} of known good texts is {above:.2f} and of known bad ones {below:.2f}, "
                f"which is not {margin:g} apart; use another judge, or margin=null to train with this one all the same"
            )
