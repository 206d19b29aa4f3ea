"""The judge pool: every question of every reward worker goes through this one object, in an actor of its own.

    ask --> on disk? --> asked by another right now? --> [limits] --> endpoint --> reply, on disk
                                                            ^             | failed: wait a little, another endpoint
                                                            +-------------+ (up to `attempts` requests, `budget_s` seconds)

Plain asyncio, no Ray: limits hold across all workers because there is one of it (rlcore/judge_actors.py).
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from rlcore.endpoint import EndpointReply
from rlcore.environment import Message
from rlcore.errors import ConfigError, DataFailure, InfrastructureFailure
from rlcore.judge import JudgeFailed, JudgeReply
from rlcore.judge_cache import JudgeCache, content_key
from rlcore.judge_config import JudgeConfig, JudgeEndpointConfig
from rlcore.judge_endpoints import JudgeEndpoint, JudgeEndpoints
from rlcore.judge_limits import Gate, Permit
from rlcore.judge_stats import ComponentStats, JudgeStats

T = TypeVar("T")
log = logging.getLogger(__name__)  # in the actor's own log file

_CHECK = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False}


@dataclass(eq=False, slots=True)
class _Question:
    """One question on its way: the request's body, its schema, an estimate of its tokens, and how it fared so far."""

    body: dict[str, Any]
    schema: dict[str, Any] | None
    tokens: int
    stats: ComponentStats
    latency_s: float = 0.0
    failed_on: JudgeEndpoint | None = None
    failure: str = ""  # of its last request
    refused_by: set[JudgeEndpoint] = field(default_factory=set)


