"""One query -> one group of scored trajectories. A failure in here is data on the trajectory, never an exception.

run_group:  group_size x (environment.run -> reward.score), all at once, each with a deadline
"""

from __future__ import annotations

import asyncio
import time
import traceback
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from rlcore.environment import Environment
from rlcore.errors import DataFailure, InfrastructureFailure
from rlcore.policy import ChatRenderer, RecordingPolicy
from rlcore.sampling import EngineClient, Sampling
from rlcore.types import Failure, Group, Query, RewardResult, Trajectory, unavailable

Score = Callable[[Trajectory], Awaitable[RewardResult]]


@dataclass(frozen=True)
class Rollouts:
    """Everything needed to roll out a query. `seed` None leaves sampling unseeded; otherwise each call gets its own seed."""

    environment: Environment
    engine: EngineClient
    renderer: ChatRenderer
    score: Score
    sampling: Sampling
    max_model_len: int
    trajectory_timeout_s: float
    call_timeout_s: float
    infrastructure_retries: int = 1

    async def run_group(self, group_id: str, query: Query, group_size: int) -> Group:
        """All trajectories of one occurrence of a query, in the order of their index."""
        members = (self.run_trajectory(group_id, query, index) for index in range(group_size))
        return Group(group_id, query, list(await asyncio.gather(*members)))

    async def run_trajectory(self, group_id: str, query: Query, index: int) -> Trajectory:
        """One rollout and its reward; retried when infrastructure failed."""
        for attempt in range(self.infrastructure_retries + 1):
            trajectory = await self._attempt(group_id, query, index)
            failure = trajectory.failure
            if failure is None or failure.kind != "infrastructure" or attempt == self.infrastructure_retries:
                break
        if trajectory.status != "failed":
            began = time.monotonic()
            trajectory.reward = await self.score(trajectory)
            trajectory.timings["reward"] = [time.monotonic() - began]
            if not trajectory.reward.available:
                trajectory.failure = Failure("reward_unavailable", trajectory.reward.reason or "")
        return trajectory

    async def _attempt(self, group_id: str, query: Query, index: int) -> Trajectory:
        trajectory = Trajectory(query, group_id, index)
        sampling = self.sampling
        if sampling.seed is not None:
            # A stable hash, so that each trajectory's draws depend on the run's seed and its own name only.
            sampling = replace(sampling, seed=(sampling.seed + zlib.crc32(f"{group_id}/{index}".encode())) % 2**31)
        policy = RecordingPolicy(self.engine, self.renderer, sampling, self.max_model_len, trajectory, self.call_timeout_s)
        began = time.monotonic()
        try:
            async with asyncio.timeout(self.trajectory_timeout_s):
                trajectory.outcome = await self.environment.run(query, policy)
        except Exception as error:  # the one place where a rollout's failure becomes data
            trajectory.status = "failed"
            trajectory.failure = _classify(error)
            trajectory.reward = unavailable(f"rollout failed: {trajectory.failure.message}")
        else:
            # An earlier reply that was cut is one the environment went on from: a report re-asks, and ends whole.
            last = trajectory.sequences[-1].finish_reason if trajectory.sequences else None
            cut = trajectory.outcome.truncated or last == "length"
            trajectory.status = "truncated" if cut else "completed"
            if not trajectory.sampled_tokens:
                trajectory.status, trajectory.failure = "failed", Failure("data", "the environment never asked the policy")
        trajectory.timings["total"] = [time.monotonic() - began]
        return trajectory


def _classify(error: Exception) -> Failure:
    """Timeouts and lost machinery are worth another try; anything else the environment raised is about its data."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    where = "" if isinstance(error, DataFailure | InfrastructureFailure) else f" ({last.filename}:{last.lineno})"
    message = f"{type(error).__name__}: {error}{where}"
    if isinstance(error, InfrastructureFailure | TimeoutError | ConnectionError):
        return Failure("infrastructure", message)
    return Failure("data", message)
