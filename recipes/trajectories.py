"""Teacher trajectories: a teacher plays every query of the world; its actions become samples with references.

    python -m recipes.trajectories                                  # the scripted teacher, from the world's oracle
    python -m recipes.trajectories trajectories.prune=true          # forced to expand, then cut at the best draft
    python -m recipes.trajectories trajectories.teacher.kind=engine model=qwen3_8b
    python -m recipes.trajectories trajectories.teacher.kind=openai trajectories.teacher.url=http://host:8000/v1 \
        trajectories.teacher.model=NAME

Writes into trajectories.folder: train.parquet and heldout.parquet (one row an action), drafts.parquet (one row a draft), the same
two splits without pruning in unpruned/, and parts/, from which a stopped run goes on.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.metadata
import json
import math
import shutil
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from rich.progress import Progress

from envs.warp.collect import PlayOne, collect
from envs.warp.limits import ACTIONS, Limits
from envs.warp.play import Played, play
from envs.warp.pruning import DRAFTS, draft_rows, prune, unpruned
from envs.warp.samples import Sample, balance, write_samples
from envs.warp.tables import write_table
from envs.warp.teacher import ModelTeacher, ScriptedTeacher
from recipes.cli import run_recipe
from recipes.common import begin
from rlcore.config import Config
from rlcore.environment import Policy
from rlcore.errors import ConfigError, RunFailed
from rlcore.files import write_atomic
from rlcore.judge_config import read_key
from rlcore.metrics import console
from rlcore.policy import RecordingPolicy
from rlcore.queries import read_queries
from rlcore.runtime import Runtime
from rlcore.sampling import Sampling
from rlcore.targets import resolve
from rlcore.types import Query, Trajectory

VERSION = 3  # raise it when prompts, teachers or samples change: what was played before is then played again
SPLITS = ("train", "heldout")


async def build_trajectories(runtime: Runtime) -> None:
    """Write the samples of both splits, unless the folder already holds those of this world and this configuration."""
    config, t = runtime.config, runtime.config.trajectories
    queries = check_trajectories(config)
    how = _how(config)
    folder, key = Path(t.folder), {**how, "train": t.train, "heldout": t.heldout}
    stamp = folder / "build.json"
    if stamp.is_file() and json.loads(stamp.read_text()) == key:
        console.print(f"trajectories: {folder} is up to date")
        return
    parts = folder / "parts" / hashlib.sha256(json.dumps(how, sort_keys=True).encode()).hexdigest()[:16]
    played: dict[str, list[Played]] = {}
    problems: dict[str, str] = {}
    async with _player(runtime) as play_one:
        for split in SPLITS:
            played[split], failed = await _play_split(split, queries[split], getattr(t, split), play_one, parts, t.concurrency)
            problems |= failed
    assert not {p.query_id for p in played["train"]} & {p.query_id for p in played["heldout"]}
    stamp.unlink(missing_ok=True)
    shutil.rmtree(folder / "unpruned", ignore_errors=True)
    provenance = _provenance(config, how["world"])
    for split in SPLITS:
        counts = getattr(t, split)
        whole = [s | {"provenance": provenance} for p in played[split] for s in prune(p)]
        chosen = _choose(whole, counts)
        write_samples(folder / f"{split}.parquet", chosen)
        if t.prune:
            everything = [s | {"provenance": provenance} for p in played[split] for s in unpruned(p)]
            write_samples(folder / "unpruned" / f"{split}.parquet", _choose(everything, counts))
        kinds = dict(sorted(Counter(s["action"] for s in chosen).items()))
        console.print(f"trajectories: {split}: {len(chosen)} samples of {len(played[split])} queries {kinds}")
    write_table(folder / "drafts.parquet", [row for split in SPLITS for p in played[split] for row in draft_rows(p)], DRAFTS)
    if not problems:  # otherwise the next run tries those queries again
        write_atomic(stamp, json.dumps(key))


def check_trajectories(config: Config) -> dict[str, list[Query]]:
    """The queries by split. Raises ConfigError for what cannot work, before anything is started."""
    t = config.trajectories
    source = Path(t.world) / "queries.jsonl"
    if not source.is_file():
        raise ConfigError(
            f"trajectories.world={t.world!r} has no queries.jsonl; build it with `python -m tools.build_world --out {t.world}`"
        )
    for split in SPLITS:
        for action in getattr(t, split).keys() - set(ACTIONS):
            raise ConfigError(f"trajectories.{split}.{action} is not an action; actions are {', '.join(ACTIONS)}")
    Limits.of(config.env.args.get("limits"))
    if t.prune:
        resolve(t.reward.target)
    if t.teacher.kind == "engine" and config.recipe_name != "trajectories":
        raise ConfigError("trajectories.teacher.kind=engine needs engines of its own: run `python -m recipes.trajectories` first")
    _key(config)
    queries: dict[str, list[Query]] = {split: [] for split in SPLITS}
    for query in read_queries(source):
        if query.data.get("split") not in SPLITS:
            raise ConfigError(
                f"{source}: the split of query {query.id} must be train or heldout, got {query.data.get('split')!r}"
            )
        queries[query.data["split"]].append(query)
    train, heldout = ({q.data["question"] for q in queries[split] if "question" in q.data} for split in SPLITS)
    for question in train & heldout:
        raise ConfigError(f"{source}: the question {question!r} is in both splits")
    return queries


def _how(config: Config) -> dict[str, Any]:
    """All that the played trajectories depend on."""
    t = config.trajectories
    teacher: dict[str, Any] = {"kind": t.teacher.kind}
    if t.teacher.kind != "scripted":
        model = config.model.path if t.teacher.kind == "engine" else [t.teacher.url, t.teacher.model]
        teacher |= {"model": model, "temperature": t.teacher.temperature, "top_p": t.teacher.top_p, "seed": config.seed}
    world = hashlib.sha256((Path(t.world) / "queries.jsonl").read_bytes())
    meta = Path(t.world) / "index" / "meta.json"  # names encoder and corpus
    world.update(meta.read_bytes() if meta.is_file() else b"")
    return {
        "version": VERSION,
        "world": world.hexdigest(),
        "env": config.env.args,
        "services": {name: asdict(service) for name, service in config.env.services.items()},
        "teacher": teacher,
        "reward": asdict(t.reward) if t.prune else None,
    }


def _provenance(config: Config, world: str) -> dict[str, str]:
    teacher = config.trajectories.teacher
    model = {"scripted": "", "engine": config.model.path, "openai": teacher.model}[teacher.kind]
    versions = {"samples": VERSION, **{name: importlib.metadata.version(name) for name in ("datasets", "transformers")}}
    return {"teacher": teacher.kind, "model": model, "world": world, "versions": json.dumps(versions)}


@asynccontextmanager
async def _player(runtime: Runtime) -> AsyncIterator[PlayOne]:
    """What plays one query: the teacher, the search and, for pruning, a pool of report rewards."""
    from rlcore.reward_pool import RewardPool

    config, t, k = runtime.config, runtime.config.trajectories, runtime.config.cluster
    runtime.start_environment()
    await runtime.services_ready(k.start_timeout_s)  # a search's own deadline is short
    limits = Limits.of(config.env.args.get("limits"))
    async with AsyncExitStack() as stack:
        ask = await _policies(runtime, stack)
        score = None
        if t.prune:
            # It reserves no CPU: in recipes.curriculum the run's own pool has the places.
            pool = RewardPool(t.reward, workers=k.reward_workers, timeout_s=k.reward_timeout_s, worker_cpus=0.0)
            stack.push_async_callback(pool.close)
            await pool.start(k.start_timeout_s)
            score = pool.score

        async def play_one(query: Query, journal: Any) -> Played:
            teacher = ModelTeacher(query, ask, t.teacher.attempts, t.prune) if ask else ScriptedTeacher(query, t.prune)
            return await play(query, teacher, runtime.environment.retriever, limits, score=score, journal=journal)

        yield play_one


async def _policies(runtime: Runtime, stack: AsyncExitStack) -> Callable[[str], Policy] | None:
    """The policy for each of a model's calls by its name; None for the scripted teacher, which asks none."""
    config, teacher = runtime.config, runtime.config.trajectories.teacher
    if teacher.kind == "openai":
        from rlcore.endpoint import Endpoint

        sampling = {"temperature": teacher.temperature, "top_p": teacher.top_p, "timeout_s": teacher.timeout_s}
        endpoint = await stack.enter_async_context(Endpoint(teacher.url, teacher.model, _key(config), **sampling))
        return lambda name: endpoint
    if teacher.kind == "engine":
        await runtime.start_rollouts()
        await runtime.serve_loaded()
        return lambda name: engine_policy(runtime, name)
    return None


