"""Training beside slow judges, on a virtual clock: the loop, buffer, rollouts, reward pool and judge pool are the real ones.

Only the model, the learner and the judge's endpoint are fakes, and the reward's worker lives in this process.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from rlcore import reward_pool
from rlcore.checkpoint import Checkpoints, RunState
from rlcore.judge_actors import Judges
from rlcore.judge_config import JudgeLimitsConfig
from rlcore.judge_pool import JudgePool
from rlcore.loop import train
from rlcore.policy import ChatRenderer
from rlcore.queries import QueryCursor
from rlcore.reward_pool import RewardPool
from rlcore.rollout import Rollouts
from rlcore.sampling import Sampling
from rlcore.targets import Target
from rlcore.types import Outcome, Query
from tests.fakes import CharTokenizer, ScriptedEngine
from tests.rlcore.judge_stub import Stub, completion, now, pool, virtual
from tests.rlcore.test_loop import FakeRuntime

MINUTE_S = 60.0
NEVER = 1e9
ROLLOUT_S, PUSH_S = 10.0, 20.0


class Pool(RewardPool):
    """Its worker in this process, as it is but for Ray."""

    def _spawn(self) -> Any:
        worker = reward_pool._Worker(self.concurrency_per_worker)
        methods = {name: SimpleNamespace(remote=getattr(worker, name)) for name in ("build", "self_test", "score")}
        actor = SimpleNamespace(**methods)
        return reward_pool._Lane(actor, asyncio.create_task(self._ready(actor)))


class Numbers:
    """The n-th rollout's result is "text n"."""

    def __init__(self) -> None:
        self.count = itertools.count()

    async def run(self, query: Query, policy: Any) -> Outcome:
        text = f"text {next(self.count)}"
        await policy.generate([{"role": "user", "content": "?"}])
        return Outcome({"text": text})


class JudgedRuntime(FakeRuntime):
    """Counts, for every step, when it was taken and which texts it was taken on."""

    def __init__(self, judge: JudgePool, rewards: RewardPool, **algo: Any) -> None:
        super().__init__(itertools.repeat(1.0), **algo)
        self.config = replace(self.config, cluster=replace(self.config.cluster, step_timeout_s=50 * MINUTE_S))
        self.judges, self.rewards = Judges({}), rewards
        self.judges.proxies = {"judge": judge}
        self.engine = ScriptedEngine(lambda prompt: "!", delay_s=ROLLOUT_S)
        self.pushed: list[float] = []

    def rollouts(self, *_: Any) -> Rollouts:
        renderer = ChatRenderer(CharTokenizer())
        return Rollouts(Numbers(), self.engine, renderer, self.rewards.score, Sampling(max_tokens=4), 100, 1e3, 1e3)

    async def push(self) -> dict[str, float]:
        await asyncio.sleep(PUSH_S)
        figures = await super().push()
        self.engine.version = self.version
        self.pushed.append(now())
        return figures


def run(
    monkeypatch: pytest.MonkeyPatch, folder: Any, seconds: Callable[[int], float], judge: dict[str, Any], **algo: Any
) -> SimpleNamespace:
    """Train with a judge that takes `seconds(n)` for the n-th text. Returns stub, runtime and the figures of the steps."""

    def answer(host: str, number: int, body: dict[str, Any]) -> Any:
        n = int(body["messages"][0]["content"].split()[-1])
        return seconds(n), 200, {}, completion(f'{{"score": {1 + n % 5}}}')

    stub = Stub(monkeypatch, answer)
    monkeypatch.setattr(reward_pool.ray, "kill", lambda actor: None)
    logged: list[dict[str, float]] = []
    metrics = SimpleNamespace(log=lambda figures, stage, step: logged.append(figures), wandb_id=None)

    async def main() -> JudgedRuntime:
        asked = pool("a", **judge)
        rewards = Pool(
            Target("tests.rlcore.judged_rewards.Rated"), workers=1, timeout_s=2 * judge["budget_s"] + 120,
            concurrency_per_worker=256, judges={"judge": asked},
        )  # fmt: skip
        await rewards.start(60)
        runtime = JudgedRuntime(asked, rewards, **algo)
        await train(
            runtime,
            QueryCursor([Query("q")], 0),
            RunState(),
            metrics,
            folder,
            Checkpoints(folder / "checkpoints", [], None, 0, 5.0),
        )  # type: ignore[arg-type]
        await rewards.close()
        return runtime

    return SimpleNamespace(stub=stub, runtime=virtual(main()), steps=logged)


