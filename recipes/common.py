"""What the recipes share: the start of a run, the queries of an environment, and the evaluation of what is in service."""

from __future__ import annotations

import random
from pathlib import Path

import yaml

from rlcore.checkpoint import make_run_dir
from rlcore.cluster import check_placement, local_resources, print_plan
from rlcore.config import Config, check_files
from rlcore.errors import ConfigError
from rlcore.evaluation import EVALUATION_SEED, Evaluation, roll_out, summarise
from rlcore.metrics import MetricsWriter, console
from rlcore.runtime import Runtime, config_as_dict
from rlcore.targets import Target, build
from rlcore.types import Query, Trajectory


def begin(config: Config, uses: tuple[str, ...] = ()) -> Path | None:
    """Check what can be checked and make the run's folder; None after a dry run, which prints what would happen instead.

    `uses` names the inputs of single recipes ("resume", "replay") that this one reads; another one that is set is refused.
    """
    for name in ("resume", "replay"):
        if getattr(config, name) is not None and name not in uses:
            raise ConfigError(f"recipes.{config.recipe_name} does not use {name}; leave {name}={getattr(config, name)!r} out")
    if config.cluster.address is None:
        check_placement(config, *local_resources())
    check_files(config)
    if config.dry_run:
        console.print(yaml.safe_dump(config_as_dict(config), sort_keys=False))
        print_plan(config)
        return None
    run_dir = make_run_dir(config)
    console.print(f"[bold]{config.recipe_name}[/bold]  model {config.model.name}  seed {config.seed}  run folder {run_dir}")
    print_plan(config)
    return run_dir


def metrics_writer(config: Config, run_dir: Path, wandb_id: str | None = None) -> MetricsWriter:
    return MetricsWriter(run_dir, config.wandb, config_as_dict(config), wandb_id)


def queries(config: Config, split: str) -> list[Query]:
    """The environment's queries of a split ("train" or "heldout")."""
    return build(Target(config.env.queries.target, {**config.env.queries.args, "split": split}))


def evaluation_queries(config: Config) -> list[Query]:
    """The held-out queries every evaluation uses: all of them, or a fixed random choice of `evaluate.queries`."""
    heldout = queries(config, "heldout")
    count = min(config.evaluate.queries, len(heldout))
    return [heldout[i] for i in sorted(random.Random(EVALUATION_SEED).sample(range(len(heldout)), count))]


async def evaluate_policy(runtime: Runtime, held: list[Query], metrics: MetricsWriter, name: str, step: int) -> Evaluation:
    """Evaluate what the engines serve, log it under `name` and print one line."""
    return (await evaluate_rollouts(runtime, held, metrics, name, step))[0]


async def evaluate_rollouts(
    runtime: Runtime, held: list[Query], metrics: MetricsWriter, name: str, step: int
) -> tuple[Evaluation, list[Trajectory]]:
    """`evaluate_policy`, and the trajectories it saw."""
    e, k = runtime.config.evaluate, runtime.config.cluster
    rollouts = runtime.rollouts(e.temperature, e.max_tokens, EVALUATION_SEED)
    concurrency = k.engines * k.max_num_seqs
    rolling = roll_out(rollouts, held, runtime.config.algo.max_failed_share, concurrency, e.samples)
    trajectories = await runtime.judges.beside(rolling)
    result = summarise(trajectories, runtime.config.env.group_by)
    metrics.log(result.figures() | await runtime.judges.figures(), name, step)
    over = f"over {len(result.rewards)} queries, {result.unscored} unscored"
    console.print(f"{name}: held-out reward {result.reward:.3f} +- {result.error:.3f} {over}")
    return result, trajectories
