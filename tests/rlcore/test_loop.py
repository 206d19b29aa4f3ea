"""What the loop does when rollouts fail or tie and when gradients are not finite, without actors."""

import asyncio
import json
import math
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest

from rlcore.batch import Row
from rlcore.buffer import Buffer
from rlcore.checkpoint import Checkpoints, RunState
from rlcore.errors import ConfigError, RunFailed
from rlcore.judge_actors import Judges
from rlcore.kl import KL
from rlcore.loop import _first, check_sampling, combine, kl_penalties, produce, train
from rlcore.queries import QueryCursor
from rlcore.sampling import Sampling
from rlcore.types import Group, Query
from tests.rlcore.test_config import composed
from tests.rlcore.trajectories import trajectory

CONFIG = composed("algo.queries_per_step=1")
ALGO = CONFIG.algo


def test_sums_of_ranks_become_means_over_all_tokens():
    step = {"row_tokens": 9.0, "grad_norm": 3.0, "lr": 0.1, "nonfinite": 0.0, "train_s": 1.0}
    one = step | {"tokens": 2.0, "entropy_sum": 2.0, "loss": 0.5, "policy_loss": 0.25, "kl_loss": 0.25}
    two = step | {"tokens": 6.0, "entropy_sum": 14.0, "loss": -0.25, "policy_loss": -0.5, "kl_loss": 0.25, "train_s": 2.0}
    assert combine([one, two]) == {
        "entropy": 2.0, "loss": 0.25, "policy_loss": -0.25, "kl_loss": 0.5, "trained_tokens": 8.0, "row_tokens": 18.0,
        "grad_norm": 3.0, "lr": 0.1, "nonfinite": 0.0, "train_s": 2.0,
    }  # fmt: skip


def test_the_mismatch_of_ranks_is_that_of_all_their_tokens():
    """Two tokens with log-ratios 0 and ln 2, one on each rank: mean ln 2 / 2, spread ln 2 / 2, effective samples 9 / 10."""
    step = {"loss": 0.0, "row_tokens": 1.0, "grad_norm": 1.0, "lr": 0.1, "nonfinite": 0.0, "train_s": 1.0, "tokens": 1.0}
    ln2 = math.log(2)
    one = {"log_ratio_sum": 0.0, "log_ratio_sq_sum": 0.0, "importance_sum": 1.0, "importance_sq_sum": 1.0}
    two = {"log_ratio_sum": ln2, "log_ratio_sq_sum": ln2**2, "importance_sum": 2.0, "importance_sq_sum": 4.0}
    figures = combine([step | one, step | two])
    assert figures["log_ratio"] == pytest.approx(ln2 / 2) and figures["log_ratio_std"] == pytest.approx(ln2 / 2)
    assert figures["effective_samples"] == pytest.approx(0.9)


class FakeRollouts:
    """Groups whose rewards are told by a function of how many groups came before."""

    def __init__(self, rewards):
        self.rewards, self.made, self.sampling = rewards, 0, Sampling()

    async def run_group(self, group_id, query, group_size):
        self.made += 1
        return Group(group_id, query, [trajectory(r) for r in self.rewards(self.made)])


def run_producer(rollouts, count, algo=ALGO):
    async def main():
        buffer, failures = Buffer(count, 0), Counter()
        task = asyncio.create_task(produce(rollouts, algo, QueryCursor([Query("a"), Query("b")], 0), buffer, failures, count))
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


def test_tied_groups_are_replaced_by_other_queries_up_to_a_bound():
    ties = FakeRollouts(lambda n: [1.0, 1.0, 1.0] if n < 3 else [1.0, 0.0, 0.0])
    (group,), counts = run_producer(ties, 1, replace(ALGO, resample_tied=2))
    assert ties.made == 3 and counts["tied"] == 2 and counts["all"] == 9 and group.trajectories[1].reward.value == 0.0
    hopeless = FakeRollouts(lambda n: [0.0, 0.0, 0.0])
    (group,), counts = run_producer(hopeless, 1, replace(ALGO, resample_tied=2))
    assert hopeless.made == 3 and counts["tied"] == 2 and len(group.trajectories) == 3  # trained on, or skipped, as it is
    (group,), counts = run_producer(FakeRollouts(lambda n: [1.0, 1.0, 1.0]), 1)
    assert counts["tied"] == 0


def test_a_cut_distribution_is_refused():
    check_sampling(SimpleNamespace(sampling=Sampling(temperature=0.6)))
    with pytest.raises(ConfigError, match="top_p=1, got 0.8"):
        check_sampling(SimpleNamespace(sampling=Sampling(top_p=0.8)))


def remote(function):
    """An actor's method without the actor."""

    async def call(*arguments):
        return function(*arguments)

    return SimpleNamespace(remote=call)