def test_training_uses_what_the_limits_allow(monkeypatch, tmp_path):
    """Four minutes on average with a tail of 30, 64 trajectories at a time, 16 of which may ask."""

    def seconds(n: int) -> float:  # 24 of 25 take 3.29 minutes on average, the others 12, 18, 24 and 30 in turn
        return MINUTE_S * (12 + 6 * (n // 25 % 4) if n % 25 == 7 else 1 + 4.58 * (37 * n % 100) / 99)

    judge = {"limits": JudgeLimitsConfig(16), "timeout_s": 2400, "budget_s": 36000}
    algo = {"steps": 16, "queries_per_step": 4, "group_size": 4, "groups_in_flight": 16, "max_staleness": 12}
    done = run(monkeypatch, tmp_path, seconds, judge, **algo)
    stub, pushed = done.stub, done.runtime.pushed
    assert len(stub.arrived) == 16 * 16 and stub.most == 16
    # Until the last question all but the 64 of them had been trained on: a slot is free once its group was.
    last = max(stub.arrived)
    assert sum(t <= last for t in pushed) >= (256 - 64) / 16
    assert 3.8 < sum(stub.seconds) / MINUTE_S / 256 < 4.2
    used = sum(min(last, start + s) - start for start, s in zip(stub.arrived, stub.seconds, strict=True)) / (16 * last)
    print(
        f"training: {used:.1%} of the judge's 16 places used, staleness up to {max(f['staleness_max'] for f in done.steps):.0f}"
    )
    assert used >= 0.95
    assert max(stub.seconds) == 30 * MINUTE_S and max(f["staleness_max"] for f in done.steps) <= 12
    waits = [b - a for a, b in itertools.pairwise([t for t in pushed if t <= last])]
    assert max(waits) < 10 * MINUTE_S  # no step waits for the longest


# A rollout takes 10 s, a judge's answer 60 and a push 20; the first text's answer takes 1,800.
@pytest.mark.parametrize(
    ("algo", "pushed", "staleness"),
    [
        # The second group goes first, at 70 s. The first is 1 version old then, and no other step may go before it.
        ({"max_staleness": 1}, [90, 1830, 1850, 1920], [0, 1, 1, 1]),
        # With room for three versions and two groups at a time, it is the last.
        ({"max_staleness": 3, "groups_in_flight": 2}, [90, 180, 270, 1830], [0, 0, 0, 3]),
        ({"max_staleness": 0}, [1830, 1920, 2010, 2100], [0, 0, 0, 0]),
    ],
)
def test_the_learner_waits_for_the_slowest_only_where_the_bound_on_staleness_asks_for_it(
    monkeypatch, tmp_path, algo, pushed, staleness
):
    judge = {"timeout_s": 2400, "budget_s": 36000}
    done = run(monkeypatch, tmp_path, lambda n: 60.0 if n else 1800.0, judge, steps=4, group_size=2, **algo)
    assert [round(t) for t in done.runtime.pushed] == pushed
    assert [f["staleness_max"] for f in done.steps] == staleness


def test_what_is_never_answered_leaves_its_group_and_training_goes_on(monkeypatch, tmp_path):
    """One of the first group's three texts, and two of the second's: that one is replaced by another query."""
    judge = {"timeout_s": 300, "budget_s": 620, "attempts": 2}
    seconds = {0: NEVER, 4: NEVER, 5: NEVER}
    done = run(
        monkeypatch, tmp_path, lambda n: seconds.get(n, 60.0), judge, steps=4, group_size=3, max_staleness=1, groups_in_flight=2
    )
    rows = [json.loads(line) for line in (tmp_path / "trajectories.jsonl").read_text().splitlines()]
    scored = {row["outcome"]["data"]["text"]: row["reward"]["value"] for row in rows}
    assert [len(list(group)) for _, group in itertools.groupby(rows, key=lambda row: row["group_id"])] == [3] * 4
    assert scored["text 0"] is None and not {"text 3", "text 4", "text 5"} & scored.keys()
    assert all(value == 1 + int(text.split()[-1]) % 5 for text, value in scored.items() if text != "text 0")  # and no 0
    (reason,) = [row["reward"]["reason"] for row in rows if row["reward"]["value"] is None]
    assert "judge failed" in reason and "TimeoutError" in reason
    last = done.steps[-1]
    assert (last["rollouts/all"], last["rollouts/reward_unavailable"]) == (15, 3)
    assert (last["judge/judge/failed"], last["reward_pool/unavailable"], last["reward_pool/scored"]) == (3, 3, 12)
    assert done.runtime.pushed[-1] < 2 * 620 + 120  # within what a question may take
