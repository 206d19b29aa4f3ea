import asyncio
import math

import pytest

from rlcore.errors import RunFailed
from rlcore.evaluation import Evaluation, paired_gain, roll_out, summarise
from rlcore.types import Failure, Outcome, Query, Trajectory, scored


def test_the_paired_gain_by_hand():
    before = Evaluation({"a": 0.0, "b": 0.5, "c": 1.0, "only before": 1.0}, {}, 0)
    after = Evaluation({"a": 0.2, "b": 0.5, "c": 1.4, "only after": 0.0}, {}, 0)
    gain, error, count = paired_gain(before, after)
    # differences 0.2, 0, 0.4: mean 0.2, sample standard deviation 0.2, standard error 0.2 / sqrt(3)
    assert gain == pytest.approx(0.2) and error == pytest.approx(0.2 / math.sqrt(3)) and count == 3


class FakeRollouts:
    async def run_trajectory(self, group_id, query, index):
        t = Trajectory(query, group_id, index, outcome=Outcome({}, {"valid": query.data["valid"]}))
        if query.data["reward"] is None:
            t.status, t.failure = "failed", Failure("data", "no such section")
        else:
            t.reward = scored(query.data["reward"])
        return t


def queries(*rewards):
    return [Query(f"q{i}", {"reward": r, "valid": 1.0, "action": "write" if i % 2 else "search"}) for i, r in enumerate(rewards)]


def test_means_by_kind_leave_out_what_could_not_be_scored():
    result = summarise(asyncio.run(roll_out(FakeRollouts(), queries(1.0, 0.5, None, 0.7), 0.5, concurrency=2)), "action")
    assert result.unscored == 1 and result.reward == pytest.approx((1.0 + 0.5 + 0.7) / 3)
    assert result.by_kind["search"] == {"n": 1.0, "reward": 1.0, "valid": 1.0}
    assert result.by_kind["write"]["reward"] == pytest.approx(0.6)


def test_a_query_counts_once_however_often_it_was_sampled():
    class Alternating:
        async def run_trajectory(self, group_id, query, index):
            return Trajectory(query, group_id, index, outcome=Outcome({}), reward=scored(query.data["reward"] * index))

    result = summarise(asyncio.run(roll_out(Alternating(), queries(1.0, 0.5), 0.5, concurrency=3, samples=3)), None)
    # indices 0, 1, 2: means 1.0 and 0.5; the standard error is over two queries, not over six rollouts
    assert result.rewards == {"q0": 1.0, "q1": 0.5} and result.by_kind["all"]["n"] == 6 and result.unscored == 0
    assert result.error == pytest.approx(math.sqrt(0.125) / math.sqrt(2))


def test_too_many_failures_are_not_an_evaluation():
    with pytest.raises(RunFailed, match="2 of 3 held-out rollouts failed; the first: data: no such section"):
        asyncio.run(roll_out(FakeRollouts(), queries(None, None, 1.0), 0.5, concurrency=2))
