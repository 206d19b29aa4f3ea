"""Judges in Ray: reward workers -> the judge's actor -> HTTP, against a scripted server. One of our own: recipes/test_runs.py."""

from __future__ import annotations

import asyncio
import collections
import json
import random
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from rlcore import judge_actors
from rlcore.errors import ConfigError, InfrastructureFailure, RunFailed
from rlcore.judge_actors import Judges
from rlcore.judge_config import JudgeConfig, JudgeEndpointConfig, JudgeLimitsConfig, LocalJudgeConfig
from rlcore.model import weights_fingerprint
from rlcore.targets import Target
from rlcore.types import Outcome, Query, RewardResult, Trajectory
from tests.rlcore.judge_stub import virtual

RATED = "tests.rlcore.judged_rewards.Rated"
MINUTE_S = 10.0
TIMEOUT_S = 8.0  # a request that a busy machine holds up is not given up: the server would have one more than it may


def trajectories(count: int) -> list[Trajectory]:
    return [Trajectory(Query("q"), "g", i, outcome=Outcome({"text": f"text {i}"})) for i in range(count)]


def right(text: str) -> int:
    return 1 + int(text.split()[-1]) % 5


class Server(ThreadingHTTPServer):
    """Rates a text by its number, and misbehaves as `faults` says: (share, status, headers, body)."""

    daemon_threads, request_queue_size = True, 128

    def __init__(self, faults: list[tuple[float, int, dict[str, str], str]]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.faults, self.draws, self.lock = faults, random.Random(0), threading.Lock()
        self.arrived: list[float] = []
        self.open = self.most = self.prose = 0
        self.answered: collections.Counter[str] = collections.Counter()
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    def fault(self) -> tuple[float, int, dict[str, str], str] | None:
        draw = self.draws.random()
        for fault in self.faults:
            draw -= fault[0]
            if draw < 0:
                return fault
        return None

    def most_in(self, seconds: float) -> int:
        return max(sum(start <= t < start + seconds for t in self.arrived) for start in self.arrived)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_POST(self) -> None:
        server = self.server
        text = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"][0]["content"]
        with server.lock:
            server.arrived.append(time.monotonic())
            server.open += 1
            server.most = max(server.most, server.open)
            fault = server.fault() if "text" in text else None
        time.sleep(0.02)
        reply = json.dumps({"score": right(text) if "text" in text else 5 if "superb" in text else 1})
        whole = {"choices": [{"message": {"content": reply}, "finish_reason": "stop"}]}
        _, status, headers, body = fault or (1.0, 200, {}, json.dumps(whole))
        with server.lock:
            server.open -= 1
            server.answered[text] += fault is None
            server.prose += fault is not None and "Good!" in fault[3]
        if status == 0:  # hangs, until the client has given up
            time.sleep(TIMEOUT_S + 1)
            self.close_connection = True
            return
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: Any) -> None:
        pass


def config(server: Server, cache: Path, **changes: Any) -> JudgeConfig:
    values: dict[str, Any] = {
        "endpoints": {"main": JudgeEndpointConfig(server.url, "stub")}, "limits": JudgeLimitsConfig(16, 100),
        "timeout_s": TIMEOUT_S, "budget_s": 100.0, "breaker_failures": 50, "cache": str(cache),
    }  # fmt: skip
    return JudgeConfig(**(values | changes))


async def score_all(judges: Judges, count: int, workers: int, args: dict[str, Any], beside: Any = None) -> list[RewardResult]:
    from rlcore.reward_pool import RewardPool

    await judges.start(300)
    pool = RewardPool(
        Target(RATED, args), workers=workers, timeout_s=240, worker_cpus=0.1, concurrency_per_worker=64, judges=judges.proxies
    )
    try:
        await pool.start(300)
        scoring = asyncio.gather(*(pool.score(t) for t in trajectories(count)))
        if beside is not None:
            await beside(judges)
        return list(await scoring)
    finally:
        await pool.close()


def test_figures_of_every_judge_by_name_and_none_of_one_that_is_lost() -> None:
    class Proxy:
        def __init__(self, error: Exception | None = None) -> None:
            self.error = error

        async def stats(self) -> dict[str, float]:
            if self.error is not None:
                raise self.error
            return {"asked": 2.0, "write/holistic/asked": 1.0}

    judges = Judges({})
    judges.proxies = {"good": Proxy(), "lost": Proxy(InfrastructureFailure("no replica lives"))}  # type: ignore[dict-item]
    assert asyncio.run(judges.figures()) == {"judge/good/asked": 2.0, "judge/good/write/holistic/asked": 1.0}


@pytest.mark.parametrize("lost", ["start", "check"])
def test_a_judge_that_is_lost_at_the_start_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lost: str) -> None:
    class Proxy:
        async def start(self, timeout_s: float) -> tuple[str, str]:
            if lost == "start":
                raise InfrastructureFailure("no replica answers")
            return "http://here/v1", "sk-made-up"

        async def check(self) -> None:
            raise InfrastructureFailure("no answer within 220 s")

    monkeypatch.setattr(judge_actors, "start_service", lambda *_, **__: Proxy())
    why = {"start": "no replica answers", "check": "no answer within 220 s"}[lost]
    with pytest.raises(ConfigError, match=f"env.reward.judges.big: {why}"):
        asyncio.run(Judges({"big": JudgeConfig(local=LocalJudgeConfig(str(tmp_path), "float32", 64))}).start(9.0))


