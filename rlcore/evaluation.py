"""Held-out evaluation: rollouts of every query, means with standard errors over the queries, by kind of query.

The queries and the seeds of their draws are the same at every evaluation of a run, so stages compare like with like.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from rlcore.errors import RunFailed
from rlcore.metrics import mean, standard_error
from rlcore.rollout import Rollouts
from rlcore.types import Query, Trajectory

EVALUATION_SEED = 20_260_101  # apart from the training seeds, equal in all runs


@dataclass(frozen=True)
class Evaluation:
    """Results of one evaluation. `rewards` holds the mean reward of every scored query by its id; `unscored` counts rollouts."""

    rewards: dict[str, float]
    by_kind: dict[str, dict[str, float]]  # kind -> {"reward", "n", and the mean of each environment metric}
    unscored: int

    @property
    def reward(self) -> float:
        return mean(self.rewards.values())

    @property
    def error(self) -> float:
        """Standard error of the mean reward."""
        return standard_error(self.rewards.values())

    def figures(self) -> dict[str, float]:
        """Flat numbers for the metrics writer."""
        flat = {"reward": self.reward, "reward_se": self.error, "n": float(len(self.rewards)), "unscored": float(self.unscored)}
        for kind, values in self.by_kind.items():
            flat |= {f"{kind}/{name}": value for name, value in values.items()}
        return flat


async def roll_out(
    rollouts: Rollouts, queries: list[Query], max_failed_share: float, concurrency: int, samples: int = 1
) -> list[Trajectory]:
    """`samples` scored trajectories of every query, in their order.

    Raises RunFailed when more than `max_failed_share` of the rollouts failed: what is left would not be the same test.
    """
    gate = asyncio.Semaphore(concurrency)

    async def one(query: Query, index: int) -> Trajectory:
        async with gate:
            return await rollouts.run_trajectory(f"eval:{query.id}", query, index)

    trajectories = await asyncio.gather(*(one(query, index) for query in queries for index in range(samples)))
    failed = [t.failure for t in trajectories if t.failure is not None]
    if len(failed) > max_failed_share * len(trajectories):
        raise RunFailed(
            f"{len(failed)} of {len(trajectories)} held-out rollouts failed; the first: {failed[0].kind}: {failed[0].message}"
        )
    return trajectories


def summarise(trajectories: list[Trajectory], group_by: str | None) -> Evaluation:
    """Means over the scored trajectories. `group_by` is the field of the query's data that names its kind."""
    kinds: dict[str, list[Trajectory]] = {"all": []}
    for t in trajectories:
        if t.usable:
            kinds["all"].append(t)
            if group_by is not None:
                kinds.setdefault(str(t.query.data.get(group_by)), []).append(t)
    rewards = _query_rewards(kinds["all"])
    by_kind = {kind: _means(ts) for kind, ts in sorted(kinds.items())}
    return Evaluation(rewards, by_kind, len(trajectories) - len(kinds["all"]))


def _query_rewards(trajectories: list[Trajectory]) -> dict[str, float]:
    """The mean reward of each query's scored trajectories."""
    values: dict[str, list[float]] = {}
    for t in trajectories:
        if t.reward is not None and t.reward.value is not None:
            values.setdefault(t.query.id, []).append(t.reward.value)
    return {query: mean(rewards) for query, rewards in values.items()}


def _means(trajectories: list[Trajectory]) -> dict[str, float]:
    result = {"n": float(len(trajectories)), "reward": mean(_query_rewards(trajectories).values())}
    for name in sorted({k for t in trajectories for k in t.outcome.metrics}):
        result[name] = mean(t.outcome.metrics[name] for t in trajectories if name in t.outcome.metrics)
    return result


def paired_gain(before: Evaluation, after: Evaluation) -> tuple[float, float, int]:
    """Mean difference of the rewards on the queries both scored, the standard error of that mean, and their number."""
    both = sorted(before.rewards.keys() & after.rewards.keys())
    differences = [after.rewards[q] - before.rewards[q] for q in both]
    return mean(differences), standard_error(differences), len(both)
