"""The pool on a real local Ray. `tests.rlcore.pool_rewards` is importable in the workers because Ray gives them the driver's
current directory, which is the project root."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from rlcore.errors import ConfigError, RunFailed
from rlcore.reward_pool import RewardPool, _Lane
from rlcore.targets import Target
from rlcore.types import Outcome, Query, RewardResult, Trajectory

REWARDS = "tests.rlcore.pool_rewards"
WARP = Path(__file__).parents[2] / "conf" / "reward" / "warp_atomic.yaml"


def doing(do: str, **data: Any) -> Trajectory:
    return Trajectory(Query("q"), "g", 0, outcome=Outcome({"do": do, **data}))


def with_pool(use: Callable[[RewardPool], Awaitable[Any]], reward: str, **settings: Any) -> Any:
    """Start a pool of one worker (unless told otherwise), let `use` work with it, close it."""

    async def main() -> Any:
        spec = Target(f"{REWARDS}.{reward}", settings.pop("args", {}))
        pool = RewardPool(spec, **{"workers": 1, "timeout_s": 20.0, **settings})
        await pool.start(60)
        try:
            return await asyncio.wait_for(use(pool), 120)
        finally:
            await pool.close()

    return asyncio.run(main())


def counts(pool: RewardPool) -> tuple[float, float, float, float]:
    stats = pool.stats()
    return stats["scored"], stats["unavailable"], stats["retries"], stats["killed"]


async def gone(pid: float) -> bool:
    """Does the process end within ten seconds?"""
    for _ in range(100):
        try:
            os.kill(int(pid), 0)
        except ProcessLookupError:
            return True
        await asyncio.sleep(0.1)
    return False


@pytest.mark.slow
def test_what_a_reward_gives_back(cluster: None) -> None:
    async def use(pool: RewardPool) -> None:
        right = await pool.score(doing("score", value=0.25))
        assert (right.value, right.reason) == (0.25, None)
        for do, reason in [
            ("raise", "ValueError: no such key: answer (pool_rewards.py:"),
            ("number", "a reward must return a RewardResult, got float"),
            ("nan", "reward value must be a finite number, got nan"),
            ("bool component", "reward right must be a finite number, got True"),
            ("unavailable", "the judge is down"),
        ]:
            result = await pool.score(doing(do))
            assert not result.available
            assert result.reason.startswith(reason), result.reason
        assert counts(pool) == (1, 5, 1, 0)  # only the exception was tried again, once
        assert pool.stats()["seconds"] > 0
        one_thread = await pool.score(doing("environment"))
        assert (one_thread.value, one_thread.components["main_thread"]) == (1.0, 0.0)

    with_pool(use, "act")


@pytest.mark.slow
def test_known_right_is_1_and_known_wrong_0_in_a_real_worker(cluster: None) -> None:
    async def main() -> list[RewardResult]:
        pool = RewardPool(Target(**yaml.safe_load(WARP.read_text(encoding="utf-8"))), workers=1, timeout_s=20)
        await pool.start(60)
        sample = {"action": "search", "language": "en", "reference": {"golden_doc_ids": ["d1"]}}
        action = {"name": "search", "keywords": ["peru"]}
        right = {"valid": True, "has_thought": True, "action": action, "retrieved": ["d1"]}
        wrong = {"valid": False, "has_thought": True, "action": None, "retrieved": []}
        results = [await pool.score(Trajectory(Query("q", sample), "g", 0, outcome=Outcome(o))) for o in (right, wrong, {})]
        await pool.close()
        return results

    right, wrong, broken = asyncio.run(main())
    assert right == RewardResult(1.0, {"format": 1.0, "recall": 1.0, "precision": 1.0, "f1": 1.0})
    assert wrong == RewardResult(0.0, dict.fromkeys(right.components, 0.0))
    assert broken.value is None
    assert "outcome.valid" in broken.reason


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"workers": 0}, "workers must be at least 1, got 0"),
        ({"attempts": 0}, "attempts must be at least 1"),
        ({"concurrency_per_worker": 0}, "concurrency_per_worker"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"timeout_s": float("nan")}, "timeout_s"),
        ({"worker_cpus": -1.0}, "worker_cpus"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        RewardPool(Target(f"{REWARDS}.act"), **{"workers": 1, "timeout_s": 1.0, **settings})


def failed_start(
    monkeypatch: pytest.MonkeyPatch, self_test: Callable[[], Awaitable[None]], deadline_s: float, **options: Any
) -> str:
    """What a pool says whose worker is ready at once and whose self-test fails."""
    killed: list[Any] = []
    monkeypatch.setattr("ray.kill", killed.append)

    async def main() -> None:
        pool = RewardPool(Target(f"{REWARDS}.act"), workers=1, timeout_s=1.0, **options)
        actor = SimpleNamespace(self_test=SimpleNamespace(remote=self_test))
        monkeypatch.setattr(pool, "_spawn", lambda: _Lane(actor, asyncio.create_task(asyncio.sleep(0, 1))))
        await pool.start(deadline_s)

    with pytest.raises((ConfigError, RunFailed)) as failed:
        asyncio.run(main())
    assert len(killed) == 1
    return f"{type(failed.value).__name__}: {failed.value}"


def test_a_self_test_that_outlives_the_start_says_what_bounds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    said = failed_start(monkeypatch, lambda: asyncio.sleep(60), 0.05)
    assert said.startswith("RunFailed: the reward's self-test, as fast as its judges' limits allow, did not end within 0.05s")
    assert said.endswith("(cluster.start_timeout_s)")


def test_a_self_test_that_fails_names_the_folders_of_the_judges_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuses() -> None:
        raise ConfigError("good is not above bad")

    assert failed_start(monkeypatch, refuses, 5.0) == "ConfigError: good is not above bad"
    said = failed_start(monkeypatch, refuses, 5.0, caches=["/runs/judge-cache"])
    assert said.startswith("ConfigError: good is not above bad (a judge's answers are kept in /runs/judge-cache: ")


def test_score_needs_start() -> None:
    pool = RewardPool(Target(f"{REWARDS}.act"), workers=1, timeout_s=1.0)
    with pytest.raises(RuntimeError, match="start"):
        asyncio.run(pool.score(doing("score", value=1.0)))


@pytest.mark.slow
@pytest.mark.parametrize(("failures", "value", "stats"), [(1, 0.5, (1, 0, 1, 0)), (2, None, (0, 1, 1, 0))])
def test_an_exception_is_tried_again_within_the_attempts(cluster: None, failures: int, value: float | None, stats: tuple) -> None:
    async def use(pool: RewardPool) -> None:
        result = await pool.score(doing("anything"))
        assert result.value == value
        assert value is not None or result.reason.startswith("RuntimeError: try again (")
        assert counts(pool) == stats

    with_pool(use, "Flaky", args={"failures": failures, "value": 0.5}, attempts=2)


@pytest.mark.slow
@pytest.mark.parametrize("reward", ["act", "act_async"])
def test_calls_run_side_by_side_on_the_least_loaded_worker(cluster: None, reward: str) -> None:
    async def use(pool: RewardPool) -> None:
        await asyncio.gather(*(pool.score(doing("sleep", seconds=0.2, value=0)) for _ in range(2)))  # the first calls warm up
        began = time.monotonic()
        results = await asyncio.gather(*(pool.score(doing("sleep", seconds=1.0, value=i)) for i in range(8)))
        assert time.monotonic() - began < 3.0  # one after another: 8 s
        assert [r.value for r in results] == list(range(8))
        pids = [r.components["pid"] for r in results]
        assert sorted(pids.count(pid) for pid in set(pids)) == [4, 4]

    with_pool(use, reward, workers=2)


@pytest.mark.slow
def test_a_call_that_waits_for_room_does_not_use_up_its_time(cluster: None) -> None:
    async def use(pool: RewardPool) -> None:
        began = time.monotonic()
        results = await asyncio.gather(*(pool.score(doing("sleep", seconds=0.7, value=i)) for i in range(3)))
        assert time.monotonic() - began >= 2.1  # one at a time, the last one begins after 1.4 s
        assert [r.value for r in results] == [0, 1, 2]

    with_pool(use, "act", concurrency_per_worker=1, timeout_s=1.2)


@pytest.mark.slow
@pytest.mark.parametrize(("reward", "do"), [("act", "sleep"), ("act_async", "stubborn")])
def test_a_hung_scorer_is_killed_and_its_neighbours_are_not_blamed(cluster: None, reward: str, do: str) -> None:
    async def use(pool: RewardPool) -> None:
        pid = (await pool.score(doing("score", value=0))).components["pid"]
        hung = asyncio.create_task(pool.score(doing(do, seconds=100, value=9)))
        await asyncio.sleep(3.5)
        neighbour = asyncio.create_task(pool.score(doing("sleep", seconds=2.5, value=1)))  # needs 6 s, cut short after 4 or 5
        result = await hung
        assert (result.value, result.reason) == (None, "timeout after 4s")
        assert await gone(pid)
        again = await neighbour
        assert again.value == 1
        assert again.components["pid"] != pid
        assert counts(pool) == (2, 1, 0, 1)  # being cut short is no attempt
        assert (await pool.score(doing("score", value=0.5))).value == 0.5

    with_pool(use, reward, timeout_s=4.0, attempts=1)


@pytest.mark.slow
def test_a_slow_coroutine_is_cancelled_without_killing_its_worker(cluster: None) -> None:
    async def use(pool: RewardPool) -> None:
        pid = (await pool.score(doing("score", value=0))).components["pid"]
        slow, quick = await asyncio.gather(
            pool.score(doing("sleep", seconds=100, value=9)), pool.score(doing("sleep", seconds=0.5, value=1))
        )
        assert slow.reason == "timeout after 1s"
        assert (quick.value, quick.components["pid"]) == (1, pid)
        assert counts(pool) == (2, 1, 0, 0)

    with_pool(use, "act_async", timeout_s=1.0)


@pytest.mark.slow
@pytest.mark.parametrize(("do", "reason"), [("exit", "the reward worker died: "), ("freeze", "timeout after 2s")])
def test_the_one_that_loses_a_worker_is_found_among_its_neighbours(cluster: None, do: str, reason: str) -> None:
    async def use(pool: RewardPool) -> None:
        pid = (await pool.score(doing("score", value=0))).components["pid"]
        before = [asyncio.create_task(pool.score(doing("sleep", seconds=1.0, value=i))) for i in range(3)]
        await asyncio.sleep(0.3)  # the innocent started first, so their deadlines pass first
        culprit = await pool.score(doing(do))
        assert not culprit.available
        assert culprit.reason.startswith(reason)
        assert [(await task).value for task in before] == [0, 1, 2]
        assert await gone(pid)
        assert counts(pool) == (4, 1, 0, 2)  # lost in company, then alone

    with_pool(use, "act", timeout_s=2.0, attempts=1)


@pytest.mark.slow
def test_a_cancelled_caller_leaves_no_hidden_load(cluster: None) -> None:
    async def use(pool: RewardPool) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(pool.score(doing("sleep", seconds=1.0, value=1)), 0.2)
        began = time.monotonic()
        assert (await pool.score(doing("score", value=2))).value == 2
        assert time.monotonic() - began > 0.6  # it had to wait for the abandoned one
        assert counts(pool) == (2, 0, 0, 0)

    with_pool(use, "act", concurrency_per_worker=1)


@pytest.mark.slow
def test_close_ends_calls_and_workers(cluster: None) -> None:
    async def use(pool: RewardPool) -> None:
        pid = (await pool.score(doing("score", value=0))).components["pid"]
        pending = [asyncio.create_task(pool.score(doing("sleep", seconds=100, value=1))) for _ in range(2)]
        await asyncio.sleep(0.5)
        began = time.monotonic()
        await pool.close()
        assert {(await task).reason for task in pending} == {"the reward pool is closed"}
        assert time.monotonic() - began < 5
        assert await gone(pid)
        await pool.close()
        assert (await pool.score(doing("score", value=0))).reason == "the reward pool is closed"

    with_pool(use, "act", timeout_s=60.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reward", "settings", "kind", "words"),
    [
        ("Unbuildable", {}, OSError, "the judge's key file is missing"),
        ("Flaky", {"args": {"failure": 1}}, ConfigError, "unknown argument 'failure'"),
        ("no_such_name", {}, ConfigError, "no 'no_such_name'"),
        ("act", {"args": {"k": 1}}, ConfigError, "takes no args"),
        ("NOT_CALLABLE", {}, ConfigError, "cannot be called"),
        ("SlowToBuild", {"deadline": 4}, RunFailed, "not ready after 4s"),
        ("act", {"worker_cpus": 1000.0, "deadline": 2}, RunFailed, "1 workers reserve 1000 CPUs each, [0-9.]+ are free"),
    ],
)
def test_a_failed_start_gives_the_worker_s_own_error(cluster: None, reward: str, settings: dict, kind: type, words: str) -> None:
    async def main() -> None:
        options = dict(settings)
        deadline, args = options.pop("deadline", 60), options.pop("args", {})
        pool = RewardPool(Target(f"{REWARDS}.{reward}", args), workers=1, timeout_s=1.0, **options)
        with pytest.raises(kind, match=words):
            await pool.start(deadline)

    asyncio.run(main())
