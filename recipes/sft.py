"""Cold-start SFT on the teacher's actions: DeepSpeed, loss on response tokens only.

python -m recipes.sft model=smollm2 sft.steps=40
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from recipes.cli import run_recipe
from recipes.common import begin, metrics_writer, queries
from rlcore.checkpoint import export_model
from rlcore.config import Config
from rlcore.errors import ConfigError
from rlcore.metrics import MetricsWriter, console
from rlcore.queries import kinds_of
from rlcore.runtime import Runtime
from rlcore.sft import Demonstration, choose, fine_tune


def demonstrations(config: Config, split: str) -> list[Demonstration]:
    """A split's queries whose data holds `messages` and an `output`: the environment's reference answers."""
    shown = [q for q in queries(config, split) if "output" in q.data]
    kinds = kinds_of(shown, config.env.group_by)
    return [Demonstration(q.data["messages"], q.data["output"], kind) for q, kind in zip(shown, kinds, strict=True)]


def lessons(config: Config) -> tuple[list[Demonstration], list[Demonstration]]:
    """What is learned from, and what the validation loss is of. Raises ConfigError when there is nothing to learn from."""
    shown = demonstrations(config, "train")
    if not shown:
        raise ConfigError(f"env={config.env.name}: its train queries hold no 'messages' and 'output' to learn from")
    held = choose(demonstrations(config, "heldout"), config.sft.validation_samples) if config.sft.validate_every else []
    if config.sft.validate_every and not held:
        console.print(f"sft: the held-out queries of env={config.env.name} hold no 'output', so there is no validation loss")
    return shown, held


async def run_sft(
    runtime: Runtime, shown: list[Demonstration], held: list[Demonstration], metrics: MetricsWriter, run_dir: Path
) -> Path:
    """Fine-tune the runtime's learner and export it. Returns the Hugging Face folder."""
    config = runtime.config
    await fine_tune(runtime, shown, held, metrics)
    export = run_dir / "sft"
    what = await export_model(export, runtime.learners, config.model.path, config.cluster.start_timeout_s)
    console.print(f"sft: exported to {export} ({what}; reloads in transformers; not tried in vLLM: SFT has no engines)")
    return export


async def _run(runtime: Runtime, shown: list[Demonstration], held: list[Demonstration], run_dir: Path) -> None:
    config = runtime.config
    metrics = metrics_writer(config, run_dir)
    try:
        await runtime.start_learner(config.model.path, config.sft.optimizer, config.sft.steps, temperature=1.0)
        await run_sft(runtime, shown, held, metrics, run_dir)
    finally:
        metrics.close()


def main(config: Config) -> None:
    """Fine-tune and export."""
    shown, held = lessons(config)  # what cannot be read is said before anything starts
    run_dir = begin(config)
    if run_dir is not None:
        with Runtime(config) as runtime:
            asyncio.run(_run(runtime, shown, held, run_dir))


if __name__ == "__main__":
    run_recipe("sft", main)
