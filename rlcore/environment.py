"""The environment protocol: a plain coroutine that asks a policy for completions.

An environment knows nothing of Ray, tokens or training. The policy it is given records ids, masks, log-probabilities and
versions by itself (see rlcore/policy.py), so an author cannot get them wrong. It must be safe to run many rollouts of one
instance at the same time: keep state in local variables of `run`.
"""

from __future__ import annotations

from typing import Any, Protocol

from rlcore.types import Outcome, Query

Message = dict[str, str]  # {"role": "system" | "user" | "assistant" | "tool", "content": text}


class Completion(Protocol):
    """What a policy returns for one model call."""

    @property
    def text(self) -> str: ...

    @property
    def finish_reason(self) -> str:
        """ "stop": the model ended by itself; "length": cut by a limit."""
        ...


class Conversation(Protocol):
    """A chat that grows: every `generate` appends the model's turn, every `add` one or more of the environment's."""

    messages: list[Message]

    def add(self, *messages: Message) -> None: ...

    async def generate(self, *, max_tokens: int | None = None, span: str | None = None) -> Completion: ...


class Policy(Protocol):
    """The model as an environment sees it."""

    async def generate(self, messages: list[Message], *, max_tokens: int | None = None, span: str | None = None) -> Completion:
        """One completion of an independent prompt, recorded as a sequence of its own. `span` names its tokens."""
        ...

    def conversation(self, messages: list[Message]) -> Conversation:
        """A growing conversation, recorded as one sequence for as long as its prefix is kept."""
        ...


class Environment(Protocol):
    async def run(self, query: Query, policy: Policy) -> Outcome:
        """Play one query to its end. Bad model output belongs in the outcome; raise only DataFailure or what is broken."""
        ...


class Reward(Protocol):
    """Scores one finished trajectory. May be a coroutine function; a plain function of the same shape is a Reward too."""

    def __call__(self, trajectory: Any) -> Any: ...
