"""Rewards of a group -> one advantage per trajectory. Statistics are over trajectories, never over rows or tokens.

Legend: G = trajectories of one group.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rlcore.errors import ConfigError


@dataclass(frozen=True)
class GRPO:
    """Group-relative advantages (DeepSeekMath, arXiv 2402.03300): A_i = (R_i - mean(R)) / std(R).

    `std` is "sample" (divide by n-1, as torch.std), "population" (by n) or "none" (Dr. GRPO, arXiv 2503.20783:
    A_i = R_i - mean(R)).
    A group whose rewards spread by no more than `tie_tolerance` gets exact zeros, decided on the raw rewards: an epsilon in
    the denominator would turn rounding noise into signal.
    """

    std: str = "sample"
    tie_tolerance: float = 1e-6

    def __post_init__(self) -> None:
        if self.std not in ("sample", "population", "none"):
            raise ConfigError(f"algo.std must be sample, population or none, got {self.std!r}")

    def __call__(self, rewards_G: list[float]) -> list[float]:
        """One advantage per reward. Fewer than two rewards, or a tie, give zeros. Raises ValueError for a non-finite reward."""
        if not all(math.isfinite(r) for r in rewards_G):
            raise ValueError(f"rewards must be finite, got {rewards_G}")
        n = len(rewards_G)
        if n < 2 or self.tied(rewards_G):
            return [0.0] * n
        mean = math.fsum(rewards_G) / n
        centred = [r - mean for r in rewards_G]
        if self.std == "none":
            return centred
        variance = math.fsum(c * c for c in centred) / (n - 1 if self.std == "sample" else n)
        return [c / math.sqrt(variance) for c in centred]

    def tied(self, rewards_G: list[float]) -> bool:
        return max(rewards_G) - min(rewards_G) <= self.tie_tolerance
