"""The whole curriculum in one run: teacher trajectories -> SFT -> atomic RL -> a written report, evaluated between stages.

    python -m recipes.curriculum recipe=demo seed=1

One set of engines serves all stages; the learner is started anew for each stage and pushes its weights before the first sample.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
from pathlib import Path

from rich.table import Table

from envs.warp.report import Report
from recipes.atomic_rl import run_rl
from recipes.cli import run_recipe
from recipes.common import begin, evaluate_policy, evaluation_queries, metrics_writer, queries
from recipes.reports import ask_engines, describe, report_settings, write_report
from recipes.sft import lessons, run_sft
from recipes.trajectories import build_trajectories, check_trajectories
from rlcore.checkpoint import first_state
from rlcore.config import Config
from rlcore.errors import DataFailure, InfrastructureFailure
from rlcore.evaluation import EVALUATION_SEED, Evaluation, paired_gain
from rlcore.files import write_atomic
from rlcore.metrics import console
from rlcore.queries import split_queries
from rlcore.runtime import Runtime

STAGES = ("before SFT", "after SFT", "after RL")


async def run_curriculum(runtime: Runtime, run_dir: Path) -> None:
    """All stages. Prints the table of held-out results and writes it, and the reports, into the run's folder."""
    config = runtime.config
    metrics = metrics_writer(config, run_dir)
    try:
        await asyncio.gather(
            build_trajectories(runtime),
            runtime.start_rollouts(),
            runtime.start_learner(config.model.path, config.sft.optimizer, config.sft.steps, temperature=1.0),
        )
        held = evaluation_queries(config)
        await runtime.connect(held)
        await runtime.push()
        baseline = random.Random(EVALUATION_SEED).sample(held, min(config.evaluate.baseline_queries, len(held)))
        results = [await evaluate_policy(runtime, baseline, metrics, STAGES[0], 0)]
        drawn = queries(config, "train")
        state = first_state(config, config.model.path, drawn, sft=True)
        tuned = await run_sft(runtime, state, lessons(config, drawn), metrics, run_dir)
        await runtime.start_policy_learner(str(tuned))
        await runtime.connect(held)
        await runtime.push()
        results.append(await evaluate_policy(runtime, held, metrics, STAGES[1], 0))
        state = first_state(config, str(tuned), drawn, runtime.version)
        checkpoints = await run_rl(runtime, state, drawn, held, metrics, run_dir)
        # A report asks for one action after another: beside the evaluation's many requests that costs next to nothing.
        result, reports = await asyncio.gather(
            evaluate_policy(runtime, held, metrics, STAGES[2], state.step), write_reports(runtime, run_dir)
        )
        checkpoints.scored(state.step, result.reward)
        summarise([*results, result], run_dir)
        for report in reports:
            console.print(report, markup=False)
        console.print(f"run folder: {run_dir}")
    finally:
        metrics.close()


async def write_reports(runtime: Runtime, run_dir: Path) -> list[str]:
    """Whole reports by the trained policy on held-out questions, as Markdown with a reference list.

    Returns for each what to print: its file, its figures and its text, or why there is none.
    """
    config = runtime.config
    texts: list[str] = []
    heldout = split_queries(str(Path(config.trajectories.world) / "queries.jsonl"), "heldout")
    limits, settings = config.env.args.get("limits"), report_settings(config, str(run_dir))
    for query in heldout[: config.evaluate.reports]:
        path = run_dir / "reports" / f"{query.id}.md"
        try:
            async with asyncio.timeout(config.cluster.trajectory_timeout_s):
                outcome = await write_report(
                    query, lambda r: Report(r, limits), runtime.environment.retriever, ask_engines(runtime, query), path, settings
                )
        except (DataFailure, InfrastructureFailure, TimeoutError) as error:
            texts.append(f"report: {query.id} could not be written: {type(error).__name__}: {error}")
            continue
        texts.append(f"report: {path} ({describe(outcome)})\n\n{outcome.data['report_markdown']}")
    return texts


def summarise(results: list[Evaluation], run_dir: Path) -> None:
    """The closing table and `summary.json`: format-valid rate and mean reward per action at each stage, and RL's paired gain."""
    table = Table(title="held-out: format-valid rate / mean reward (replies)")
    for column in ("action", *STAGES):
        table.add_column(column, justify="left" if column == "action" else "right")
    for kind in results[-1].by_kind:
        table.add_row(kind, *(_cell(r.by_kind.get(kind)) for r in results))
    console.print(table)
    gain, error, count = paired_gain(results[1], results[2])
    times = f", {gain / error:+.1f} standard errors" if error > 0 else ""
    console.print(f"gain of RL over SFT: {gain:+.3f} +- {error:.3f} (paired over {count} queries{times})")
    summary = {"stages": dict(zip(STAGES, [r.by_kind for r in results], strict=True)), "rl_gain": gain, "rl_gain_se": error}
    write_atomic(run_dir / "summary.json", json.dumps(summary, indent=2))


def _cell(values: dict[str, float] | None) -> str:
    return "-" if values is None else f"{values.get('valid', math.nan):.2f} / {values['reward']:.3f} ({values['n']:.0f})"


def main(config: Config) -> None:
    """Run every stage."""
    check_trajectories(config)
    run_dir = begin(config)
    if run_dir is not None:
        with Runtime(config) as runtime:
            asyncio.run(run_curriculum(runtime, run_dir))


if __name__ == "__main__":
    run_recipe("curriculum", main)
