"""Rewards of a window's groups -> one advantage per trajectory. Statistics are over trajectories, never over rows or tokens.

Legend: W = groups of one optimizer window, G = trajectories of one group (it may differ from group to group).

A scheme takes the window's rewards and returns advantages of the same shape. Rewards that spread by no more than TIE give exact
zeros, decided on the raw rewards: an epsilon in a denominator would turn rounding noise into signal. So does a lone reward.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from rlcore.errors import ConfigError

TIE = 1e-6  # rewards this close are equal

Window = list[list[float]]


def tied(rewards_G: list[float]) -> bool:
    """True when the rewards carry no preference: fewer than two, or all equal up to rounding."""
    return len(rewards_G) < 2 or max(rewards_G) - min(rewards_G) <= TIE


@dataclass(frozen=True)
class GRPO:
    """Group-relative advantages (DeepSeekMath, arXiv 2402.03300): A_i = (R_i - mean(R)) / std(R), over the group.

    `std` is "sample" (divide by n-1, as torch.std), "population" (by n) or "none" (Dr. GRPO, arXiv 2503.20783:
    A_i = R_i - mean(R)).
    """

    std: str = "sample"

    def __post_init__(self) -> None:
        if self.std not in ("sample", "population", "none"):
            raise ConfigError(f"algo.std must be sample, population or none, got {self.std!r}")

    def __call__(self, rewards_W_G: Window) -> Window:
        _check(rewards_W_G)
        return [self._group(rewards) for rewards in rewards_W_G]

    def _group(self, rewards_G: list[float]) -> list[float]:
        if tied(rewards_G):
            return [0.0] * len(rewards_G)
        centred = _centred(rewards_G)
        return centred if self.std == "none" else _scaled(centred, len(centred) - (self.std == "sample"))


@dataclass(frozen=True)
class RLOO:
    """REINFORCE leave-one-out (arXiv 2402.14740): the baseline of a trajectory is the mean of the others in its group.

    A_i = R_i - mean_{j != i} R_j = n / (n-1) (R_i - mean(R)).
    """

    def __call__(self, rewards_W_G: Window) -> Window:
        _check(rewards_W_G)
        return [self._group(rewards) for rewards in rewards_W_G]

    def _group(self, rewards_G: list[float]) -> list[float]:
        n = len(rewards_G)
        return [0.0] * n if tied(rewards_G) else [n / (n - 1) * c for c in _centred(rewards_G)]


@dataclass(frozen=True)
class ReinforcePP:
    """REINFORCE++ (arXiv 2501.03262), normalised over the whole window: A = (C - mean_window(C)) / std_window(C), sample std.

    `baseline` "batch": C = R. A group of equal rewards then has a signal, its distance from the rest of the window.
    `baseline` "group": C = R - mean_group(R), the paper's variant with a baseline; a tied group has none.
    """

    baseline: str = "batch"

    def __call__(self, rewards_W_G: Window) -> Window:
        _check(rewards_W_G)
        if self.baseline == "group":
            rewards_W_G = [[0.0] * len(g) if tied(g) else _centred(g) for g in rewards_W_G]
        flat = [c for g in rewards_W_G for c in g]
        if tied(flat):
            return [[0.0] * len(g) for g in rewards_W_G]
        if self.baseline == "batch":
            flat = _centred(flat)  # centred groups have mean 0 already; subtracting rounding would spoil exact zeros
        values = iter(_scaled(flat, len(flat) - 1))
        return [[next(values) for _ in g] for g in rewards_W_G]


# name -> scheme; `std` concerns GRPO alone
SCHEMES: dict[str, Callable[[str], Callable[[Window], Window]]] = {
    "grpo": GRPO,
    "rloo": lambda std: RLOO(),
    "reinforce_pp": lambda std: ReinforcePP("batch"),
    "reinforce_pp_baseline": lambda std: ReinforcePP("group"),
}


def _check(rewards_W_G: Window) -> None:
    """A missing score is not a number: it must have left its group before."""
    for rewards in rewards_W_G:
        if not all(math.isfinite(r) for r in rewards):
            raise ValueError(f"rewards must be finite, got {rewards}")


def _centred(values: list[float]) -> list[float]:
    mean = math.fsum(values) / len(values)
    return [v - mean for v in values]


def _scaled(centred: list[float], divisor: int) -> list[float]:
    std = math.sqrt(math.fsum(c * c for c in centred) / divisor)
    return [c / std for c in centred]
