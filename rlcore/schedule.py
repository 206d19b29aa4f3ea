"""The learning-rate schedule: a pure function of the optimizer step, so resuming cannot advance it twice."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rlcore.errors import ConfigError


@dataclass(frozen=True)
class Schedule:
    """Linear warm-up over `warmup_steps`, then constant, linear or cosine decay to `floor` at `total_steps`."""

    kind: str
    warmup_steps: int
    total_steps: int
    floor: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in ("constant", "linear", "cosine"):
            raise ConfigError(f"schedule must be constant, linear or cosine, got {self.kind!r}")

    def factor(self, step: int) -> float:
        """Multiplier of the peak learning rate for the update number `step`, counted from 0."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        if self.kind == "constant":
            return 1.0
        progress = min(1.0, (step - self.warmup_steps) / max(1, self.total_steps - self.warmup_steps))
        shape = 1.0 - progress if self.kind == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))
        return self.floor + (1.0 - self.floor) * shape