class FakeRuntime:
    """Rollouts that always differ, a learner whose gradients have the given norms, and a count of pushes."""

    def __init__(self, norms, **changes):
        # the fake rollouts are all of version 0
        self.config = replace(CONFIG, algo=replace(ALGO, **{"checkpoint_every": 0, "max_staleness": 9, **changes}))
        self.norms, self.pushes, self.version = iter(norms), 0, 0
        self.first: list[bool] = []
        self.learners = [SimpleNamespace(train_step=remote(self.step))]
        self.rewards = SimpleNamespace(stats=dict)
        self.judges = Judges({})

    def step(self, rows, loss, first):
        self.first.append(first)
        norm = next(self.norms)
        step = {"tokens": 6.0, "loss": 0.0, "lr": 0.1, "train_s": 0.0, "row_tokens": 9.0}
        return step | {"grad_norm": norm, "nonfinite": float(not math.isfinite(norm))}

    def rollouts(self, *arguments):
        return FakeRollouts(lambda n: [1.0, 0.0, 0.0])

    async def push(self):
        self.pushes, self.version = self.pushes + 1, self.version + 1
        return {"parity": 0.0, "push_s": 0.0, "probe_s": 0.0}


def run_training(runtime, folder):
    logged = []
    metrics = SimpleNamespace(log=lambda figures, stage, step: logged.append(figures), wandb_id=None)

    async def main():
        async with Checkpoints(folder / "checkpoints", [], None, 0, 5.0) as checkpoints:
            await train(runtime, QueryCursor([Query("a")], 0), RunState(), metrics, folder, checkpoints)

    asyncio.run(main())
    return logged


def test_a_gradient_that_is_not_finite_is_counted_and_dumped_and_training_goes_on(tmp_path):
    runtime = FakeRuntime([1.0, math.nan, 1.0, math.inf], steps=4)
    logged = run_training(runtime, tmp_path)
    assert [f["nonfinite"] for f in logged] == [0.0, 1.0, 0.0, 1.0] and runtime.pushes == 4
    assert runtime.first == [True, False, False, False]
    assert sorted(p.name for p in tmp_path.glob("nonfinite-*")) == ["nonfinite-000002.json", "nonfinite-000004.json"]
    dumped = json.loads((tmp_path / "nonfinite-000002.json").read_text())
    assert dumped["figures"]["grad_norm"] == "nan"
    assert sum(len(Row(**row).targets) for row in dumped["rows"]) == 6


def test_a_run_of_such_steps_ends_before_the_push(tmp_path):
    runtime = FakeRuntime([1.0, math.nan, math.nan], steps=9, max_nonfinite_steps=2)
    with pytest.raises(RunFailed, match="2 steps in a row had a gradient that is not finite; see .*nonfinite"):
        run_training(runtime, tmp_path)
    assert runtime.pushes == 2  # of the sound step and of the first skipped one, whose weights are those of the sound one


def test_a_judge_that_is_lost_ends_the_training(tmp_path):
    class Lost(Judges):
        async def watch(self):
            raise RunFailed("a judge is lost: out of memory")

    runtime = FakeRuntime([])
    runtime.judges, runtime.rollouts = Lost({}), lambda *_: FakeRollouts(lambda n: [None] * 99)
    with pytest.raises(RunFailed, match="a judge is lost: out of memory"):
        run_training(runtime, tmp_path)


def test_rollouts_that_fail_end_the_training_and_the_steps_that_were_taken_are_kept(tmp_path):
    runtime = FakeRuntime([1.0, 1.0], steps=9)
    runtime.rollouts = lambda *_: FakeRollouts(lambda n: [1.0, 0.0, 0.0] if n <= 2 else [None] * 3)
    with pytest.raises(RunFailed, match="rollouts failed .*the last: reward_unavailable: judge down"):
        run_training(runtime, tmp_path)
    state = json.loads((tmp_path / "checkpoints" / "step-000002" / "run.json").read_text())
    assert (state["step"], state["version"], len(list((tmp_path / "checkpoints").glob("step-*")))) == (2, 2, 1)


def test_kl_in_the_reward_is_summed_over_each_trajectorys_tokens():
    """The sampler gave every token -1. The reference gives -1.5 on one rank and -3 on the other: k1 is 0.5 and 2 a token."""
    groups = [Group("g", Query("q"), [trajectory(1.0, tokens=2), trajectory(None), trajectory(0.0, tokens=3)])]
    for t, prompt in zip(groups[0].trajectories, (1, 1, 7), strict=True):
        t.sequences[0].token_ids[0] = prompt  # no common prompt, so that each rank gets one row
    learners = [
        SimpleNamespace(score_reference=remote(lambda rows, value=value: [[value] * len(r.targets) for r in rows]))
        for value in (-1.5, -3.0)
    ]
    algo = replace(ALGO, kl=KL(0.1, "k1", "reward"), row_tokens=4)
    runtime = SimpleNamespace(config=replace(CONFIG, algo=algo), learners=learners)
    penalties, figures = asyncio.run(kl_penalties(runtime, groups))
    # the longer row goes to the first rank: 3 tokens of 0.5; the other: 2 tokens of 2
    assert penalties == [[pytest.approx(0.1 * 4.0), 0.0, pytest.approx(0.1 * 1.5)]]
    assert figures["kl"] == pytest.approx((4.0 + 1.5) / 5)
