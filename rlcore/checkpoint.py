"""Run folders and checkpoints. Everything is written beside its place and renamed into it.

runs/<id>/config.yaml  metrics.jsonl  trajectories.jsonl  checkpoints/{index.json, step-000010/{run.json, state/...}}  export/
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml

from rlcore.config import Config
from rlcore.errors import ConfigError, RunFailed, deadline
from rlcore.files import write_atomic
from rlcore.judge_config import JudgeConfig, chosen_judges
from rlcore.model import weights_fingerprint
from rlcore.types import Query

POLL_S = 0.1  # between questions whether a checkpoint is written
GRACE_S = 60.0
# Of `algo` and `sft`, what a resumed run may change: its length and learning rate, how far sampling runs ahead, how tokens are
# packed, when a run gives up, what is kept and how often it is evaluated.
FREE = {
    "steps", "optimizer", "max_staleness", "groups_in_flight", "row_tokens", "max_failed_share", "max_nonfinite_steps",
    "checkpoint_every", "keep_checkpoints", "keep_best", "evaluate_every", "validate_every", "validation_samples",
}  # fmt: skip


def make_run_dir(config: Config) -> Path:
    """Create the run's folder with its resolved config. Two runs started in one second get different names.

    Raises ConfigError when `run_dir` names a folder that already holds a run: its record would be mixed with this one's.
    """
    if config.run_dir is not None and (Path(config.run_dir) / "metrics.jsonl").exists():
        raise ConfigError(
            f"run_dir={config.run_dir!r} already holds a run; name a new folder (resume= may point into the old one)"
        )
    base = Path(config.run_dir or f"runs/{time.strftime('%Y%m%d-%H%M%S')}-{config.recipe_name}").absolute()
    folder, attempt = base, 1
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=config.run_dir is not None)
            break
        except FileExistsError:
            attempt += 1
            folder = base.with_name(f"{base.name}-{attempt}")
    write_atomic(folder / "config.yaml", yaml.safe_dump(asdict(config), sort_keys=False, allow_unicode=True))
    return folder


@dataclass
class RunState:
    """What the driver must remember: the next step, the query cursor, the weights' version, the W&B run.

    `position` and `done` are QueryCursor's: what was in flight is drawn again, with the current weights. `settings` are those
    a resumed run must share, or its steps would not be the ones the first run would have taken; `started_from` is the model.
    """

    step: int = 0
    position: int = 0
    done: list[int] = field(default_factory=list)
    version: int = -1
    wandb_id: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    started_from: str = ""


def first_state(c: Config, model: str, drawn: Sequence[Query], version: int = -1, sft: bool = False) -> RunState:
    """The state of a run on the queries `drawn` that starts from `model`, whose weights are fingerprinted: frozen ones are in no
    checkpoint."""
    return RunState(version=version, settings=run_settings(c, model, drawn, sft), started_from=model)


def run_settings(c: Config, model: str, drawn: Sequence[Query], sft: bool = False) -> dict[str, Any]:
    """What decides the queries, samples and losses of a run of RL or SFT, by dotted names: a resumed one must agree.

    Queries and weights count by their content, wherever they lie. Free are what other hardware needs (`cluster`, `deepspeed`, the
    model's dtype and length), where and how fast the judges are asked, what is only measured or kept, and FREE.
    """
    stage = asdict(c.sft if sft else c.algo)
    return {
        "seed": c.seed,
        "model.name": c.model.name,
        "model.train_layers": c.model.train_layers,
        "model.lora": asdict(c.model.lora) if c.model.lora else None,
        "model.chat_template_kwargs": c.model.chat_template_kwargs,
        "the train queries": _digest(drawn),
        "weights of model.path": weights_fingerprint(model) or model,
        **({} if sft else _environment_settings(c, model)),
        **_leaves("sft" if sft else "algo", {name: value for name, value in stage.items() if name not in {*FREE, "kl"}}),
    }


def _environment_settings(c: Config, model: str) -> dict[str, Any]:
    """What makes the rollouts and their rewards."""
    e, kl = c.env, asdict(c.algo.kl)
    chosen = kl.pop("reference")
    reference = (chosen or model) if c.algo.kl.coef else None
    environment = {
        "name": e.name,
        "target": e.target,
        "args": e.args,
        "group_by": e.group_by,
        "services": {name: {"target": s.target, "args": s.args} for name, s in e.services.items()},
        "reward": {
            "target": e.reward.target,
            "args": e.reward.args,
            "judges": {name: _judge_settings(judge) for name, judge in chosen_judges(e.reward).items()},
        },
    }
    return {
        **_leaves("env", environment),
        **_leaves("algo.kl", kl),
        "weights of algo.kl.reference": reference and (weights_fingerprint(reference) or reference),
    }


def _judge_settings(judge: JudgeConfig) -> dict[str, Any]:
    """Who judges and how it is asked, wherever it runs."""
    local = judge.local
    return {
        "models": sorted({endpoint.model for endpoint in judge.endpoints.values()}),
        "local": local and [weights_fingerprint(local.model) or local.model, local.dtype, local.args],
        "temperature": judge.temperature,
        "max_tokens": judge.max_tokens,
        "extra": judge.extra,
    }


def _digest(queries: Sequence[Query]) -> str:
    """How many there are, and a hash of their ids and data, in their order: the cursor knows them by their places."""
    digest = hashlib.sha256()
    for query in queries:
        digest.update(json.dumps([query.id, query.data], sort_keys=True).encode())
    return f"{len(queries)} with the hash {digest.hexdigest()[:16]}"


def _leaves(name: str, value: Any) -> dict[str, Any]:
    """Nested values as one flat mapping of dotted names, so that a difference is named where it is."""
    if not isinstance(value, dict) or not value:
        return {name: value}
    return {leaf: v for key, inner in value.items() for leaf, v in _leaves(f"{name}.{key}", inner).items()}


class Checkpoints:
    """The checkpoints of a run, written while training goes on, one at a time; the newest and the best are kept.

        save: learners copy to host memory -> (their threads write into step-000010.tmp) -> run.json -> renamed -> others removed

    `index.json` beside them says which is best, and the held-out reward of each that had an evaluation at its step. Only what
    this run wrote is ever removed. As a context, it waits for the last writing; a run that fails gives it `GRACE_S`.
    """

    def __init__(self, folder: Path, learners: list[Any], keep: int | None, keep_best: int, timeout_s: float) -> None:
        self._folder, self._learners = folder, learners
        self._keep, self._keep_best, self._timeout_s = keep, keep_best, timeout_s
        self._writing: asyncio.Task[None] | None = None
        self._begun = -1
        self._steps: list[int] = []
        self._rewards: dict[int, float] = {}

    async def __aenter__(self) -> Checkpoints:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            await self.wait()
        elif issubclass(kind, Exception) and self._writing is not None:
            await asyncio.wait({self._writing}, timeout=GRACE_S)

    async def save(self, state: RunState) -> None:
        """Copy learner and driver state and begin to write them, once the one before is written. The same step is saved once."""
        if state.step == self._begun:
            return
        await self.wait()
        temporary = self._folder / f"{_name(state.step)}.tmp"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        async with deadline("copying a checkpoint to host memory", self._timeout_s, "cluster.start_timeout_s"):
            await asyncio.gather(*(a.save.remote(str(temporary / "state")) for a in self._learners))
        self._begun = state.step
        self._writing = asyncio.create_task(self._land(state.step, temporary, json.dumps(asdict(state))))

    async def _land(self, step: int, temporary: Path, state: str) -> None:
        """Wait for every rank's file; then the folder appears under its name."""
        try:
            while not all(await asyncio.gather(*(a.saved.remote() for a in self._learners))):  # noqa: ASYNC110 - they are actors
                await asyncio.sleep(POLL_S)
            write_atomic(temporary / "run.json", state)
            os.replace(temporary, self._folder / _name(step))
            _sync(self._folder)  # before older ones are removed
        except OSError as error:  # also one that a learner's thread met
            raise RunFailed(f"the checkpoint of step {step} could not be written: {getattr(error, 'cause', error)}") from error
        self._steps.append(step)
        self._tidy()

    def check(self) -> None:
        """Raises RunFailed when the last checkpoint could not be written."""
        if self._writing is not None and self._writing.done():
            self._writing.result()

    async def wait(self) -> None:
        """Wait until what was begun is written. Raises RunFailed when it could not be."""
        if self._writing is not None:
            async with deadline("writing a checkpoint", self._timeout_s, "cluster.start_timeout_s"):
                await self._writing

    def scored(self, step: int, reward: float) -> None:
        """The held-out reward of an evaluation made at `step`."""
        if math.isfinite(reward):
            self._rewards[step] = reward
            self._tidy()

    def _tidy(self) -> None:
        """Remove all but the newest and the best, and write the index."""
        ranked = sorted((s for s in self._steps if s in self._rewards), key=lambda s: (self._rewards[s], s), reverse=True)
        newest = self._steps if self._keep is None else self._steps[-self._keep :]
        kept = {*newest, *ranked[: self._keep_best]}
        for step in set(self._steps) - kept:
            doomed = self._folder / f"{_name(step)}.tmp"  # never half a checkpoint under a checkpoint's name
            (self._folder / _name(step)).rename(doomed)
            shutil.rmtree(doomed)
        self._steps = [s for s in self._steps if s in kept]
        if self._steps:
            rewards = {_name(s): self._rewards.get(s) for s in self._steps}
            best = _name(ranked[0]) if ranked else None
            write_atomic(self._folder / "index.json", json.dumps({"best": best, "heldout_reward": rewards}, indent=2))


def _sync(folder: Path) -> None:
    """Put the names in a folder on disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _name(step: int) -> str:
    return f"step-{step:06d}"


def read_state(folder: str, config: Config, drawn: Sequence[Query], sft: bool = False) -> RunState:
    """The driver's state of a checkpoint, for a run of RL or SFT on the queries `drawn`.

    Raises ConfigError when the folder is not one, or is of a run with other settings: the first that differs, with both values.
    """
    path = Path(folder) / "run.json"
    if not path.is_file():
        raise ConfigError(f"resume={folder!r} is not a checkpoint: there is no {path}")
    try:
        state = RunState(**json.loads(path.read_text()))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"resume={folder!r}: {path} is damaged: {error}") from error
    settings = run_settings(config, config.model.path, drawn, sft)
    for name in {**state.settings, **settings}:
        was, now = (found.get(name, "not set") for found in (state.settings, settings))
        if was != now:
            raise ConfigError(
                f"resume={folder!r} is of a run with {name}={was!r}, but now it is {now!r} "
                f"(that run started from model.path={state.started_from})"
            )
    return state


async def load_checkpoint(folder: str, learners: list[Any], timeout_s: float) -> None:
    """Restore model, optimizer, schedule and RNG of every learner rank."""
    source = os.path.join(os.path.abspath(folder), "state")  # noqa: ASYNC240 - workers have another working directory
    async with deadline("loading the checkpoint", timeout_s, "cluster.start_timeout_s"):
        await asyncio.gather(*(a.load.remote(source) for a in learners))


async def export_model(folder: Path, learners: list[Any], tokenizer_from: str, timeout_s: float) -> str:
    """A Hugging Face folder of the learner's weights, checked by reloading. Returns its dtype and number of tensors, in words."""
    async with deadline("exporting the model", timeout_s, "cluster.start_timeout_s"):
        written = await asyncio.gather(*(a.export.remote(str(folder), tokenizer_from) for a in learners))
    return str(written[0])