class JudgePool:
    """The Judge protocol over `endpoints`, whose keys are in `keys` by the same names (never printed).

    `weights` is a fingerprint of the local model, part of who the judge is.
    `minute_s` and `wait_s` (the scale of the waits between requests) are shorter in tests; for `not_before` see Gate.
    """

    def __init__(
        self,
        config: JudgeConfig,
        endpoints: dict[str, JudgeEndpointConfig],
        keys: dict[str, str | None],
        *,
        weights: str = "",
        minute_s: float = 60.0,
        wait_s: float = 1.0,
        not_before: float = 0.0,
    ) -> None:
        self._config, self._wait_s = config, wait_s
        breaker: dict[str, Any] = {
            "timeout_s": config.timeout_s, "failures": config.breaker_failures, "open_s": config.breaker_open_s,
        }  # fmt: skip
        self._endpoints = JudgeEndpoints([JudgeEndpoint(n, e, keys.get(n), **breaker) for n, e in endpoints.items()])
        limits = config.limits
        self._gate = Gate(limits.concurrent, limits.requests_per_minute, limits.tokens_per_minute, minute_s, not_before)
        self._cache = JudgeCache(config.cache, config.cache_mib)
        models = sorted({(e.model, e.structured) for e in endpoints.values()})
        local = config.local and [config.local.dtype, config.local.max_model_len, config.local.args, weights]
        self._judge = [models, local]  # who it is, wherever it runs
        self._turn, self._queue = asyncio.Lock(), 0  # who is next; how many wait
        self._flights: dict[str, asyncio.Task[JudgeReply]] = {}
        self._stats = JudgeStats()

    async def ask(
        self,
        messages: list[Message],
        *,
        component: str,
        schema: dict[str, Any] | None = None,
        max_tokens: int | None = None,
        attempt: int = 0,
    ) -> JudgeReply:
        """See rlcore.judge.Judge. A question that somebody is asking right now is not asked twice."""
        stats = self._stats.component(component)
        counts = stats.counts
        counts["asked"] += 1
        question = self._question(messages, schema, max_tokens or self._config.max_tokens, stats)
        try:
            key = content_key(judge=self._judge, body=question.body, schema=schema, attempt=attempt)
        except (ValueError, RecursionError) as error:
            counts["failed"] += 1
            raise JudgeFailed(f"the question cannot be written as JSON: {error}") from error
        if (known := self._cache.get(key)) is not None:
            counts["cached"] += 1
            return known
        flight = self._flights.get(key)
        shared = flight is not None
        if flight is None:
            flight = self._flights[key] = asyncio.create_task(self._answer(key, question))
            flight.add_done_callback(lambda done: self._landed(key, done))
        try:
            reply = await asyncio.shield(flight)  # a caller that gives up does not take the others' answer away
        except JudgeFailed as failed:
            counts["failed"] += 1
            raise JudgeFailed(str(failed)) from failed
        counts["shared" if shared else "answered"] += 1
        return reply

    async def unusable(self, component: str, why: str, reply: JudgeReply) -> None:
        """See rlcore.judge.Judge."""
        self._cache.drop(reply.key)
        self._stats.component(component).counts["unusable"] += 1
        log.warning("unusable reply, %s: %s", component, why[:300])

    async def check(self) -> None:
        """Try the cache and ask every endpoint one short question. Raises ConfigError naming the first that fails, and why."""
        self._cache.check()
        messages = [{"role": "user", "content": 'Reply with {"ok": true}'}]

        async def one(endpoint: JudgeEndpoint) -> None:
            question = self._question(messages, _CHECK, 16, self._stats.component("check"))

            async def request() -> EndpointReply:
                await asyncio.sleep(endpoint.rest_until - asyncio.get_running_loop().time())
                permit = await self._gate.enter(question.tokens)
                try:
                    return await self._send(question, endpoint, permit)
                finally:
                    self._gate.leave(permit)

            try:
                async with asyncio.timeout(self._config.budget_s):
                    await self._retrying(question, request)
            except (InfrastructureFailure, ConfigError, DataFailure, TimeoutError) as error:
                why = str(error) or f"no answer within {self._config.budget_s:g} s"
                raise ConfigError(f"endpoint {endpoint.name} ({endpoint.config.model}): {why}") from error

        await asyncio.gather(*(one(endpoint) for endpoint in self._endpoints.all))

    async def stats(self) -> dict[str, float]:
        """Flat figures: counts, percentiles, tokens and cost, in all and by component; queue and breakers as they are now."""
        now = {"queue": self._queue, "in_flight": self._gate.in_flight, "cache_faults": self._cache.faults}
        figures = self._stats.figures() | {name: float(value) for name, value in now.items()}
        for e in self._endpoints.all:
            for name in ("requests", "failed", "opened"):
                figures[f"endpoint/{e.name}/{name}"] = float(getattr(e, name))
        return figures

    def _question(
        self, messages: list[Message], schema: dict[str, Any] | None, max_tokens: int, stats: ComponentStats
    ) -> _Question:
        body: dict[str, Any] = {"messages": messages, "temperature": self._config.temperature, "max_tokens": max_tokens}
        body = {k: v for k, v in (body | self._config.extra).items() if v is not None}
        return _Question(body, schema, estimated_tokens(body, schema, max_tokens), stats)

    def _landed(self, key: str, flight: asyncio.Task[JudgeReply]) -> None:
        del self._flights[key]
        if not flight.cancelled():
            flight.exception()  # marks it as seen when every caller has given up

    async def _answer(self, key: str, question: _Question) -> JudgeReply:
        """The answer to a new question, within the budget for its first place and that for its requests. Raises JudgeFailed."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with asyncio.timeout(self._config.budget_s) as budget:
                endpoint, got = await self._retrying(question, partial(self._request, question, budget))
        except TimeoutError:
            last = question.failure or "no request was possible"
            raise JudgeFailed(f"no answer within {self._config.budget_s:g} s; last: {last}") from None
        except (InfrastructureFailure, DataFailure) as error:
            raise JudgeFailed(str(error)) from error
        reply = JudgeReply(got.text, got.finish_reason, endpoint.config.model, cached=False, key=key)
        self._cache.put(key, reply)
        question.stats.latency_s.append(question.latency_s)
        question.stats.wait_s.append(max(0.0, loop.time() - began - question.latency_s))
        return reply

    async def _retrying(self, question: _Question, request: Callable[[], Awaitable[T]]) -> T:
        def count(state: RetryCallState) -> None:
            question.stats.counts["retries"] += 1

        retrying = AsyncRetrying(
            retry=retry_if_exception_type(InfrastructureFailure),
            wait=wait_random_exponential(multiplier=self._wait_s, max=60 * self._wait_s),
            stop=stop_after_attempt(self._config.attempts),
            before_sleep=count,
            reraise=True,
        )
        result: T = await retrying(request)
        return result

    async def _request(self, question: _Question, budget: asyncio.Timeout) -> tuple[JudgeEndpoint, EndpointReply]:
        """One request, as soon as an endpoint and the limits allow it. Raises what happened to it."""
        self._queue += 1
        try:
            endpoint, permit = await self._place(question)
        finally:
            self._queue -= 1
        if not question.failure:  # its first place: what the queue before it took is not the endpoints' fault
            budget.reschedule(asyncio.get_running_loop().time() + self._config.budget_s)
        question.failure = f"{endpoint.config.url}: cut off before the answer"
        try:
            return endpoint, await self._send(question, endpoint, permit)
        except (InfrastructureFailure, ConfigError) as error:
            question.failed_on, question.failure = endpoint, str(error)
            if isinstance(error, ConfigError):
                question.refused_by.add(endpoint)
            raise InfrastructureFailure(str(error)) from error  # another endpoint may do better
        finally:
            self._gate.leave(permit)

    async def _place(self, question: _Question) -> tuple[JudgeEndpoint, Permit]:
        """Wait for an endpoint and a place. The caller has to send at once: nothing is reserved at the endpoint."""
        async with self._turn:  # in order, and when an endpoint works again one wakes, not everybody
            while True:
                await self._endpoints.ready()
                permit = await self._gate.enter(question.tokens)
                endpoint = self._endpoints.next(question.failed_on)
                if endpoint is not None:
                    return endpoint, permit
                permit.sent = False  # closed while this question waited for its place
                self._gate.leave(permit)

    async def _send(self, question: _Question, endpoint: JudgeEndpoint, permit: Permit) -> EndpointReply:
        """The request itself; its tokens and their price are counted."""
        body = dict(question.body)
        if question.schema is not None and endpoint.config.structured:
            form = {"name": "verdict", "strict": True, "schema": question.schema}
            body["response_format"] = {"type": "json_schema", "json_schema": form}
        loop = asyncio.get_running_loop()
        began = loop.time()
        reply = await self._endpoints.request(endpoint, body, endpoint in question.refused_by)
        question.latency_s = loop.time() - began
        if reply.prompt_tokens is not None and reply.completion_tokens is not None:
            permit.tokens = reply.prompt_tokens + reply.completion_tokens
            stats, prices = question.stats, endpoint.config
            stats.counts["prompt_tokens"] += reply.prompt_tokens
            stats.counts["completion_tokens"] += reply.completion_tokens
            stats.cost += reply.prompt_tokens * prices.prompt_price / 1e6
            stats.cost += reply.completion_tokens * prices.completion_price / 1e6
        return reply


def estimated_tokens(body: dict[str, Any], schema: dict[str, Any] | None, max_tokens: int) -> int:
    """An estimate that is seldom too low: a token for three bytes of UTF-8 (four letters of English make one, a Chinese character
    of three bytes about one), a few for every message, and the longest reply."""
    texts = [message["content"] for message in body["messages"]] + ([json.dumps(schema)] if schema else [])
    return sum(len(text.encode("utf-8", "surrogatepass")) // 3 + 8 for text in texts) + max_tokens
