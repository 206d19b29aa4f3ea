"""Supervised fine-tuning: conversations -> the same rows and the same learner, with the loss on response tokens only.

The response ids are tokenised once, after the rendered prompt, and end with the end-of-turn token the model has to learn.
"""

from __future__ import annotations

import asyncio
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
from rlcore.types import Sequence


@dataclass(frozen=True)
class Demonstration:
    """A prompt and the response to learn; `kind` is spread evenly over the batches."""

    messages: list[Message]
    response: str
    kind: str | None = None


def encode(demonstration: Demonstration, renderer: ChatRenderer, end_of_turn: int) -> Sequence:
    """Prompt as context, response and end of turn as trained tokens (policy version 0, log-probabilities unknown: 0)."""
    ids = [*renderer.tokenizer(demonstration.response, add_special_tokens=False)["input_ids"], end_of_turn]
    return Sequence.demonstrated(renderer.prompt(demonstration.messages), ids)


def epochs(kinds: list[str | None], batch_size: int, seed: int) -> Any:
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


def fitting(demonstrations: list[Demonstration], runtime: Runtime, what: str) -> list[tuple[Sequence, str | None]]:
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
