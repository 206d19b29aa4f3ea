"""Cold-start SFT on the teacher's actions: DeepSpeed, loss on response tokens only.

python -m recipes.sft model=smollm2 sft.steps=40 sft.checkpoint_every=10
python -m recipes.sft model=smollm2 sft.steps=40 resume=runs/<id>/sft-checkpoints/step-000020
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from recipes.cli import run_recipe
from recipes.common import begin, metrics_writer, queries
from rlcore.checkpoint import Checkpoints, RunState, export_model, first_state, load_checkpoint, read_state
from rlcore.config import Config
from rlcore.errors import ConfigError
from rlcore.metrics import MetricsWriter, console
from rlcore.queries import kinds_of
from rlcore.runtime import Runtime
from rlcore.sft import Demonstration, choose, fine_tune
from rlcore.types import Query

Lessons = tuple[list[Demonstration], list[Demonstration]]  # to learn from, and for the validation loss


def demonstrations(config: Config, drawn: list[Query]) -> list[Demonstration]:
    """Of the queries that show what to say: with an `output`, or a chat that ends with the assistant (see Demonstration.of)."""
    shown = map(Demonstration.of, drawn, kinds_of(drawn, config.env.group_by))
    return [demonstration for demonstration in shown if demonstration is not None]


def lessons(config: Config, drawn: list[Query]) -> Lessons:
    """What is learned from, of the train queries, and what the validation loss is of. Raises ConfigError when there is nothing to
    learn from."""
    shown = demonstrations(config, drawn)
    if not shown:
        raise ConfigError(
            f"env={config.env.name}: its train queries hold nothing to learn from: no 'messages' with an 'output', and none that "
            "end with the assistant"
        )
    held = (
        choose(demonstrations(config, queries(config, "heldout")), config.sft.validation_samples)
        if config.sft.validate_every
        else []
    )
    return shown, held


async def run_sft(runtime: Runtime, state: RunState, taught: Lessons, metrics: MetricsWriter, run_dir: Path) -> Path:
    """Fine-tune the runtime's learner on what `lessons` gave and export it. Returns the Hugging Face folder."""
    config, timeout_s = runtime.config, runtime.config.cluster.start_timeout_s
    shown, held = taught
    if config.sft.validate_every and not held:
        console.print(f"sft: the held-out queries of env={config.env.name} show no answers, so there is no validation loss")
    state.wandb_id = metrics.wandb_id
    folder = run_dir / "sft-checkpoints"
    async with Checkpoints(folder, runtime.learners, config.sft.keep_checkpoints, 0, timeout_s) as checkpoints:
        await fine_tune(runtime, shown, held, metrics, state, checkpoints)
    export = run_dir / "sft"
    what = await export_model(export, runtime.learners, config.model.path, timeout_s)
    console.print(f"sft: exported to {export} ({what}; reloads in transformers; not tried in vLLM: SFT has no engines)")
    return export


async def _run(runtime: Runtime, state: RunState, taught: Lessons, run_dir: Path) -> None:
    config = runtime.config
    metrics = metrics_writer(config, run_dir, state.wandb_id)
    try:
        await runtime.start_learner(config.model.path, config.sft.optimizer, config.sft.steps, temperature=1.0)
        if config.resume is not None:
            await load_checkpoint(config.resume, runtime.learners, config.cluster.start_timeout_s)
            console.print(f"resumed: step {state.step}; with optimizer and RNG")
        await run_sft(runtime, state, taught, metrics, run_dir)
    finally:
        metrics.close()


def main(config: Config) -> None:
    """Fine-tune `model`, or go on from a checkpoint with `resume`, and export."""
    drawn = queries(config, "train")
    taught = lessons(config, drawn)  # what cannot be read or teaches nothing is said before anything starts
    resumed = config.resume is not None
    state = read_state(config.resume, config, drawn, True) if resumed else first_state(config, config.model.path, drawn, sft=True)
    run_dir = begin(config, uses=("resume",))
    if run_dir is not None:
        with Runtime(config) as runtime:
            asyncio.run(_run(runtime, state, taught, run_dir))


if __name__ == "__main__":
    run_recipe("sft", main)
