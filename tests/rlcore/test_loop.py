"""What enters the loss and what the loop does when rollouts fail, without actors."""

import asyncio
from collections import Counter
from dataclasses import replace

import pytest

from rlcore.buffer import Buffer
from rlcore.errors import RunFailed
from rlcore.loop import _first, combine, group_advantages, produce, training_samples
from rlcore.queries import QueryCursor
from rlcore.types import Failure, Group, Query, Sequence, Trajectory, scored, unavailable
from tests.rlcore.test_config import composed

ALGO = composed().algo


def trajectory(reward: float | None, status: str = "completed") -> Trajectory:
    s = Sequence()
    s.append_context([1])
    s.append_sampled([2, 3], [-1.0, -1.0], [0, 0], "stop")
    t = Trajectory(Query("q"), "g", 0, [s], status=status)
    t.reward = unavailable("judge down") if reward is None else scored(reward)
    if reward is None:
        t.failure = Failure("reward_unavailable", "judge down")
    return t


def test_a_missing_score_leaves_its_group_and_is_not_a_zero():
    groups = [Group("g", Query("q"), [trajectory(1.0), trajectory(None), trajectory(0.0)])]
    # statistics over the two scores: mean 0.5, sample std sqrt(0.5)
    assert group_advantages(groups, ALGO) == [[pytest.approx(0.5**0.5), None, pytest.approx(-(0.5**0.5))]]


def test_one_score_of_four_gives_no_signal():
    groups = [Group("g", Query("q"), [trajectory(1.0), trajectory(None), trajectory(None), trajectory(None)])]
    assert group_advantages(groups, ALGO) == [[0.0, None, None, None]]


def test_tied_groups_leave_the_loss_or_stay_in_its_denominator():
    groups = [
        Group("a", Query("a"), [trajectory(1.0)] * 4),
        Group("b", Query("b"), [trajectory(r) for r in (1.0, 0.0, 0.0, 1.0)]),
    ]
    values = group_advantages(groups, ALGO)
    assert values[0] == [0.0] * 4
    assert len(training_samples(groups, values, replace(ALGO, tied_groups="drop"))) == 4
    assert len(training_samples(groups, values, replace(ALGO, tied_groups="keep"))) == 8


def test_the_one_reward_of_a_report_goes_to_all_its_actions_and_counts_once_in_the_statistics():
    """Reports of 1, 3 and 90 actions: were statistics over actions, the mean would be near the third report's reward."""
    group = Group("g", Query("q"), [trajectory(r) for r in (0.0, 0.5, 1.0)])
    for report, actions in zip(group.trajectories, (1, 3, 90), strict=True):
        report.sequences *= actions
    values = group_advantages([group], ALGO)
    assert values == [[-1.0, 0.0, 1.0]]  # mean 0.5, sample standard deviation 0.5
    samples = training_samples([group], values, ALGO)
    assert [(s.trajectory, s.advantage) for s in samples] == [(0, -1.0)] + [(1, 0.0)] * 3 + [(2, 1.0)] * 90


def test_truncated_replies_train_or_are_masked_by_choice():
    groups = [Group("a", Query("a"), [trajectory(1.0), trajectory(0.0, "truncated")])]
    values = group_advantages(groups, ALGO)
    assert len(training_samples(groups, values, replace(ALGO, truncated="keep"))) == 2
    assert len(training_samples(groups, values, replace(ALGO, truncated="mask"))) == 1


def test_sums_of_ranks_become_means_over_all_tokens():
    one = {"tokens": 2.0, "entropy_sum": 2.0, "loss": 0.5, "row_tokens": 9.0, "grad_norm": 3.0, "lr": 0.1, "train_s": 1.0}
    two = {"tokens": 6.0, "entropy_sum": 14.0, "loss": -0.25, "row_tokens": 11.0, "grad_norm": 3.0, "lr": 0.1, "train_s": 2.0}
    assert combine([one, two]) == {
        "entropy": 2.0, "loss": 0.25, "trained_tokens": 8.0, "row_tokens": 20.0, "grad_norm": 3.0, "lr": 0.1, "train_s": 2.0
    }  # fmt: skip


class FakeRollouts:
    """Groups whose rewards are told by a function of how many groups came before."""

    def __init__(self, rewards):
        self.rewards, self.made = rewards, 0

    async def run_group(self, group_id, query, group_size):
        self.made += 1
        return Group(group_id, query, [trajectory(r) for r in self.rewards(self.made)])


def run_producer(rollouts, count):
    async def main():
        buffer, failures = Buffer(count, 0), Counter()
        task = asyncio.create_task(produce(rollouts, ALGO, QueryCursor([Query("a"), Query("b")], 0), buffer, failures, count))
        try:
            return await _first(buffer.take(count), task, 5.0, lambda: str(buffer.waiting())), failures
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    return asyncio.run(main())


def test_a_group_without_two_scores_is_replaced_by_another_query():
    groups, failures = run_producer(FakeRollouts(lambda n: [None] * 3 + [1.0] if n == 1 else [1.0, 0.0, 0.0, 1.0]), 2)
    assert len(groups) == 2 and all(sum(t.usable for t in g.trajectories) == 4 for g in groups)
    assert failures["reward_unavailable"] == 3


def test_too_many_failures_end_the_run_with_their_cause():
    with pytest.raises(RunFailed, match="rollouts failed.*judge down"):
        run_producer(FakeRollouts(lambda n: [None] * 8), 1)


def test_a_step_that_never_fills_says_who_waits():
    async def main():
        buffer = Buffer(2, 0)
        await buffer.admit()
        forever = asyncio.create_task(asyncio.sleep(60))
        try:
            await _first(buffer.take(2), forever, 0.05, lambda: str(buffer.waiting()))
        finally:
            forever.cancel()

    with pytest.raises(RunFailed, match="no full batch within 0 s; groups: .'in_flight': 1, 'ready': 0"):
        asyncio.run(main())
