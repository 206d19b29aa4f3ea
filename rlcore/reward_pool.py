"""The reward pool: worker processes that score trajectories, and stay usable whatever a scorer does.

    rollout --score(trajectory)--> least loaded worker --> RewardResult

| what happens on the worker            | what becomes of the call                                                        |
| ------------------------------------- | ------------------------------------------------------------------------------- |
| an exception                          | tried again, up to `attempts` times in all; then unavailable                    |
| a wrong type, a non-finite number     | unavailable                                                                     |
| too slow, and stops when told         | unavailable: a coroutine, cancelled in place                                    |
| too slow, and does not stop           | unavailable; the worker is killed, the calls beside it go to another            |
| the process dies or freezes           | alone on it: unavailable. With others nobody can tell who did it: each is tried |
|                                       | again, one at a time, on a worker kept for suspects                             |

So no call is blamed for another's fault, every call ends, and a scorer's failure is never a reward of 0. A scorer that waits on
the network should be a coroutine: it can be cancelled at no cost to its neighbours, a thread cannot.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

import ray
from ray.exceptions import RayError, RayTaskError

from rlcore.errors import ConfigError, RunFailed
from rlcore.targets import Target, make_reward
from rlcore.types import RewardResult, Trajectory, scored, unavailable

CANCEL_S = 1.0  # a cancelled coroutine has this long to stop
GRACE_S = 3.0  # a worker whose own verdict is this late is frozen: something holds its interpreter
CLOSED = "the reward pool is closed"


@dataclass(slots=True)
class _Verdict:
    """What became of one call. "final" stands; "stuck" does too, but its code still runs in the worker; "error" may be tried
    again; a "bystander" lost its worker to another call's known fault, a "suspect" to nobody knows whose."""

    kind: Literal["final", "stuck", "error", "bystander", "suspect"]
    result: RewardResult


class _Worker:
    """One actor process. A coroutine reward runs on its event loop, a plain function in a thread beside it."""

    def __init__(self, concurrency: int) -> None:
        self.threads = ThreadPoolExecutor(concurrency)

    async def build(self, spec: Target, judges: dict[str, Any]) -> int:
        """Make the reward and return the process id. On the event loop, so that the reward may open clients that need one."""
        self.reward = make_reward(spec, **judges)
        self.is_async = any(map(inspect.iscoroutinefunction, (self.reward, type(self.reward).__call__)))
        return os.getpid()

    async def self_test(self) -> None:
        """The reward's own, where it has one. Raises ConfigError when it fails."""
        test = getattr(self.reward, "self_test", None)
        if test is not None:
            await test()

    async def score(self, trajectory: Trajectory, timeout_s: float) -> _Verdict:
        if self.is_async:
            call: asyncio.Future[Any] = asyncio.ensure_future(self.reward(trajectory))
        else:
            call = asyncio.get_running_loop().run_in_executor(self.threads, self.reward, trajectory)
        await asyncio.wait({call}, timeout=timeout_s)
        if not call.done():
            call.cancel()  # marks a thread's future as cancelled, but cannot stop the thread
            if self.is_async:
                await asyncio.wait({call}, timeout=CANCEL_S)
            stopped = self.is_async and call.done()
            return _Verdict("final" if stopped else "stuck", unavailable(f"timeout after {timeout_s:g}s"))
        if call.cancelled():
            return _Verdict("error", unavailable("the reward cancelled itself"))
        if error := call.exception():
            return _Verdict("error", unavailable(_describe(error)))
        return _Verdict("final", _checked(call.result()))


@dataclass(eq=False, slots=True)
class _Lane:
    """A worker as the driver sees it: `load` calls are on it; once it is `retired`, `culprit_known` says if one was to blame."""

    actor: Any
    ready: asyncio.Task[int]
    load: int = 0
    retired: bool = False
    culprit_known: bool = False