def test_the_folders_of_the_answers_are_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    judges = Judges({"a": JudgeConfig(cache="kept"), "b": JudgeConfig(cache=f"{tmp_path}/kept"), "c": JudgeConfig()})
    assert judges.caches == [f"{tmp_path}/kept"]


def test_what_the_actor_of_a_judge_is_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Time for the queue, the requests and a restart, the server's address and key, and the weights as they are now."""
    (tmp_path / "config.json").write_text("{}")
    given: list[tuple[Any, ...]] = []

    class Proxy:
        async def start(self, timeout_s: float) -> tuple[str, str]:
            return "http://here/v1", "sk-made-up"

        async def check(self) -> None:
            pass

    def start_service(*args: Any, **options: Any) -> Proxy:
        given.append(args)
        return Proxy()

    monkeypatch.setattr(judge_actors, "start_service", start_service)
    local = LocalJudgeConfig(str(tmp_path), "float32", 64)
    asyncio.run(Judges({"judge": JudgeConfig(local=local, budget_s=50.0)}).start(9.0))
    (_, _, args, _, timeout_s) = given[-1]
    assert timeout_s == 220.0 and args["keys"] == {"local-0": "sk-made-up"}
    assert args["weights"] == weights_fingerprint(str(tmp_path)) != ""


class Dying:
    """A server that ends before its third check."""

    checked = 0

    async def check(self) -> None:
        self.checked += 1
        if self.checked == 3:
            raise InfrastructureFailure("the judge's server ended with 3: out of memory")


def test_a_server_that_is_lost_ends_the_run_and_an_evaluation() -> None:
    judges, cancelled = Judges({}), []

    async def evaluation(seconds: float) -> str:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            cancelled.append(seconds)
            raise
        return "scored"

    async def fails() -> None:
        raise ValueError("a bug")

    judges._servers = [Dying()]  # type: ignore[list-item]
    with pytest.raises(RunFailed, match="a judge is lost: the judge's server ended with 3: out of memory"):
        virtual(judges.watch())
    judges._servers = [Dying()]  # type: ignore[list-item]
    assert virtual(judges.beside(evaluation(1.0))) == "scored"  # before the server is lost
    with pytest.raises(ValueError, match="a bug"):
        virtual(judges.beside(fails()))
    judges._servers = [Dying()]  # type: ignore[list-item]
    with pytest.raises(RunFailed, match="a judge is lost"):
        virtual(judges.beside(evaluation(1e6)))
    assert cancelled == [1e6]


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_four_workers_faults_and_a_killed_actor(cluster: None, tmp_path: Path) -> None:
    """Every trajectory is scored right or unavailable with its reason; the limits hold; nothing that had a usable answer is asked
    twice, not even by the run that resumes."""
    import ray

    prose = json.dumps({"choices": [{"message": {"content": "Good!"}, "finish_reason": "stop"}]})
    server = Server(
        [(0.1, 429, {"Retry-After": "0"}, "slow down"), (0.05, 500, {}, "broken"), (0.02, 0, {}, ""), (0.01, 200, {}, "garbage"),
         (0.02, 200, {}, prose)]
    )  # fmt: skip
    options = {"minute_s": MINUTE_S, "wait_s": 0.02}
    test = {"good": "superb", "bad": "dreadful"}

    async def kill(judges: Judges) -> None:
        while sum(server.answered.values()) < 60:  # noqa: ASYNC110 - the server has a thread of its own
            await asyncio.sleep(0.05)
        (actor,) = judges.proxies["judge"]._in_flight
        ray.kill(actor, no_restart=False)

    async def main() -> None:
        judges = Judges({"judge": config(server, tmp_path / "cache")}, options)
        results = await score_all(judges, 200, 4, test, beside=kill)
        scored = [(r.value, right(f"text {i}")) for i, r in enumerate(results) if r.available]
        reasons = [r.reason for r in results if not r.available]
        twice = {text: n for text, n in server.answered.items() if n > 1}
        figures = await judges.figures()
        print(
            f"{len(scored)} scored, {len(reasons)} unavailable {set(reasons)}, {len(server.arrived)} requests, {len(twice)} twice"
        )
        print(f"{server.most} at once, {server.most_in(MINUTE_S)} in the fullest minute, {len(twice)} answered twice; {figures}")
        assert all(value == expected for value, expected in scored)
        assert len(scored) >= 195 and all(reasons)
        # On this clock a request's way may take longer than the share of a minute that is set aside for it. That no minute holds
        # more is shown in test_judge_limits.py.
        assert server.most <= 16 and server.most_in(0.8 * MINUTE_S) <= 100
        # answered as the actor died, or a re-ask after "Good!", which counts as an answer of its own
        assert len(twice) <= 16
        assert figures["judge/judge/toy/rate/asked"] > 0 and figures["judge/judge/endpoint/main/requests"] > 0
        asked, prose = len(server.arrived), server.prose
        resumed = Judges({"judge": config(server, tmp_path / "cache")}, options)
        again = await score_all(resumed, 200, 1, {})
        # what was unusable is asked again, and may be answered this time
        assert all(b.available and b.value == a.value for a, b in zip(results, again, strict=True) if a.available)
        assert all(b.value == right(f"text {i}") for i, b in enumerate(again) if b.available)
        # the health check, and what was never answered, or not so that it could be used
        assert len(server.arrived) <= asked + 1 + 6 * (len(reasons) + prose)

    asyncio.run(asyncio.wait_for(main(), 400))
    server.shutdown()
