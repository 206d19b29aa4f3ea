"""The gate that every request to a judge passes: requests at the same time, requests per minute, tokens per minute.

    question --(estimate)--> [waiting, first in first out] --> request --(usage)--> leaves the minute one minute later

Of the usual limiters a leaky bucket admits up to twice the rate in some minute and a fixed window does so at its edges. Here no
minute at all holds more than the limit, so the starts are kept and each counts until it is out of every minute the server can
put it in.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
from collections import deque
from dataclasses import dataclass

from rlcore.judge import JudgeFailed

# The server's minute starts when it sees the request: after it was let through, before it was answered, and at the latest this
# share of a minute later. So an answered request counts from its answer on, a slow one from here on; 4 % of the rate at most.
TRANSIT = 0.04


@dataclass(eq=False, slots=True)
class Permit:
    """One request's place. `tokens` is the estimate, to be set to the usage once it is known; `sent` false if none was made."""

    tokens: int
    leaves: float
    sent: bool = True
    counted: int = 0  # tokens of it that the minute holds; -1 once it has left the minute


class Gate:
    """`await enter(tokens)` before a request, `leave` after it. None is no limit; `minute_s` is shorter in tests.

    Nobody is let through before `not_before`, in the event loop's time: whoever takes over from a gate that died does not know
    what that one let through.
    """

    def __init__(
        self, concurrent: int, requests: int | None, tokens: int | None, minute_s: float = 60.0, not_before: float = 0.0
    ) -> None:
        self._not_before = not_before
        self.concurrent, self.requests, self.tokens = concurrent, requests or math.inf, tokens or math.inf
        self._minute_s = minute_s
        self.in_flight = 0
        self._minute: list[tuple[float, int, Permit]] = []  # heap by the moment of leaving; a permit may be in it twice
        self._order = itertools.count()
        self._held_requests = self._held_tokens = 0
        self._waiting: deque[tuple[int, asyncio.Future[Permit]]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    async def enter(self, tokens: int) -> Permit:
        """Wait for a place, first come, first served. Raises JudgeFailed when no minute could ever hold so many tokens."""
        if tokens > self.tokens:
            raise JudgeFailed(f"a request of about {tokens} tokens never fits into {self.tokens} tokens per minute")
        place: asyncio.Future[Permit] = asyncio.get_running_loop().create_future()
        self._waiting.append((tokens, place))
        self._admit()
        try:
            return await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():  # cancelled in the same turn of the loop
                place.result().sent = False
                self.leave(place.result())
            self._admit()
            raise

    def leave(self, permit: Permit) -> None:
        """The request has ended: its place is free, its tokens are known, its minute runs."""
        now = asyncio.get_running_loop().time()
        self.in_flight -= 1
        self._forget(now)
        if permit.counted >= 0:  # still in the minute
            self._held_tokens += permit.tokens - permit.counted
            permit.counted = permit.tokens
            leaves = now + self._minute_s if permit.sent else now
            if leaves < permit.leaves:
                permit.leaves = leaves
                heapq.heappush(self._minute, (leaves, next(self._order), permit))
        self._admit()

    def _admit(self) -> None:
        """Let through whoever fits, in order, and come back when the minute next has room."""
        now = asyncio.get_running_loop().time()
        self._forget(now)
        while self._waiting and now >= self._not_before:
            tokens, place = self._waiting[0]
            if not place.done():
                if self.in_flight >= self.concurrent or self._held_requests >= self.requests:
                    break
                if self._held_tokens + tokens > self.tokens:
                    break
                place.set_result(self._enter(tokens, now))
            self._waiting.popleft()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if self._waiting and (self._minute or now < self._not_before):
            room = self._not_before if now < self._not_before else self._minute[0][0]
            self._timer = asyncio.get_running_loop().call_at(room, self._admit)

    def _enter(self, tokens: int, now: float) -> Permit:
        permit = Permit(tokens, now + (1 + TRANSIT) * self._minute_s, counted=tokens)
        self.in_flight += 1
        self._held_requests += 1
        self._held_tokens += tokens
        heapq.heappush(self._minute, (permit.leaves, next(self._order), permit))
        return permit

    def _forget(self, now: float) -> None:
        while self._minute and self._minute[0][0] <= now:
            _, _, permit = heapq.heappop(self._minute)
            if permit.counted >= 0:
                self._held_requests -= 1
                self._held_tokens -= permit.counted
                permit.counted = -1
