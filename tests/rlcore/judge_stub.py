"""A scripted judge endpoint on a virtual clock: the pool's own client but for its transport, and minutes that cost nothing."""

from __future__ import annotations

import asyncio
import bisect
import json
import math
import selectors
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import httpx

from rlcore.judge import JudgeReply
from rlcore.judge_config import JudgeConfig, JudgeEndpointConfig
from rlcore.judge_pool import JudgePool


class _Jump(selectors.DefaultSelector):
    """Instead of waiting, the clock moves on."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        events = super().select(0)
        if timeout is None and not events:
            raise RuntimeError("nothing will ever happen again")
        if not events:
            # In whole 2**-32 s, a float's exact sums: whole seconds after a random pause are whole seconds still.
            self.now = math.ceil((self.now + (timeout or 0.0)) * 2**32) / 2**32
        return events


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._clock = _Jump()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now


def virtual(main: Awaitable[Any]) -> Any:
    """Run a coroutine on the virtual clock."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


def completion(text: str = "4", finish: str = "stop", prompt: int = 30, reply: int = 10) -> dict[str, Any]:
    usage = {"prompt_tokens": prompt, "completion_tokens": reply}
    return {"choices": [{"message": {"content": text}, "finish_reason": finish}], "usage": usage}


GOOD = (1.0, 200, {}, completion())
Script = Callable[[str, int, dict[str, Any]], tuple[float, int, dict[str, str], Any]]


class Stub:
    """Every endpoint there is. `script(host, number, body)` gives (seconds, status, headers, data) for a host's n-th request
    (from 0), with status 0 for a closed port. `arrived` are the times of all requests and `seconds` how long each took,
    `most` is the largest number of them at the same time."""

    def __init__(self, monkeypatch: Any, script: Script) -> None:
        self.script = script
        self.arrived: list[float] = []
        self.bodies: list[dict[str, Any]] = []
        self.counts: Counter[str] = Counter()
        self.open = self.most = 0
        self.seconds: list[float] = []

        async def handle(client: Any, request: httpx.Request) -> httpx.Response:
            host, body, now = request.url.host, json.loads(request.content), asyncio.get_running_loop().time()
            seconds, status, headers, data = self.script(host, self.counts[host], body)
            self.counts[host] += 1
            self.arrived.append(now)
            self.bodies.append(body)
            self.open += 1
            self.most = max(self.most, self.open)
            self.seconds.append(seconds)
            try:
                await asyncio.sleep(seconds)
            finally:
                self.open -= 1
            if status == 0:
                raise httpx.ConnectError("connection refused")
            content = data if isinstance(data, str) else json.dumps(data)
            return httpx.Response(status, headers=headers, content=content.encode())

        monkeypatch.setattr(httpx.AsyncClient, "send", handle)
        monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", lambda *_, **__: None)  # 60 ms for every client

    def most_in(self, seconds: float) -> int:
        """The largest number of requests in any window of so many seconds."""
        times = sorted(self.arrived)
        return max(bisect.bisect_left(times, start + seconds) - i for i, start in enumerate(times))


def pool(hosts: str | dict[str, dict[str, Any]], keys: dict[str, str | None] | None = None, **config: Any) -> JudgePool:
    """A pool of endpoints, each named after its host: one, or several with settings of their own."""
    named = {hosts: {}} if isinstance(hosts, str) else hosts
    endpoints = {h: JudgeEndpointConfig(**{"url": f"http://{h}/v1", "model": "judge", **own}) for h, own in named.items()}
    return JudgePool(JudgeConfig(endpoints=endpoints, **config), endpoints, keys or {})


def question(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def answers(*replies: Any) -> Script:
    """The replies in turn, the last one for ever."""
    return lambda host, number, body: replies[min(number, len(replies) - 1)]


async def ask(judge: JudgePool, text: str = "2 + 2?", **options: Any) -> JudgeReply:
    return await judge.ask(question(text), component="c", **options)


def now() -> float:
    return asyncio.get_running_loop().time()
