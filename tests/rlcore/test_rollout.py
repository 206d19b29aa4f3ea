import asyncio
from dataclasses import replace

from rlcore.errors import InfrastructureFailure
from rlcore.policy import ChatRenderer
from rlcore.rollout import Rollouts
from rlcore.sampling import Sampling
from rlcore.types import Outcome, Query, scored, unavailable
from tests.fakes import CharTokenizer, ScriptedEngine


class Ask:
    def __init__(self, before=None):
        self.before, self.calls = before, 0

    async def run(self, query, policy):
        self.calls += 1
        if self.before is not None:
            await self.before(self.calls)
        reply = await policy.generate([{"role": "user", "content": query.id}])
        return Outcome({"reply": reply.text})


async def reward(trajectory):
    return scored(float(len(trajectory.outcome.data["reply"])))


def rollouts(environment, engine=None, score=reward, **changes):
    base = Rollouts(
        environment,
        engine or ScriptedEngine(lambda p: "abc"),
        ChatRenderer(CharTokenizer()),
        score,
        Sampling(max_tokens=10, seed=1),
        500,
        trajectory_timeout_s=5.0,
        call_timeout_s=5.0,
    )
    return replace(base, **changes)


def test_a_group_holds_every_rollout_in_order_with_distinct_seeds():
    engine = ScriptedEngine(lambda p: "abc")
    group = asyncio.run(rollouts(Ask(), engine).run_group("000001:q", Query("q"), 4))
    assert [t.index for t in group.trajectories] == [0, 1, 2, 3]
    assert all(t.usable and t.reward.value == 3.0 and t.group_id == "000001:q" for t in group.trajectories)
    assert len({s.seed for _, s in engine.asked}) == 4


def test_the_same_rollout_gets_the_same_seed_again():
    engine = ScriptedEngine(lambda p: "abc")
    for _ in range(2):
        asyncio.run(rollouts(Ask(), engine).run_trajectory("g", Query("q"), 0))
    assert engine.asked[0][1].seed == engine.asked[1][1].seed


def test_an_exception_in_one_environment_is_data_and_the_others_go_on():
    async def third_fails(call):
        if call == 3:
            raise KeyError("passages")

    group = asyncio.run(rollouts(Ask(third_fails)).run_group("g", Query("q"), 4))
    failed = [t for t in group.trajectories if t.status == "failed"]
    assert len(failed) == 1 and failed[0].failure.kind == "data" and "KeyError" in failed[0].failure.message
    assert "test_rollout.py" in failed[0].failure.message
    assert failed[0].reward.value is None  # not a zero
    assert sum(t.usable for t in group.trajectories) == 3


def test_lost_machinery_is_tried_again_and_then_reported_as_such():
    async def first_fails(call):
        if call == 1:
            raise InfrastructureFailure("engine 0 died")

    environment = Ask(first_fails)
    assert asyncio.run(rollouts(environment).run_trajectory("g", Query("q"), 0)).usable and environment.calls == 2

    async def always(call):
        raise InfrastructureFailure("engine 0 died")

    environment = Ask(always)
    t = asyncio.run(rollouts(environment).run_trajectory("g", Query("q"), 0))
    assert t.failure.kind == "infrastructure" and environment.calls == 2


def test_a_rollout_that_hangs_ends_at_its_deadline():
    async def hang(call):
        await asyncio.sleep(60)

    t = asyncio.run(rollouts(Ask(hang), trajectory_timeout_s=0.05, infrastructure_retries=0).run_trajectory("g", Query("q"), 0))
    assert t.status == "failed" and t.failure.kind == "infrastructure" and "TimeoutError" in t.failure.message


def test_an_unavailable_reward_leaves_the_group_with_its_reason():
    async def judge_down(trajectory):
        return unavailable("judge: HTTP 402")

    t = asyncio.run(rollouts(Ask(), score=judge_down).run_trajectory("g", Query("q"), 0))
    assert not t.usable and t.failure.kind == "reward_unavailable" and t.failure.message == "judge: HTTP 402"


def test_a_cut_reply_is_truncated_and_keeps_its_score():
    t = asyncio.run(rollouts(Ask(), ScriptedEngine(lambda p: "much too long for ten")).run_trajectory("g", Query("q"), 0))
    assert t.status == "truncated" and t.usable and t.sequences[0].finish_reason == "length"


def test_a_rollout_that_went_on_from_a_cut_reply_is_complete():
    class Twice:
        async def run(self, query, policy):
            for content in "ab":
                await policy.generate([{"role": "user", "content": content}])
            return Outcome({"reply": ""})

    engine = ScriptedEngine(lambda p: "much too long for ten" if len(engine.asked) == 1 else "abc")
    t = asyncio.run(rollouts(Twice(), engine).run_trajectory("g", Query("q"), 0))
    assert [s.finish_reason for s in t.sequences] == ["length", "stop"] and t.status == "completed"


def test_an_environment_that_never_asks_cannot_train():
    class Silent:
        async def run(self, query, policy):
            return Outcome()

    t = asyncio.run(rollouts(Silent()).run_trajectory("g", Query("q"), 0))
    assert t.status == "failed" and "never asked" in t.failure.message
