"""Supervised fine-tuning: conversations -> the same rows and the same learner, with the loss on response tokens only.

The ids of a turn are tokenised by themselves, as the model would sample them, and end with the end-of-turn token it has to learn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from rlcore.batch import Row, Sample, build_rows, spread_rows, token_weights
from rlcore.checkpoint import Checkpoints, RunState
from rlcore.environment import Message
from rlcore.errors import ConfigError, RunFailed, deadline
from rlcore.evaluation import EVALUATION_SEED
from rlcore.metrics import MetricsWriter, console
from rlcore.policy import ChatRenderer
from rlcore.queries import epoch_order
from rlcore.runtime import Runtime
from rlcore.types import Query, Sequence

ASSISTANT = "assistant"


@dataclass(frozen=True)
class Demonstration:
    """A prompt and the turns that follow it. The assistant's are learned, the others are context between them; the first and the
    last are the assistant's. `kind` is spread evenly over the batches."""

    messages: list[Message]
    turns: list[Message]
    kind: Hashable = None

    @classmethod
    def of(cls, query: Query, kind: Hashable = None) -> Demonstration | None:
        """Of a query's data: `messages` and an `output` to them, which alone is learned, or `messages` that are a whole chat and
        end with the assistant, all of whose turns are. None when there is nothing to learn.

        Raises ConfigError naming the query when these are not a chat.
        """
        messages, output = query.data.get("messages"), query.data.get("output")
        if output is not None:
            if not isinstance(output, str):
                raise ConfigError(f"query {query.id!r}: 'output' must be text, got {type(output).__name__}")
            return cls(_chat(query.id, messages), [{"role": ASSISTANT, "content": output}], kind)
        last = messages[-1] if isinstance(messages, list) and messages else None
        if not isinstance(last, dict) or last.get("role") != ASSISTANT:
            return None
        chat = _chat(query.id, messages)
        first = next(i for i, message in enumerate(chat) if message["role"] == ASSISTANT)
        return cls(chat[:first], chat[first:], kind)


def _chat(query_id: str, messages: Any) -> list[Message]:
    """The messages, which are a chat. Raises ConfigError when they are none."""
    if not isinstance(messages, list) or not messages:
        raise ConfigError(f"query {query_id!r}: 'messages' must be a list of messages, got {messages!r:.80}")
    for number, message in enumerate(messages):
        if not isinstance(message, dict) or not all(isinstance(message.get(key), str) for key in ("role", "content")):
            raise ConfigError(f"query {query_id!r}: messages[{number}] must have a 'role' and a 'content', both text")
    if messages[0]["role"] == ASSISTANT:
        raise ConfigError(f"query {query_id!r}: messages[0] is the assistant's, who has nothing to answer")
    return messages


def encode(demonstration: Demonstration, renderer: ChatRenderer, end_of_turn: int) -> Sequence:
    """What a policy would have recorded that said this in a conversation: its turns, each with its end, are trained tokens; the
    prompt, and what the template puts between turns, are context."""
    sequence = Sequence()
    sequence.append_context(renderer.prompt(demonstration.messages))
    before, last, new = list(demonstration.messages), None, []
    for turn in demonstration.turns:
        if turn["role"] != ASSISTANT:
            new.append(turn)
            continue
        if last is not None:
            sequence.append_context(renderer.bridge_ids(before, new, end_of_turn))
            before += [last, *new]
        sequence.append_demonstrated([*renderer.ids(turn["content"]), end_of_turn])
        last, new = turn, []
    return sequence


def epochs(kinds: list[Hashable], batch_size: int, seed: int) -> Any:
    """Endless batches of indices into `kinds`; each epoch is an `epoch_order` of its own, batches run across epochs."""
    queue: list[int] = []
    epoch = 0
    while True:
        while len(queue) < batch_size:
            queue += epoch_order(kinds, seed, epoch)
            epoch += 1
        yield queue[:batch_size]
        queue = queue[batch_size:]


def choose(demonstrations: list[Demonstration], count: int) -> list[Demonstration]:
    """`count` of them, their kinds spread evenly; the same in every run."""
    order = epoch_order([d.kind for d in demonstrations], EVALUATION_SEED, 0)
    return [demonstrations[i] for i in sorted(order[:count])]


