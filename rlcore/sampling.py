"""What the policy client asks of an engine and what comes back. Plain data, importable anywhere."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True)
class Sampling:
    """How to sample one completion. `seed` makes one request reproducible whatever else is in the batch."""

    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 256
    seed: int | None = None


@dataclass(slots=True)
class Generation:
    """Sampled ids, their log-probabilities (nats, of the distribution sampled from) and policy versions, equally long.

    `finish_reason` is "stop" (an end token, which is part of `token_ids`), "length" or "abort". `prompt_logprobs[i]` is
    log p(prompt[i+1] | prompt[:i+1]), filled by the parity probe only.
    """

    token_ids: list[int]
    logprobs: list[float]
    versions: list[int]
    finish_reason: str
    prompt_logprobs: list[float] = field(default_factory=list)


class EngineClient(Protocol):
    """Anything that turns prompt ids into a generation: the engine group, or a fake with known answers in tests."""

    async def generate(self, prompt_ids: list[int], sampling: Sampling) -> Generation: ...
