"""Supervised fine-tuning: conversations -> the same rows and the same learner, with the loss on response tokens only.

The response ids are tokenised once, after the rendered prompt, and end with the end-of-turn token the model has to learn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rlcore.batch import Sample, build_rows, token_weights
from rlcore.config import SftConfig
from rlcore.environment import Message
from rlcore.errors import RunFailed
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


async def fine_tune(
    runtime: Runtime, demonstrations: list[Demonstration], config: SftConfig, metrics: MetricsWriter, end_of_turn: int
) -> None:
    """Run `config.steps` optimizer steps of SFT on the runtime's learner. Raises ValueError when there is nothing to learn from.

    A demonstration longer than `model.max_model_len` is left out, and their number is printed.
    """
    from rlcore.loop import optimizer_step  # brings torch, which a dry run does not need

    sequences = [encode(d, runtime.renderer, end_of_turn) for d in demonstrations]
    limit = runtime.config.model.max_model_len
    kept = [(s, d.kind) for s, d in zip(sequences, demonstrations, strict=True) if len(s) <= limit]
    if len(kept) < len(sequences):
        console.print(
            f"sft: {len(sequences) - len(kept)} of {len(sequences)} demonstrations exceed {limit} tokens and are left out"
        )
    if not kept:
        raise ValueError("sft: there are no demonstrations to learn from")
    batches = epochs([kind for _, kind in kept], config.batch_size, runtime.config.seed)
    for step in range(1, config.steps + 1):
        samples = [Sample(kept[i][0], 1.0, n) for n, i in enumerate(next(batches))]
        rows = build_rows(samples, token_weights(samples, config.aggregation), config.row_tokens)
        figures = await optimizer_step(runtime, rows, loss=None)
        if figures["nonfinite"]:
            raise RunFailed(f"sft: the gradient of step {step} is not finite ({figures['grad_norm']})")
        figures["tokens_per_s"] = figures["row_tokens"] / figures["train_s"]
        metrics.log(figures, "sft", step)
        if step % max(1, config.steps // 20) == 0 or step == 1:
            console.print(
                f"sft {step:>4}/{config.steps}  loss {figures['loss']:.3f}  grad {figures['grad_norm']:.2f}  "
                f"{figures['tokens_per_s']:.0f} tokens/s"
            )
