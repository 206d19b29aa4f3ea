"""What a reward sees of a judge: one question, one answer. A judge that fails is never a score of 0.

    reply = await judge.ask(messages, component="write/holistic")     scored: the reward parses reply.text
    JudgeFailed                                                       judge failed: every endpoint, within the retry budget
    await judge.unusable("write/holistic", "no JSON", reply)          reply unusable: ask once more with attempt=1, then give up

rlcore/judge_pool.py is the one implementation; tests put a scripted object of the same shape in its place.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from rlcore.environment import Message


class JudgeFailed(Exception):
    """Every endpoint failed within the retry budget; the message says why. The reward is then unavailable."""


@dataclass(frozen=True, slots=True)
class JudgeReply:
    """One answer. `finish_reason` is "stop", or "length" for one that was cut off; `model` is the one that answered; `key` is its
    place in the judge's cache."""

    text: str
    finish_reason: str
    model: str
    cached: bool
    key: str = field(default="", compare=False, repr=False)


class Judge(Protocol):
    """A judge as a reward sees it, an argument of its constructor. Everything about limits and retries is behind it."""

    async def ask(
        self,
        messages: list[Message],
        *,
        component: str,
        schema: dict[str, Any] | None = None,
        max_tokens: int | None = None,
        attempt: int = 0,
    ) -> JudgeReply:
        """Put one question. Raises JudgeFailed.

        `component` names what is judged ("write/holistic"), for metrics. `schema` is a JSON schema, sent as structured output
        where the endpoint has it. `attempt` 0 is the first question, 1 the one re-ask after an unusable reply: it is part of the
        cache's key and nothing else.
        """
        ...

    async def unusable(self, component: str, why: str, reply: JudgeReply) -> None:
        """Count a reply that could not be used, with the reason, and forget it: the same question is then asked anew."""
        ...
