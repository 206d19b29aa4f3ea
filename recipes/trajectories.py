"""Teacher trajectories: the scripted teacher plays every query of the world; its actions become samples with references.

python -m recipes.trajectories            # writes <trajectories.folder>/{train,heldout}.jsonl
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
from pathlib import Path

from envs.warp.samples import balance, collect, write_samples
from recipes.cli import run_recipe
from recipes.common import begin
from rlcore.checkpoint import write_atomic
from rlcore.config import Config
from rlcore.errors import ConfigError, RunFailed
from rlcore.metrics import console
from rlcore.queries import read_queries
from rlcore.runtime import Runtime
from rlcore.types import Query


async def build_trajectories(runtime: Runtime) -> None:
    """Write the samples of both splits, unless the folder already holds those of this world and this configuration."""
    config = runtime.config
    t = config.trajectories
    folder, source = Path(t.folder), Path(t.world) / "queries.jsonl"
    if not source.is_file():
        raise ConfigError(
            f"trajectories.world={t.world!r} has no queries.jsonl; build it with `python -m tools.build_world --out {t.world}`"
        )
    key = [hashlib.sha256(source.read_bytes()).hexdigest(), config.env.args, t.train, t.heldout]
    stamp = folder / "build.json"
    if stamp.is_file() and json.loads(stamp.read_text()) == key:
        console.print(f"trajectories: {folder} is up to date")
        return
    runtime.start_environment()
    await runtime.services_ready(config.cluster.start_timeout_s)  # a search's own deadline is short
    retriever = runtime.environment.retriever
    everything = read_queries(source)
    for split, counts in [("train", t.train), ("heldout", t.heldout)]:
        chosen = [q for q in everything if q.data["split"] == split]
        chosen = _enough(chosen, counts)
        samples, problems = await collect(chosen, retriever, config.env.args.get("limits"), concurrency=t.concurrency)
        for query_id, problem in problems.items():
            console.print(f"[yellow]trajectories: query {query_id} was left out: {problem}[/yellow]")
        available = {action: sum(s["action"] == action for s in samples) for action in counts}
        if any(available[action] < n for action, n in counts.items()):
            failed = (
                f"; {len(problems)} of {len(chosen)} queries failed, such as: {next(iter(problems.values()))}" if problems else ""
            )
            raise RunFailed(f"trajectories.{split} asks for {counts}, the teacher's reports hold {available}{failed}")
        samples = balance(samples, {a: available[a] if n < 0 else n for a, n in counts.items()}, seed=0)
        write_samples(folder / f"{split}.jsonl", samples)
        console.print(f"trajectories: {split}: {len(samples)} samples of {len(chosen)} queries {dict(sorted(counts.items()))}")
    write_atomic(stamp, json.dumps(key))


def _enough(chosen: list[Query], counts: dict[str, int]) -> list[Query]:
    """As many queries as the counts can need, and a tenth to spare: a report has one plan, one stop, an expansion, and at
    least three searches and texts."""
    if min(counts.values()) < 0:
        return chosen
    need = max(math.ceil(n / (3 if action in ("search", "write") else 1)) for action, n in counts.items())
    return chosen[: need + math.ceil(need / 10)]


def main(config: Config) -> None:
    """Write the samples."""
    if begin(config) is not None:
        with Runtime(config) as runtime:
            asyncio.run(build_trajectories(runtime))


if __name__ == "__main__":
    run_recipe("trajectories", main)
