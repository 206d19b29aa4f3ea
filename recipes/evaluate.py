"""Evaluate a model as it lies on disk on held-out queries; optionally, its reports after forced numbers of expansions.

    python -m recipes.evaluate recipe=pipeline model.path=runs/<id>/export evaluate.queries=20
    python -m recipes.evaluate recipe=pipeline model.path=runs/<id>/export 'evaluate.expansions=[0,1,2,3,4]' \\
        env.args.limits.max_expansions=4 env.args.limits.max_steps=60

The run's folder gets evaluation.json and, with `evaluate.expansions`, expansions.json and expansions.png (recipes/expansions.py).
Forced reports have room for their expansions; the policy's own stop shows only under limits that leave it the choice.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

from envs.warp.report import Report
from recipes.cli import run_recipe
from recipes.common import begin, evaluate_rollouts, evaluation_queries, metrics_writer
from recipes.expansions import ForcedReport, curve, plot, score_drafts
from rlcore.config import Config
from rlcore.errors import ConfigError
from rlcore.evaluation import EVALUATION_SEED, roll_out
from rlcore.files import write_atomic
from rlcore.metrics import console
from rlcore.runtime import Runtime
from rlcore.targets import resolve
from rlcore.types import Query, Trajectory


async def run_evaluation(runtime: Runtime, held: list[Query], run_dir: Path) -> None:
    """Rollouts of every held-out query under the environment's own limits, then the forced ones."""
    config = runtime.config
    metrics = metrics_writer(config, run_dir)
    try:
        await runtime.start_rollouts()
        await runtime.serve_loaded()
        result, free = await evaluate_rollouts(runtime, held, metrics, "evaluation", 0)
        rewards = {"model": config.model.path, "rewards": result.rewards, "means": result.by_kind, "unscored": result.unscored}
        write_atomic(run_dir / "evaluation.json", json.dumps(rewards, indent=2))
        if config.evaluate.expansions:
            await force_expansions(runtime, held, free, run_dir)
    finally:
        metrics.close()
    console.print(f"run folder: {run_dir}")


async def force_expansions(runtime: Runtime, held: list[Query], free: list[Trajectory], run_dir: Path) -> None:
    """Score the reports after each of `evaluate.expansions` on the same queries and seeds; write the curve and its plot."""
    config, e = runtime.config, runtime.config.evaluate
    rollouts = runtime.rollouts(e.temperature, e.max_tokens, EVALUATION_SEED)
    rollouts = replace(rollouts, environment=ForcedReport(runtime.environment, e.expansions), score=score_drafts(rollouts.score))
    concurrency = config.cluster.engines * config.cluster.max_num_seqs
    forced = await runtime.judges.beside(roll_out(rollouts, held, config.algo.max_failed_share, concurrency))
    result = {"model": config.model.path, **curve(forced, free, e.expansions)}
    write_atomic(run_dir / "expansions.json", json.dumps(result, indent=2))
    plot(result, run_dir / "expansions.png")
    for point in result["forced"]:
        console.print(f"expansions {point['expansions']:>2}: reward {point['reward']:.3f} over {point['n']} reports")
    own = result["own"]
    if own["n"]:
        console.print(f"its own stop: reward {own['reward']:.3f} after {own['expansions']:.1f} expansions {own['distribution']}")
    console.print(f"ended by a limit of the environment instead: {result['limited']} reports")


def main(config: Config) -> None:
    """Evaluate `model`. Raises ConfigError when expansions are to be forced in another environment than whole reports."""
    if config.evaluate.expansions and resolve(config.env.target) is not Report:
        raise ConfigError(f"evaluate.expansions needs whole reports (env=warp_report), not env={config.env.name}")
    if config.evaluate.expansions and (config.env.args.get("limits") or {}).get("control") == "plan_then_write":
        raise ConfigError("evaluate.expansions needs an environment that expands: limits.control=plan_then_write never does")
    held = evaluation_queries(config)  # what cannot be read is said before anything starts
    run_dir = begin(config)
    if run_dir is not None:
        with Runtime(config) as runtime:
            asyncio.run(run_evaluation(runtime, held, run_dir))


if __name__ == "__main__":
    run_recipe("evaluate", main)
