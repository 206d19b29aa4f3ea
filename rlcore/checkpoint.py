"""Run folders and checkpoints. Everything is written beside its place and renamed into it.

runs/<id>/config.yaml  metrics.jsonl  trajectories.jsonl  checkpoints/step-000010/{run.json, state/...}  export/
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from rlcore.config import Config
from rlcore.errors import ConfigError, deadline


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


def write_atomic(path: Path, text: str) -> None:
    """Write a file beside its place and rename it into it."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


@dataclass
class RunState:
    """What the driver must remember: the next step, the query cursor, the weights' version, the W&B run.

    `position` and `done` are QueryCursor's: what was in flight is drawn again, with the current weights. `settings` are those
    a resumed run must share, or its steps would not be the ones the first run would have taken.
    """

    step: int = 0
    position: int = 0
    done: list[int] = field(default_factory=list)
    version: int = -1
    wandb_id: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)


def run_settings(c: Config) -> dict[str, Any]:
    """What decides the queries, samples and shapes of a run: a resumed one must agree."""
    return {
        "seed": c.seed,
        "model.name": c.model.name,
        "model.train_layers": c.model.train_layers,
        "model.lora": asdict(c.model.lora) if c.model.lora else None,
        "model.path": c.model.path if c.model.lora else None,  # a checkpoint has the adapter only: it fits one model
        "env.name": c.env.name,
        "env.args": c.env.args,
        "env.queries.args": c.env.queries.args,
        "algo.queries_per_step": c.algo.queries_per_step,
        "algo.group_size": c.algo.group_size,
        "cluster.learner_ranks": c.cluster.learner_ranks,
    }


async def save_checkpoint(run_dir: Path, learners: list[Any], state: RunState, timeout_s: float) -> Path:
    """Save learner and driver state together; the folder appears under its name only when it is whole."""
    final = run_dir / "checkpoints" / f"step-{state.step:06d}"
    temporary = final.with_name(final.name + ".tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    async with deadline("saving a checkpoint", timeout_s, "cluster.start_timeout_s"):
        await asyncio.gather(*(a.save.remote(str(temporary)) for a in learners))
    write_atomic(temporary / "run.json", json.dumps(asdict(state)))
    shutil.rmtree(final, ignore_errors=True)
    temporary.rename(final)
    return final


def read_state(folder: str, config: Config) -> RunState:
    """The driver's state of a checkpoint. Raises ConfigError when the folder is not one, or is of a run with other settings."""
    path = Path(folder) / "run.json"
    if not path.is_file():
        raise ConfigError(f"resume={folder!r} is not a checkpoint: there is no {path}")
    try:
        state = RunState(**json.loads(path.read_text()))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"resume={folder!r}: {path} is damaged: {error}") from error
    settings = run_settings(config)
    for name, value in state.settings.items():
        if settings.get(name) != value:
            raise ConfigError(f"resume={folder!r} is of a run with {name}={value!r}, but now it is {settings.get(name)!r}")
    return state


async def load_checkpoint(folder: str, learners: list[Any], timeout_s: float) -> None:
    """Restore model, optimizer, schedule and RNG of every learner rank."""
    source = os.path.abspath(folder)  # noqa: ASYNC240 - workers have another working directory; nothing is read here
    async with deadline("loading the checkpoint", timeout_s, "cluster.start_timeout_s"):
        await asyncio.gather(*(a.load.remote(source) for a in learners))


async def export_model(folder: Path, learners: list[Any], tokenizer_from: str, timeout_s: float) -> Path:
    """A Hugging Face folder of the learner's weights, checked by reloading."""
    async with deadline("exporting the model", timeout_s, "cluster.start_timeout_s"):
        await asyncio.gather(*(a.export.remote(str(folder), tokenizer_from) for a in learners))
    return folder
