"""A toy judged reward, importable by reward workers: the judge's reply has to be a score from 1 to 5, as JSON."""

from __future__ import annotations

import json
from typing import Any

from rlcore.errors import ConfigError
from rlcore.judge import Judge, JudgeFailed
from rlcore.types import RewardResult, Trajectory, scored, unavailable


class Rated:
    """`good` and `bad` are the self-test's texts, none without."""

    def __init__(self, judge: Judge, good: str = "", bad: str = "") -> None:
        self.judge, self.good, self.bad = judge, good, bad

    async def self_test(self) -> None:
        if self.good and not (await self._rate(self.good)).value > (await self._rate(self.bad)).value:
            raise ConfigError("the judge does not rate a known good text above a known bad one")

    async def __call__(self, trajectory: Trajectory) -> RewardResult:
        return await self._rate(trajectory.outcome.data["text"])

    async def _rate(self, text: str) -> Any:
        messages = [{"role": "user", "content": f"Rate from 1 to 5: {text}"}]
        why = ""
        for attempt in (0, 1):
            try:
                reply = await self.judge.ask(messages, component="toy/rate", max_tokens=24, attempt=attempt)
            except JudgeFailed as failed:
                return unavailable(f"judge failed: {failed}")
            why = "cut off" if reply.finish_reason == "length" else ""
            try:
                score = json.loads(reply.text)["score"]
                if score in (1, 2, 3, 4, 5) and not why:
                    return scored(float(score))
                why = why or f"out of range: {score!r}"
            except (ValueError, LookupError, TypeError):
                why = why or "no JSON with a score"
            await self.judge.unusable("toy/rate", why, reply)
        return unavailable(f"reply unusable: {why}")