def engine_policy(runtime: Runtime, name: str) -> Policy:
    """The runtime's engines as the policy of one call. Its seed follows from the run's and the call's name, so a resumed run
    draws what the uninterrupted one would have drawn."""
    config, teacher = runtime.config, runtime.config.trajectories.teacher
    room, seed = config.model.max_model_len, (config.seed + zlib.crc32(name.encode())) % 2**31
    sampling = Sampling(teacher.temperature, teacher.top_p, room, seed)
    record = Trajectory(Query(name), name, 0)
    return RecordingPolicy(runtime.engines, runtime.renderer, sampling, room, record, config.cluster.call_timeout_s)


def _key(config: Config) -> str | None:
    """The endpoint's key, None where no endpoint is asked. Raises ConfigError when the environment does not hold it."""
    teacher = config.trajectories.teacher
    return read_key("trajectories.teacher", teacher.key_env) if teacher.kind == "openai" else None


async def _play_split(
    split: str, queries: list[Query], counts: dict[str, int], play_one: PlayOne, parts: Path, concurrency: int
) -> tuple[list[Played], dict[str, str]]:
    """As many queries of the split as the counts need. Raises RunFailed when all of them are not enough."""
    number = _enough(len(queries), counts)
    while True:
        with Progress(console=console, transient=True) as progress:
            bar = progress.add_task(f"trajectories: {split}", total=number)
            done = partial(progress.advance, bar)
            played, problems = await collect(queries[:number], play_one, parts, concurrency=concurrency, done=done)
        available = Counter(s["action"] for p in played for s in prune(p))
        if all(available[action] >= n for action, n in counts.items()) and played:
            break
        if number == len(queries):
            failed = f"; {len(problems)} of {number} queries failed, such as: {next(iter(problems.values()))}" if problems else ""
            raise RunFailed(f"trajectories.{split} asks for {counts}, the teacher's reports hold {dict(available)}{failed}")
        number = min(len(queries), 2 * number)
    for query_id, problem in problems.items():
        console.print(f"trajectories: query {query_id} was left out: {problem}", style="yellow", markup=False)
    return played, problems


def _enough(available: int, counts: dict[str, int]) -> int:
    """As many queries as the counts can need, and a tenth to spare: a report has one plan, one stop, an expansion, and at
    least three searches and texts."""
    if min(counts.values()) < 0:
        return available
    need = max(math.ceil(n / (3 if action in ("search", "write") else 1)) for action, n in counts.items())
    return min(available, need + math.ceil(need / 10))


def _choose(samples: list[Sample], counts: dict[str, int]) -> list[Sample]:
    """The balanced choice. The unpruned variant may have too few of an action (it hardly ever stops): then all of them."""
    available = Counter(s["action"] for s in samples)
    return balance(samples, {a: available[a] if n < 0 else min(n, available[a]) for a, n in counts.items()}, seed=0)


def main(config: Config) -> None:
    """Write the samples."""
    check_trajectories(config)
    if begin(config) is not None:
        with Runtime(config) as runtime:
            asyncio.run(build_trajectories(runtime))


if __name__ == "__main__":
    run_recipe("trajectories", main)
