"""Where numbers go: `metrics.jsonl` (the record), the terminal, and Weights & Biases. One writer, in the driver only.

W&B can never stop a run: whatever it raises is printed once and W&B is switched off, the local record goes on.
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console

from rlcore.config import WandbConfig

FINISH_S = 60.0

console = Console(highlight=False)


class MetricsWriter:
    """Appends one JSON line per `log` call to `<run>/metrics.jsonl`, mirrored to W&B when its mode is not disabled."""

    def __init__(self, run_dir: Path, wandb: WandbConfig, config: dict[str, Any], wandb_id: str | None = None) -> None:
        self._file = open(run_dir / "metrics.jsonl", "a", encoding="utf-8")  # noqa: SIM115 - closed by close()
        self._run: Any = None
        self.wandb_id = wandb_id
        if wandb.mode != "disabled":
            self._guard(lambda: self._start(run_dir, wandb, config))

    def _start(self, run_dir: Path, wandb: WandbConfig, config: dict[str, Any]) -> None:
        os.environ.setdefault("WANDB_SILENT", "true")
        import wandb as library

        self._run = library.init(
            mode=wandb.mode, project=wandb.project, entity=wandb.entity, name=wandb.name or run_dir.name, dir=str(run_dir),
            config=config, id=self.wandb_id, resume="allow" if self.wandb_id and wandb.mode == "online" else None,
            settings=library.Settings(init_timeout=60, login_timeout=30, console="off", x_disable_stats=True),
        )  # fmt: skip
        self.wandb_id = self._run.id

    def _guard(self, call: Any) -> None:
        try:
            call()
        except Exception as error:  # W&B is a mirror; its failure is a message, never the end of a run
            console.print(f"W&B is off from here: {type(error).__name__}: {error}", style="yellow", markup=False)
            self._run = None

    def log(self, values: dict[str, float], stage: str, step: int) -> None:
        """Record numbers of one step of a stage. Non-finite values become null in the file: JSON has no NaN."""
        row = {"time": round(time.time(), 3), "stage": stage, "step": step}
        clean = {k: (v if math.isfinite(v) else None) for k, v in values.items()}
        self._file.write(json.dumps(row | clean) + "\n")
        self._file.flush()
        if self._run is not None:
            self._guard(lambda: self._run.log({f"{stage}/{k}": v for k, v in values.items()} | {f"{stage}/step": step}))

    def close(self) -> None:
        self._file.close()
        if self._run is not None:
            # Online, finish() waits for the network; a dead one must not hold the run.
            finishing = threading.Thread(target=self._guard, args=(self._run.finish,), daemon=True)
            finishing.start()
            finishing.join(FINISH_S)
            self._run = None


def mean(values: Iterable[float]) -> float:
    """Arithmetic mean, NaN of nothing."""
    items = list(values)
    return math.fsum(items) / len(items) if items else math.nan


def standard_error(values: Iterable[float]) -> float:
    """Standard error of the mean (sample standard deviation over sqrt n), NaN for fewer than two values."""
    items = list(values)
    if len(items) < 2:
        return math.nan
    m = mean(items)
    return math.sqrt(math.fsum((x - m) ** 2 for x in items) / (len(items) - 1) / len(items))