def fitting(demonstrations: list[Demonstration], runtime: Runtime, what: str) -> list[tuple[Sequence, Hashable]]:
    """Sequences and kinds of the demonstrations that `model.max_model_len` allows; how many are too long is printed."""
    limit, end_of_turn = runtime.config.model.max_model_len, runtime.tokenizer.eos_token_id
    sequences = [(encode(d, runtime.renderer, end_of_turn), d.kind) for d in demonstrations]
    kept = [(s, kind) for s, kind in sequences if len(s) <= limit]
    if len(kept) < len(sequences):
        console.print(f"sft: {len(sequences) - len(kept)} of {len(sequences)} {what} exceed {limit} tokens and are left out")
    return kept


def rows_of(sequences: list[Sequence], aggregation: str, row_tokens: int) -> list[Row]:
    samples = [Sample(s, 1.0, n) for n, s in enumerate(sequences)]
    return build_rows(samples, token_weights(samples, aggregation), row_tokens)


async def validation_loss(runtime: Runtime, rows: list[Row]) -> float:
    """Mean negative log-likelihood of the rows' response tokens when their weights are `token_mean`; no gradient is computed."""
    shares = spread_rows(rows, len(runtime.learners))
    async with deadline("the validation loss", runtime.config.cluster.step_timeout_s, "cluster.step_timeout_s"):
        return sum(await asyncio.gather(*(a.sft_loss.remote(s) for a, s in zip(runtime.learners, shares, strict=True))))


async def fine_tune(
    runtime: Runtime, demonstrations: list[Demonstration], heldout: list[Demonstration], metrics: MetricsWriter,
    state: RunState, checkpoints: Checkpoints,
) -> None:  # fmt: skip
    """Run the optimizer steps of SFT that `state` has not, up to `sft.steps`, on the runtime's learner.

    `heldout` gives the validation loss, every `sft.validate_every` steps and after the last; none is computed without it. A
    checkpoint is saved every `sft.checkpoint_every` steps, and before the RunFailed of a gradient that is not finite. Raises
    ConfigError when no demonstration fits the model.
    """
    from rlcore.loop import optimizer_step  # brings torch, which a dry run does not need

    config = runtime.config.sft
    kept = fitting(demonstrations, runtime, "demonstrations")
    if not kept:
        raise ConfigError(f"model.max_model_len={runtime.config.model.max_model_len} has room for none of the demonstrations")
    unseen = [s for s, _ in fitting(heldout, runtime, "held-out demonstrations")]
    validation = rows_of(unseen, "token_mean", config.row_tokens)
    batches = epochs([kind for _, kind in kept], config.batch_size, runtime.config.seed)
    for _ in range(state.step):  # what was learned before
        next(batches)
    for step in range(state.step + 1, config.steps + 1):
        rows = rows_of([kept[i][0] for i in next(batches)], config.aggregation, config.row_tokens)
        figures = await optimizer_step(runtime, rows, loss=None)
        if figures["nonfinite"]:  # then nothing has changed
            await checkpoints.save(state)
            raise RunFailed(f"sft: the gradient of step {step} is not finite ({figures['grad_norm']})")
        state.step = step
        checkpoints.check()
        if config.checkpoint_every and step % config.checkpoint_every == 0:
            await checkpoints.save(state)
        figures["tokens_per_s"] = figures["row_tokens"] / figures["train_s"]
        validated = bool(validation) and (step % config.validate_every == 0 or step == config.steps)
        if validated:
            figures["validation_loss"] = await validation_loss(runtime, validation)
        metrics.log(figures, "sft", step)
        if validated or step % max(1, config.steps // 20) == 0 or step == 1:
            told = f"  validation {figures['validation_loss']:.3f} over {len(unseen)}" if validated else ""
            console.print(
                f"sft {step:>4}/{config.steps}  loss {figures['loss']:.3f}  grad {figures['grad_norm']:.2f}  "
                f"{figures['tokens_per_s']:.0f} tokens/s{told}"
            )