class RewardPool:
    """Scores trajectories in `workers` Ray actors, at most `concurrency_per_worker` at a time in each. Needs `ray.init`.

    `spec` names a class, which every worker builds with its args and then calls with each trajectory, or a plain function or
    coroutine function of the trajectory. `judges` are further arguments of the class, proxies that can be sent to a worker, and
    `caches` the folders of their answers, named when the self-test fails: what was answered before a repair counts after it.
    `timeout_s` is for one attempt at one trajectory. A worker reserves `worker_cpus` CPUs; one more than `workers` is started
    once there are suspects. Workers end with the driver. Raises ConfigError for settings out of range.
    """

    def __init__(
        self,
        spec: Target,
        *,
        workers: int,
        timeout_s: float,
        attempts: int = 2,
        concurrency_per_worker: int = 16,
        worker_cpus: float = 0.1,
        judges: dict[str, Any] | None = None,
        caches: Sequence[str] = (),
    ) -> None:
        counts = {"workers": workers, "attempts": attempts, "concurrency_per_worker": concurrency_per_worker}
        for name, value in counts.items():
            if value < 1:
                raise ConfigError(f"reward pool: {name} must be at least 1, got {value!r}")
        if not 0 < timeout_s < float("inf"):
            raise ConfigError(f"reward pool: timeout_s must be a finite number above 0, got {timeout_s!r}")
        if not 0 <= worker_cpus < float("inf"):
            raise ConfigError(f"reward pool: worker_cpus must be a finite number >= 0, got {worker_cpus!r}")
        self.spec, self.workers, self.timeout_s, self.attempts = spec, workers, timeout_s, attempts
        self.concurrency_per_worker, self.worker_cpus = concurrency_per_worker, worker_cpus
        self.judges, self.caches = judges or {}, caches
        self._lanes: list[_Lane] = []
        self._quarantine: _Lane | None = None
        self._quarantine_lock = asyncio.Lock()
        self._slots = asyncio.Semaphore(workers * concurrency_per_worker)
        self._running: set[asyncio.Task[RewardResult]] = set()
        self._closed = False
        self._stats = dict.fromkeys(("scored", "unavailable", "retries", "killed", "seconds"), 0.0)

    async def start(self, deadline_s: float) -> None:
        """Start every worker, build the reward in each, and let the first try its self-test. Raises the worker's own error, or
        RunFailed after `deadline_s`."""
        self._start_s = deadline_s  # a replacement has as long
        self._lanes = [self._spawn() for _ in range(self.workers)]
        try:
            await asyncio.gather(*(lane.ready for lane in self._lanes))
            await self._self_test(self._lanes[0].actor)
        except BaseException:
            await self.close()
            raise

    async def _self_test(self, actor: Any) -> None:
        try:
            await self._in_time(
                actor.self_test.remote(), "the reward's self-test, as fast as its judges' limits allow, did not end within"
            )
        except ConfigError as error:
            if not self.caches:
                raise
            kept = " and ".join(self.caches)
            raise ConfigError(f"{error} (a judge's answers are kept in {kept}: once it is repaired, remove them)") from error

    async def score(self, trajectory: Trajectory) -> RewardResult:
        """Score one trajectory; whatever the reward does, this ends and does not raise.

        When the caller is cancelled, its call still runs to its own deadline, so that a worker's load is always known.
        """
        if self._closed:
            return unavailable(CLOSED)
        if not self._lanes:
            raise RuntimeError("RewardPool.score needs `await start(...)` first")
        task = asyncio.create_task(self._score(trajectory))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Kill every worker; calls still under way become unavailable. Safe to call twice."""
        self._closed = True
        for lane in [*self._lanes, *([self._quarantine] if self._quarantine else [])]:
            ray.kill(lane.actor)
        self._lanes, self._quarantine = [], None
        if self._running:
            await asyncio.wait(self._running, timeout=self.timeout_s + CANCEL_S + GRACE_S)

    def stats(self) -> dict[str, float]:
        """Totals: calls scored and unavailable, attempts repeated, workers lost or killed for a fault, seconds spent in calls."""
        return dict(self._stats)

    async def _score(self, trajectory: Trajectory) -> RewardResult:
        async with self._slots:  # a worker has room before the call's clock starts; ends as the calls in front end
            began = time.monotonic()
            result = await self._until_decided(trajectory)
            self._stats["seconds"] += time.monotonic() - began
        self._stats["scored" if result.available else "unavailable"] += 1
        return result

    async def _until_decided(self, trajectory: Trajectory) -> RewardResult:
        errors = losses = 0
        while True:
            # A suspect goes alone at once, a bystander only when it was hit twice: so every call ends.
            verdict = await (self._call_alone(trajectory) if losses >= 2 else self._call_shared(trajectory))
            losses += {"suspect": 2, "bystander": 1}.get(verdict.kind, 0)
            errors += verdict.kind == "error"
            if verdict.kind != "final" and self._closed:
                return unavailable(CLOSED)
            if verdict.kind in ("final", "stuck") or errors == self.attempts:
                return verdict.result
            self._stats["retries"] += verdict.kind == "error"

    async def _call_shared(self, trajectory: Trajectory) -> _Verdict:
        if self._closed:
            return _Verdict("final", unavailable(CLOSED))
        return await self._call_on(min(self._lanes, key=lambda lane: lane.load), trajectory)

    async def _call_alone(self, trajectory: Trajectory) -> _Verdict:
        async with self._quarantine_lock:
            if self._closed:
                return _Verdict("final", unavailable(CLOSED))
            self._quarantine = self._quarantine or self._spawn()
            return await self._call_on(self._quarantine, trajectory)

    async def _call_on(self, lane: _Lane, trajectory: Trajectory) -> _Verdict:
        lane.load += 1
        try:
            try:
                await asyncio.shield(lane.ready)
            except Exception as error:
                self._retire(lane, culprit_known=True)
                return _Verdict("error", unavailable(f"a reward worker did not start: {_describe(error)}"))
            return await self._ask(lane, trajectory)
        finally:
            lane.load -= 1

    async def _ask(self, lane: _Lane, trajectory: Trajectory) -> _Verdict:
        reply = lane.actor.score.remote(trajectory, self.timeout_s)
        try:
            verdict = await asyncio.wait_for(reply, self.timeout_s + CANCEL_S + GRACE_S)
        except RayTaskError as error:  # the trajectory or the result did not survive the trip between the processes
            return _Verdict("error", unavailable(_describe(error)))
        except (RayError, TimeoutError) as error:
            if lane.retired:  # by a call beside this one
                return _Verdict("bystander" if lane.culprit_known else "suspect", unavailable("its reward worker was lost"))
            alone = lane.load == 1
            self._retire(lane, culprit_known=alone)
            late = isinstance(error, TimeoutError)
            reason = f"timeout after {self.timeout_s:g}s" if late else f"the reward worker died: {_one_line(str(error))}"
            return _Verdict("stuck" if alone else "suspect", unavailable(reason))
        if verdict.kind == "stuck":
            self._retire(lane, culprit_known=True)
        return verdict

    def _retire(self, lane: _Lane, *, culprit_known: bool) -> None:
        """Kill the lane's worker, whatever is on it, and put a new one in its place (the suspects' worker only when needed)."""
        if lane.retired or self._closed:
            return
        lane.retired, lane.culprit_known = True, culprit_known
        self._stats["killed"] += 1
        ray.kill(lane.actor)
        if lane is self._quarantine:
            self._quarantine = None
        else:
            self._lanes[self._lanes.index(lane)] = self._spawn()

    def _spawn(self) -> _Lane:
        worker = ray.remote(_Worker).options(
            num_cpus=self.worker_cpus,
            max_restarts=0,
            max_concurrency=self.concurrency_per_worker + 1,
            runtime_env={"env_vars": {"OMP_NUM_THREADS": "1"}},
        )
        actor = worker.remote(self.concurrency_per_worker)
        return _Lane(actor, asyncio.create_task(self._ready(actor)))

    async def _ready(self, actor: Any) -> int:
        try:
            return await self._in_time(actor.build.remote(self.spec, self.judges), "a reward worker was not ready after")
        except RunFailed as error:
            free = ray.available_resources().get("CPU", 0.0)
            need = f"{self.workers} workers reserve {self.worker_cpus:g} CPUs each, {free:g} are free"
            raise RunFailed(f"{error}: {need}") from None

    async def _in_time(self, call: Any, late: str) -> Any:
        """A worker's answer at the start, or its own error; after the start's deadline RunFailed."""
        try:
            return await asyncio.wait_for(call, self._start_s)
        except RayTaskError as error:
            raise (error.cause if isinstance(error.cause, Exception) else error) from None
        except TimeoutError:
            raise RunFailed(f"{late} {self._start_s:g}s (cluster.start_timeout_s)") from None


def _checked(result: Any) -> RewardResult:
    """The reward's own result, or unavailable when it is none."""
    if not isinstance(result, RewardResult):
        return unavailable(f"a reward must return a RewardResult, got {type(result).__name__}")
    if result.value is None:
        return unavailable(result.reason or "the reward gave no reason")
    try:
        return scored(result.value, result.components)
    except ValueError as error:
        return unavailable(str(error))


def _describe(error: BaseException) -> str:
    """The traceback's last line, and the place it was raised at."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno} in {frames[-1].name})" if frames else ""
    return _one_line(f"{type(error).__name__}: {error}") + place


def _one_line(text: str) -> str:
    return " ".join(text.split())[:500]
