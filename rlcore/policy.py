"""The recording policy client: what an environment talks to, and what fills a trajectory's sequences.

    messages --(chat template)--> prompt ids --(engine)--> sampled ids --> Sequence (+ text back to the environment)

Ids come from the engine and are appended verbatim. In a conversation only the template's bridge (end of the model's turn,
the new messages, the next header) is added, as context; nothing the model wrote is ever rendered or tokenised again.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

from rlcore.environment import Message
from rlcore.errors import NoRoom
from rlcore.sampling import EngineClient, Sampling
from rlcore.types import Sequence, Trajectory

_MARKER = "\u241fREPLY\u241f"  # stands for the model's turn while the text around it is rendered


@dataclass(frozen=True)
class ModelReply:
    """One completion: its text without special tokens, its ids, and why it ended ("stop", "length" or "abort")."""

    text: str
    token_ids: list[int]
    finish_reason: str


class ChatRenderer:
    """The one place that turns messages into token ids, by the tokenizer's own chat template."""

    def __init__(self, tokenizer: Any, template_kwargs: dict[str, Any] | None = None) -> None:
        self.tokenizer = tokenizer
        self.template_kwargs = template_kwargs or {}
        if not tokenizer.chat_template:
            raise ValueError(f"the tokenizer of {tokenizer.name_or_path!r} has no chat template")

    def _text(self, messages: list[Message], generation_prompt: bool) -> str:
        return self.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=generation_prompt, **self.template_kwargs
        )

    def ids(self, text: str) -> list[int]:
        """Token ids of a text as it stands, without special tokens around it."""
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def prompt(self, messages: list[Message]) -> list[int]:
        """Ids of the messages followed by the header of the model's turn."""
        return self.ids(self._text(messages, True))

    def bridge(self, messages: list[Message], new: list[Message]) -> str:
        """The text between the end of the model's last turn and its next one, when `new` is added after it.

        Found by rendering with a marker as the model's turn, so a default system prompt is not injected again and no
        length is subtracted from another. Raises ValueError when the template does not render the marker exactly once.
        """
        rendered = self._text([*messages, {"role": "assistant", "content": _MARKER}, *new], True)
        parts = rendered.split(_MARKER)
        if len(parts) != 2:
            raise ValueError("the chat template does not keep the assistant's text verbatim; conversations cannot be extended")
        return parts[1]

    def bridge_ids(self, messages: list[Message], new: list[Message], last_sampled: int) -> list[int]:
        """Token ids of the bridge, without the end-of-turn token when the model has already sampled it."""
        ids = self.ids(self.bridge(messages, new))
        return ids[1:] if ids and ids[0] == last_sampled else ids

    def decode(self, token_ids: list[int]) -> str:
        return self.tokenizer.decode(token_ids, skip_special_tokens=True)


class RecordingPolicy:
    """A policy for one trajectory. Every model call becomes tokens of one of the trajectory's sequences.

    `sampling.max_tokens` is the limit an environment may lower per call. A prompt that leaves no room raises NoRoom.
    Each call has `call_timeout_s` seconds. With `sampling.seed` set, the n-th call uses seed + n.
    """

    def __init__(
        self,
        engine: EngineClient,
        renderer: ChatRenderer,
        sampling: Sampling,
        max_model_len: int,
        trajectory: Trajectory,
        call_timeout_s: float,
    ) -> None:
        self._engine, self._renderer, self._sampling = engine, renderer, sampling
        self._max_model_len, self._trajectory, self._call_timeout_s = max_model_len, trajectory, call_timeout_s
        self._calls = 0

    async def generate(self, messages: list[Message], *, max_tokens: int | None = None, span: str | None = None) -> ModelReply:
        """One completion of an independent prompt, recorded as a sequence of its own."""
        sequence = Sequence()
        sequence.append_context(self._renderer.prompt(messages))
        self._trajectory.sequences.append(sequence)
        return await self._sample(sequence, max_tokens, span)

    def conversation(self, messages: list[Message]) -> RecordedConversation:
        """A growing conversation that starts with `messages`."""
        return RecordedConversation(self, self._renderer, messages)

    async def _sample(self, sequence: Sequence, max_tokens: int | None, span: str | None) -> ModelReply:
        room = self._max_model_len - len(sequence)
        if room < 1:
            raise NoRoom(f"prompt of {len(sequence)} tokens leaves no room in max_model_len={self._max_model_len}")
        limit = min(room, self._sampling.max_tokens, max_tokens or self._sampling.max_tokens)
        seed = None if self._sampling.seed is None else self._sampling.seed + self._calls
        self._calls += 1
        sampling = Sampling(self._sampling.temperature, self._sampling.top_p, limit, seed)
        began = time.monotonic()
        async with asyncio.timeout(self._call_timeout_s):
            out = await self._engine.generate(list(sequence.token_ids), sampling)
        self._trajectory.timings.setdefault("model", []).append(time.monotonic() - began)
        sequence.append_sampled(out.token_ids, out.logprobs, out.versions, out.finish_reason, span)
        return ModelReply(self._renderer.decode(out.token_ids), out.token_ids, out.finish_reason)


class RecordedConversation:
    """A chat recorded as one sequence: the model's turns verbatim (mask 1), everything else as context (mask 0)."""

    def __init__(self, policy: RecordingPolicy, renderer: ChatRenderer, messages: list[Message]) -> None:
        self.messages = list(messages)
        self._policy, self._renderer = policy, renderer
        self._sequence: Sequence | None = None
        self._new: list[Message] = []

    def add(self, *messages: Message) -> None:
        """Append messages of the environment (a tool's result, the user's next turn)."""
        self._new += messages

    async def generate(self, *, max_tokens: int | None = None, span: str | None = None) -> ModelReply:
        """The model's next turn."""
        if self._sequence is None:
            self.messages += self._new
            self._sequence = Sequence()
            self._sequence.append_context(self._renderer.prompt(self.messages))
            self._policy._trajectory.sequences.append(self._sequence)
        else:
            before = self.messages[:-1]  # the last message is the model's own turn, which the marker stands for
            self._sequence.append_context(self._renderer.bridge_ids(before, self._new, self._sequence.token_ids[-1]))
            self.messages += self._new
        self._new = []
        reply = await self._policy._sample(self._sequence, max_tokens, span)
        self.messages.append({"role": "assistant", "content": reply.text})
        return reply
