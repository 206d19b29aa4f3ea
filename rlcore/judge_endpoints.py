"""The endpoints of one judge: which of them gets the next request, and which gets none for a while.

    closed --(failures in a row)--> open --(some seconds)--> half open: one request --> closed, or open again

An endpoint that says Busy rests for as long as it asks. A refusal (wrong key, no money, no such model) is a failure like others,
but once a probe was refused too, questions that have no other endpoint fail at once.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Sequence
from typing import Any

from rlcore.endpoint import Busy, Endpoint, EndpointReply
from rlcore.errors import ConfigError, DataFailure
from rlcore.judge import JudgeFailed
from rlcore.judge_config import JudgeEndpointConfig


class JudgeEndpoint:
    """One endpoint and its circuit breaker."""

    def __init__(
        self, name: str, config: JudgeEndpointConfig, key: str | None, *, timeout_s: float, failures: int, open_s: float
    ) -> None:
        self.name, self.config = name, config
        self._http = Endpoint(config.url, config.model, key, timeout_s=timeout_s)
        self._most_failures, self._open_s = failures, open_s
        self._failures = self._busy = 0  # in a row
        self._busy_at = self.rest_until = self._open_until = -math.inf
        self._open = self._probing = False
        self.refusal = ""  # why it refused the last probe
        self.in_flight = self.requests = self.failed = self.opened = 0

    def free(self, now: float) -> bool:
        """May it be given a request now?"""
        return now >= self.not_before and not (self._open and self._probing)

    @property
    def not_before(self) -> float:
        """When it may be asked next."""
        return max(self.rest_until, self._open_until)

    @property
    def load(self) -> tuple[float, float]:
        """Smaller means next: requests in flight, then requests so far, for its weight."""
        return self.in_flight / self.config.weight, self.requests / self.config.weight

    async def request(self, body: dict[str, Any], refused: bool = False) -> EndpointReply:
        """One request, which the breaker learns of. Raises as Endpoint.complete does. `refused`: this question, once before."""
        probe, began = self._open, asyncio.get_running_loop().time()
        self._probing = self._probing or probe
        self.in_flight += 1
        self.requests += 1
        try:
            reply = await self._http.complete(body)
        except Exception as error:
            self.failed += 1
            self._failed(error, probe, began, refused)
            raise
        else:
            self._works()
            self._busy = 0
            return reply
        finally:
            self.in_flight -= 1
            self._probing = self._probing and not probe

    def _works(self) -> None:
        self._failures, self._open, self.refusal = 0, False, ""

    def _failed(self, error: Exception, probe: bool, began: float, refused: bool) -> None:
        now = asyncio.get_running_loop().time()
        if isinstance(error, DataFailure | Busy):  # it works, and does not want this request, or not now
            self._works()
            if isinstance(error, Busy):
                self._rest(error.retry_after_s, began, now)
            return
        refuses = isinstance(error, ConfigError)
        if refuses and refused and not probe:  # once for a question: it may be its own fault, and no reason to keep others away
            return
        self._failures += 1
        if probe:
            self.refusal = str(error) if refuses else ""
        if probe or (not self._open and self._failures >= self._most_failures):
            self.opened += not self._open or probe
            self._open, self._open_until = True, now + self._open_s

    def _rest(self, seconds: float | None, began: float, now: float) -> None:
        """For as long as it asks; else twice as long each time, up to a minute."""
        if began > self._busy_at:  # a new time, and not one of the requests that were out together
            self._busy, self._busy_at = self._busy + 1, now
        if seconds is None:
            seconds = min(60.0, 2.0**self._busy)
        self.rest_until = max(self.rest_until, now + seconds * random.uniform(1.0, 1.1))  # not everybody returns at once


class JudgeEndpoints:
    """All endpoints of one judge."""

    def __init__(self, endpoints: Sequence[JudgeEndpoint]) -> None:
        self.all = list(endpoints)
        self._ended = asyncio.Event()  # set whenever a request has ended: a breaker may have closed

    async def ready(self) -> None:
        """Wait until one of them may be asked. Raises JudgeFailed when all of them refuse."""
        loop = asyncio.get_running_loop()
        while not any(e.free(loop.time()) for e in self.all):
            if all(e.refusal for e in self.all):
                raise JudgeFailed(f"every endpoint refuses: {'; '.join(e.refusal for e in self.all)}")
            self._ended.clear()
            soonest = min((e.not_before for e in self.all if e.not_before > loop.time()), default=None)
            try:
                async with asyncio.timeout_at(soonest):
                    await self._ended.wait()
            except TimeoutError:
                pass

    def next(self, avoid: JudgeEndpoint | None) -> JudgeEndpoint | None:
        """The one to ask now, another than `avoid` if possible; None when none of them may be asked."""
        now = asyncio.get_running_loop().time()
        free = [e for e in self.all if e.free(now)]
        return min(free, key=lambda e: (e is avoid, e.load), default=None)

    async def request(self, endpoint: JudgeEndpoint, body: dict[str, Any], refused: bool = False) -> EndpointReply:
        """One request to an endpoint that `next` named. Raises as Endpoint.complete does; for `refused` see JudgeEndpoint."""
        try:
            return await endpoint.request(body, refused)
        finally:
            self._ended.set()
