"""Atomic skill RL: GRPO on single actions (or on whatever environment `env=` names).

python -m recipes.atomic_rl model=smollm2 algo.group_size=8
python -m recipes.atomic_rl env=vowels model=tiny
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from recipes.cli import run_recipe
from recipes.common import begin, evaluate_policy, evaluation_queries, metrics_writer, queries
from rlcore.checkpoint import Checkpoints, RunState, export_model, first_state, load_checkpoint, read_state
from rlcore.config import Config
from rlcore.metrics import MetricsWriter, console
from rlcore.queries import QueryCursor, kinds_of
from rlcore.runtime import Runtime
from rlcore.types import Query


async def run_rl(
    runtime: Runtime, state: RunState, drawn: list[Query], held: list[Query], metrics: MetricsWriter, run_dir: Path
) -> Checkpoints:
    """Train the runtime's learner, already in service on the engines, on `drawn`; checkpoint and export at the end.

    The export is put into service from its files, so that what is evaluated afterwards is what was written. Returns the run's
    checkpoints.
    """
    from rlcore.loop import train  # brings torch, which a dry run does not need

    config = runtime.config
    kinds = kinds_of(drawn, config.env.group_by)
    cursor = QueryCursor(drawn, config.seed, position=state.position, done=state.done, kinds=kinds)

    async def evaluate_at(step: int) -> float:
        return (await evaluate_policy(runtime, held, metrics, "heldout", step)).reward

    state.wandb_id = metrics.wandb_id
    algo, timeout_s = config.algo, config.cluster.start_timeout_s
    checkpoints = Checkpoints(run_dir / "checkpoints", runtime.learners, algo.keep_checkpoints, algo.keep_best, timeout_s)
    async with checkpoints:
        await train(runtime, cursor, state, metrics, run_dir, checkpoints, evaluate_at)
        await checkpoints.save(state)
        export = run_dir / "export"
        what = await export_model(export, runtime.learners, config.model.path, timeout_s)
    loaded = await runtime.push(export)
    console.print(f"rl: exported to {export} ({what}; reloads in transformers, and in vLLM to within {loaded['parity']:.1e})")
    return checkpoints


async def _run(runtime: Runtime, state: RunState, drawn: list[Query], held: list[Query], run_dir: Path) -> None:
    config = runtime.config
    await asyncio.gather(runtime.start_rollouts(), runtime.start_policy_learner(config.model.path))
    if config.resume is not None:
        await load_checkpoint(config.resume, runtime.learners, config.cluster.start_timeout_s)
        runtime.version = state.version - 1  # the push below puts the restored weights into service under their own version
        console.print(
            f"resumed: step {state.step}, {state.position} queries done, version {state.version}; with optimizer and RNG"
        )
    await runtime.connect(held)
    await runtime.push()
    metrics = metrics_writer(config, run_dir, state.wandb_id)
    try:
        checkpoints = await run_rl(runtime, state, drawn, held, metrics, run_dir)
        checkpoints.scored(state.step, (await evaluate_policy(runtime, held, metrics, "heldout", state.step)).reward)
    finally:
        metrics.close()


def main(config: Config) -> None:
    """Train from `model`, or from a checkpoint with `resume`."""
    drawn, held = queries(config, "train"), evaluation_queries(config)  # what cannot be read is said before anything starts
    resumed = config.resume is not None
    state = read_state(config.resume, config, drawn) if resumed else first_state(config, config.model.path, drawn)
    run_dir = begin(config, uses=("resume",))
    if run_dir is not None:
        with Runtime(config) as runtime:
            asyncio.run(_run(runtime, state, drawn, held, run_dir))


if __name__ == "__main__":
    run_recipe("atomic_rl", main)
