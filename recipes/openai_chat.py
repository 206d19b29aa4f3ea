"""Completions from an OpenAI-compatible endpoint, for reports by a model that something else serves."""

from __future__ import annotations

import asyncio
import os

import httpx
from tenacity import AsyncRetrying, retry_if_exception, stop_after_attempt, wait_exponential_jitter

from recipes.reports import Answer
from rlcore.environment import Message
from rlcore.errors import InfrastructureFailure

KEY = "OPENAI_API_KEY"  # environment variable; without it no key is sent
ATTEMPTS = 5


class OpenAIChat:
    """`await chat(messages, max_tokens, seed)` against `<url>/chat/completions`; `url` ends before that, usually in /v1.

    Overload (429), server errors (5xx) and lost connections are tried again; what remains is an InfrastructureFailure, and so is
    an answer of another shape.
    """

    def __init__(self, url: str, model: str, temperature: float, max_tokens: int, timeout_s: float) -> None:
        key = os.environ.get(KEY)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._client = httpx.AsyncClient(base_url=url.rstrip("/") + "/", headers=headers, timeout=timeout_s)
        self._model, self._temperature, self._max_tokens, self._timeout_s = model, temperature, max_tokens, timeout_s

    async def __call__(self, messages: list[Message], max_tokens: int | None, seed: int) -> Answer:
        body = {
            "model": self._model,
            "messages": messages,
            "temperature": self._temperature,
            "max_tokens": min(max_tokens or self._max_tokens, self._max_tokens),
            "seed": seed,
        }
        try:
            async for attempt in AsyncRetrying(
                stop=stop_after_attempt(ATTEMPTS),
                wait=wait_exponential_jitter(multiplier=0.5, max=30),
                retry=retry_if_exception(_passing),
                reraise=True,
            ):
                with attempt:
                    async with asyncio.timeout(self._timeout_s):  # httpx only bounds each read
                        response = await self._client.post("chat/completions", json=body)
                    response.raise_for_status()
            choice = response.json()["choices"][0]
            return Answer(choice["message"]["content"] or "", choice["finish_reason"] or "stop")
        except httpx.HTTPStatusError as error:
            text = " ".join(error.response.text.split())[:200]
            raise InfrastructureFailure(f"{error.request.url} answered {error.response.status_code}: {text}") from error
        except (httpx.HTTPError, TimeoutError) as error:
            raise InfrastructureFailure(f"{self._client.base_url}: {type(error).__name__}: {error}") from error
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise InfrastructureFailure(f"{self._client.base_url}: not a chat completion: {error!r}") from error

    async def close(self) -> None:
        await self._client.aclose()


def _passing(error: BaseException) -> bool:
    """Worth another try?"""
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code == 429 or error.response.status_code >= 500
    return isinstance(error, httpx.TransportError | TimeoutError)
