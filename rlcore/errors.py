"""The few exceptions the framework gives a meaning to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class ConfigError(ValueError):
    """The user's configuration cannot work. Raised before anything heavy starts; the message names field and value."""


class DataFailure(Exception):
    """A rollout cannot be used because of its data (an impossible query, a prompt too long). Counted, not retried."""


class NoRoom(DataFailure):
    """A prompt leaves no room for a reply in the model's context. An environment may go on without that reply."""


class InfrastructureFailure(Exception):
    """A rollout was lost to machinery (an engine, a service, the network). Worth another try elsewhere."""


class ParityError(RuntimeError):
    """After a weight push, an engine's log-probabilities differ from the learner's: sampling must stop."""


class RunFailed(RuntimeError):
    """The run cannot go on: too many rollouts failed, or a step outlived its deadline."""


@asynccontextmanager
async def deadline(what: str, seconds: float, option: str) -> AsyncIterator[None]:
    """Bound what is awaited inside. Raises RunFailed saying what was awaited, for how long, and which option allows more."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise RunFailed(f"{what} did not end within {seconds:g} s ({option})") from error
