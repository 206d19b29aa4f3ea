"""A model behind an OpenAI-compatible API (vLLM's server, SGLang, a provider) as a policy. Nothing is recorded.

What passes by itself is tried again: lost connections, timeouts, 408, 409, 429, 5xx and answers that are no completion, with
random exponential waits in between. `complete` is one request without that; the judge pool shares its own retries among
endpoints.
"""

from __future__ import annotations

import asyncio
import email.utils
import math
import re
import time
from dataclasses import dataclass
from typing import Any, Self

from rlcore.environment import Message
from rlcore.errors import ConfigError, DataFailure, InfrastructureFailure, NoRoom

_PASSING = {408, 409, 429}
# How servers say that a prompt is too long: "context_length_exceeded", "maximum context length is", "the available context size".
_CONTEXT = re.compile(r"context[ _](?:length|size|window)", re.IGNORECASE)
_SETTINGS = {401, 402, 403, 404, 405}  # a wrong key, URL or model, or no money left: every call would meet it


@dataclass(frozen=True)
class EndpointReply:
    """One completion, why it ended ("stop" or "length"), and the tokens where the server counts them."""

    text: str
    finish_reason: str
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class Busy(InfrastructureFailure):
    """The server asks for fewer requests; `retry_after_s` is its Retry-After, None without a usable one."""

    def __init__(self, message: str, retry_after_s: float | None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


def check_url(name: str, url: str | None) -> None:
    """Raises ConfigError, naming the field, when `url` is no address that a request can be sent to."""
    import httpx

    why = ""
    try:
        parsed = httpx.URL(url or "")
        if parsed.scheme in ("http", "https") and parsed.host and 1 <= (parsed.port or 1) < 65536:
            return
    except (httpx.InvalidURL, ValueError) as error:  # the latter for a host that IDNA has no name for
        why = f": {error}"
    raise ConfigError(f"{name}={url!r} must be an address such as http://host:8000/v1{why}")


class Endpoint:
    """A policy, to be closed by `async with`. `url` ends before /chat/completions, as in http://host:8000/v1.

    A call makes up to `attempts` requests of `timeout_s` seconds each; then InfrastructureFailure. ConfigError: `url` is no
    address, or the server refuses key, URL, model or payment; NoRoom: the prompt is longer than the model's context; DataFailure:
    the server refuses the request otherwise, or that cannot be written as JSON. The key is sent and never printed, not even where
    the server's own message repeats it.
    """

    def __init__(
        self,
        url: str,
        model: str,
        key: str | None,
        *,
        timeout_s: float,
        temperature: float = 1.0,
        top_p: float = 1.0,
        attempts: int = 6,
        wait_s: float = 1.0,
    ) -> None:
        import httpx

        check_url("url", url)
        self.url, self.model, self._key = f"{url.rstrip('/')}/chat/completions", model, key
        self._sampling = {"temperature": temperature, "top_p": top_p}
        self._timeout_s, self._attempts, self._wait_s = timeout_s, attempts, wait_s
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        limits = httpx.Limits(max_connections=None)  # the caller bounds its concurrency; waiting for a place is no timeout
        self._client = httpx.AsyncClient(headers=headers, timeout=timeout_s, limits=limits)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def generate(
        self, messages: list[Message], *, max_tokens: int | None = None, span: str | None = None, seed: int | None = None
    ) -> EndpointReply:
        """One completion of an independent prompt, with a seed of its own where one is given."""
        from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

        retrying = AsyncRetrying(
            retry=retry_if_exception_type(InfrastructureFailure),
            wait=wait_random_exponential(multiplier=self._wait_s, max=60),
            stop=stop_after_attempt(self._attempts),
            reraise=True,
        )
        body = {"messages": messages, "max_tokens": max_tokens, **self._sampling}
        if seed is not None:
            body["seed"] = seed
        reply: EndpointReply = await retrying(self.complete, body)
        return reply

    def conversation(self, messages: list[Message]) -> Any:
        raise NotImplementedError("an endpoint answers independent prompts")

    async def complete(self, body: dict[str, Any]) -> EndpointReply:
        """One request for the completion that `body` describes, without the model. Raises as a call does, Busy included."""
        import httpx

        try:
            request = self._client.build_request("POST", self.url, json={"model": self.model, **body})
        except (ValueError, RecursionError) as error:  # half of a surrogate pair, NaN, too deep
            raise DataFailure(f"the request cannot be written as JSON: {error}") from error
        try:
            async with asyncio.timeout(self._timeout_s):
                response = await self._client.send(request)
        except (httpx.RequestError, TimeoutError) as error:
            # A header that HTTP cannot hold is quoted in its error, with the key, so neither text nor cause goes on.
            text = "" if isinstance(error, httpx.LocalProtocolError) else self._masked(f": {error}")
            raise InfrastructureFailure(f"{self.url}: {type(error).__name__}{text}") from None
        if response.status_code != 200:
            raise self._refusal(response)
        try:
            data = response.json()
            choice, usage = data["choices"][0], data.get("usage") or {}
            text, reason = choice["message"]["content"] or "", choice["finish_reason"] or "stop"
            if not isinstance(text, str):
                raise TypeError(f"content is a {type(text).__name__}")
            return EndpointReply(text, reason, *_tokens(usage.get("prompt_tokens"), usage.get("completion_tokens")))
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            problem = f"{self.url} answered no chat completion: {type(error).__name__}: {error}"
            raise InfrastructureFailure(problem) from error

    def _refusal(self, response: Any) -> Exception:
        """What an answer with another status than 200 means."""
        status, text = response.status_code, " ".join(self._masked(response.text).split())[:300]
        problem = f"{self.url} answered {status}: {text}"
        if status in _SETTINGS or (status == 429 and "insufficient_quota" in text):  # OpenAI's way to say 402
            return ConfigError(problem)
        retry_after = response.headers.get("Retry-After")
        if status == 429 or (status == 503 and retry_after):
            return Busy(problem, _seconds(retry_after))
        if status in _PASSING or status >= 500:
            return InfrastructureFailure(problem)
        return NoRoom(problem) if status == 413 or _CONTEXT.search(text) else DataFailure(problem)

    def _masked(self, text: str) -> str:
        return text.replace(self._key, "***") if self._key else text


def _tokens(*counts: Any) -> tuple[int | None, ...]:
    """The server's counts, all of them or none: limits and costs are reckoned with them."""
    return counts if all(type(n) is int and n >= 0 for n in counts) else (None,) * len(counts)  # True is no count


def _seconds(retry_after: str | None) -> float | None:
    """The header is a number of seconds or a date; None for neither."""
    if retry_after is None:
        return None
    try:
        seconds = float(retry_after)
    except ValueError:
        try:
            seconds = max(0.0, email.utils.parsedate_to_datetime(retry_after).timestamp() - time.time())
        except (ValueError, OverflowError):
            return None
    return seconds if 0 <= seconds < math.inf else None
