"""A model behind an OpenAI-compatible API (vLLM's server, SGLang, a provider) as a policy. Nothing is recorded.

What passes by itself is tried again: lost connections, timeouts, 408, 409, 429 and 5xx, with random exponential waits in between.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Self

from rlcore.environment import Message
from rlcore.errors import ConfigError, DataFailure, InfrastructureFailure

_PASSING = {408, 409, 429}
_SETTINGS = {401, 403, 404, 405}  # a wrong key, URL or model: every call would meet it


@dataclass(frozen=True)
class EndpointReply:
    """One completion, all that an environment needs of it, and why it ended ("stop" or "length")."""

    text: str
    finish_reason: str


class Endpoint:
    """A policy, to be opened by `async with`. `url` ends before /chat/completions, as in http://host:8000/v1.

    A call makes up to `attempts` requests of `timeout_s` seconds each; then InfrastructureFailure. ConfigError: the server
    refuses key, URL or model; DataFailure: it refuses the request, or answers with something else than a completion. The key is
    sent and never printed, not even where the server's own message repeats it.
    """

    def __init__(
        self,
        url: str,
        model: str,
        key: str | None,
        *,
        temperature: float,
        top_p: float,
        timeout_s: float,
        attempts: int = 6,
        wait_s: float = 1.0,
    ) -> None:
        self.url, self.model, self._key = f"{url.rstrip('/')}/chat/completions", model, key
        self._sampling = {"temperature": temperature, "top_p": top_p}
        self._timeout_s, self._attempts, self._wait_s = timeout_s, attempts, wait_s

    async def __aenter__(self) -> Self:
        import httpx

        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        limits = httpx.Limits(max_connections=None)  # the caller bounds its concurrency; waiting for a place is no timeout
        self._client = httpx.AsyncClient(headers=headers, timeout=self._timeout_s, limits=limits)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def generate(
        self, messages: list[Message], *, max_tokens: int | None = None, span: str | None = None, seed: int | None = None
    ) -> EndpointReply:
        """One completion of an independent prompt, with a seed of its own where one is given."""
        import httpx
        from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

        retrying = AsyncRetrying(
            retry=retry_if_exception_type((InfrastructureFailure, httpx.TransportError, TimeoutError)),
            wait=wait_random_exponential(multiplier=self._wait_s, max=60),
            stop=stop_after_attempt(self._attempts),
            reraise=True,
        )
        body = {"model": self.model, "messages": messages, "max_tokens": max_tokens, **self._sampling}
        if seed is not None:
            body["seed"] = seed
        try:
            return await retrying(self._ask, body)
        except (httpx.TransportError, TimeoutError) as error:
            raise InfrastructureFailure(f"{self.url}: {type(error).__name__}: {error}") from error

    def conversation(self, messages: list[Message]) -> Any:
        raise NotImplementedError("an endpoint answers independent prompts")

    async def _ask(self, body: dict[str, Any]) -> EndpointReply:
        async with asyncio.timeout(self._timeout_s):
            response = await self._client.post(self.url, json=body)
        if response.status_code != 200:
            text = " ".join(response.text.split())[:300]
            problem = f"{self.url} answered {response.status_code}: {text.replace(self._key, '***') if self._key else text}"
            if response.status_code in _PASSING or response.status_code >= 500:
                raise InfrastructureFailure(problem)
            raise ConfigError(problem) if response.status_code in _SETTINGS else DataFailure(problem)
        try:
            choice = response.json()["choices"][0]
            return EndpointReply(choice["message"]["content"] or "", choice["finish_reason"] or "stop")
        except (ValueError, LookupError, TypeError) as error:
            raise DataFailure(f"{self.url} answered no chat completion: {type(error).__name__}: {error}") from error
