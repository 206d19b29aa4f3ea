"""Rewards that misbehave on purpose, importable by the workers of the reward pool tests. What to do stands in the outcome."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from typing import Any

from rlcore.types import RewardResult, Trajectory, scored, unavailable

FROZEN = "frozen"


def act(trajectory: Trajectory) -> Any:
    """A plain function: does what `outcome.data["do"]` says."""
    return _act(trajectory.outcome.data)


def _act(data: dict[str, Any]) -> Any:
    match data["do"]:
        case "score":
            return scored(data["value"], {"pid": os.getpid()})
        case "sleep":
            time.sleep(data["seconds"])
            return scored(data["value"], {"pid": os.getpid()})
        case "raise":
            raise ValueError("no such key: answer")
        case "exit":
            os._exit(3)
        case "freeze":  # one C call that never gives the interpreter back
            return scored(float(sum(range(10**12))))
        case "number":
            return 0.5
        case "nan":
            return RewardResult(float("nan"))
        case "bool component":
            return RewardResult(1.0, {"right": True})
        case "unavailable":
            return unavailable("the judge is down")
        case "environment":
            return scored(float(os.environ["OMP_NUM_THREADS"]), {"main_thread": float(_in_main_thread())})


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


async def act_async(trajectory: Trajectory) -> Any:
    """A coroutine function; `stubborn` sleeps on when it is cancelled."""
    data = trajectory.outcome.data
    if data["do"] == "sleep":
        await asyncio.sleep(data["seconds"])
        return scored(data["value"], {"pid": os.getpid()})
    if data["do"] == "stubborn":
        until = time.monotonic() + data["seconds"]
        while time.monotonic() < until:
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                continue
    return _act(data)


class Flaky:
    """Raises on the first `failures` calls in its process, then scores `value`. Its call is a coroutine."""

    def __init__(self, failures: int, value: float = 1.0) -> None:
        self.failures, self.value = failures, value

    async def __call__(self, trajectory: Trajectory) -> RewardResult:
        if self.failures > 0:
            self.failures -= 1
            raise RuntimeError("try again")
        return scored(self.value)


class Unbuildable:
    def __init__(self) -> None:
        raise OSError("the judge's key file is missing")


class SlowToBuild:
    def __init__(self) -> None:
        time.sleep(60)


NOT_CALLABLE = 3
