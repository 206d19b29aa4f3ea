"""What to do about tokens that the sampler gave another probability than the learner does, and how far the two are apart.

The two differ because the sampled weights were older, and because engine and learner compute differently. With d_t =
log pi(t) - log pi_rollout(t), under the weights the step starts from, a token is worth exp(d_t) samples of the learner's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # this is also the configuration's type, which must be light to import
    from torch import Tensor

CORRECTIONS = ("none", "truncate", "icepop", "sequence_mask", "geometric_mask")
MAX_LOG_RATIO = 20.0  # bounds the exponent before exp, so that neither value nor gradient overflows


@dataclass(frozen=True)
class Correction:
    """A factor on each token's loss. The band [low, high] is one of probability ratios.

    truncate        min(exp(d_t), high): truncated importance sampling (https://fengyao.notion.site/off-policy-rl)
    icepop          exp(d_t) inside the band, 0 outside (IcePop, arXiv 2510.18855)
    sequence_mask   1 for every token of a sequence whose exp(sum_t d_t) lies in the band, else 0
    geometric_mask  the same of exp(mean_t d_t), which does not shrink or grow with length

    Against the sampler's own log-probabilities the policy ratio is exp(d_t) already: icepop is then the mask alone, and truncate
    would count it twice and is refused. A masked token stays in the denominator of the aggregation.
    """

    kind: str = "none"
    low: float = 0.5
    high: float = 2.0

    def factor(self, mismatch: Tensor, sequences: Tensor, in_ratio: bool) -> Tensor:
        """[N] factors of [N] d_t. `sequences` numbers each token's sequence; `in_ratio`: the policy ratio holds exp(d_t)."""
        importance = bounded_exp(mismatch)
        if self.kind == "truncate":
            return importance.clamp(max=self.high)
        if self.kind == "icepop":
            inside = self.inside(importance)
            return inside.float() if in_ratio else importance * inside
        if self.kind == "sequence_mask":
            return self.inside(bounded_exp(sequence_sums(mismatch, sequences))).float()
        if self.kind == "geometric_mask":
            return self.inside(bounded_exp(sequence_means(mismatch, sequences))).float()
        return mismatch.new_ones(mismatch.shape)

    def inside(self, ratio: Tensor) -> Tensor:
        return (ratio >= self.low) & (ratio <= self.high)


def mismatch_sums(mismatch: Tensor, correction: Correction) -> dict[str, float]:
    """Sums over tokens; `mismatch_figures` makes mean, spread and effective sample size of them, over rows and ranks."""
    importance = bounded_exp(mismatch)
    return {
        "log_ratio_sum": mismatch.sum().item(),
        "log_ratio_sq_sum": mismatch.square().sum().item(),
        "abs_log_ratio_sum": mismatch.abs().sum().item(),
        "importance_sum": importance.sum().item(),
        "importance_sq_sum": importance.square().sum().item(),
        "outside_band_sum": (~correction.inside(importance)).float().sum().item(),
    }


def mismatch_figures(means: dict[str, float]) -> dict[str, float]:
    """Token means of `mismatch_sums` -> the spread of d_t, and the effective sample size as a share: (sum r)^2 / (n sum r^2)."""
    square, importance_square = means.pop("log_ratio_sq"), means.pop("importance_sq")
    return means | {
        "log_ratio_std": max(0.0, square - means["log_ratio"] ** 2) ** 0.5,
        "effective_samples": means["importance"] ** 2 / importance_square if importance_square else 0.0,
    }


def bounded_exp(log_ratio: Tensor) -> Tensor:
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def sequence_sums(values: Tensor, sequences: Tensor) -> Tensor:
    """[N] -> [N]: each token gets the sum over its sequence."""
    return values.new_zeros(values.shape).index_add(0, sequences, values)[sequences]


def sequence_means(values: Tensor, sequences: Tensor) -> Tensor:
    """[N] -> [N]: each token gets the mean over its sequence."""
    return sequence_sums(values, sequences) / sequence_sums(values.new_ones(values.shape), sequences)
