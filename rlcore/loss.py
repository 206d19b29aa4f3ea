"""Log-probabilities of trained tokens and the policy loss. The same function scores new, old and probe tokens.

Legend: T = tokens of a packed row, N = trained tokens of it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from rlcore.algo_config import AlgoConfig
from rlcore.attention import attention_arguments
from rlcore.batch import Row
from rlcore.correction import Correction, bounded_exp, mismatch_sums, sequence_means
from rlcore.head import Head
from rlcore.kl import KL


def token_logprobs(
    model: Any, row: Row, temperature: float, entropy_gradient: bool = False, head: Head | None = None
) -> tuple[Tensor, Tensor]:
    """log p(target) of every trained token of the row at the given temperature, and its entropy; both [N] fp32.

    Only hidden states that predict a trained token meet the output head (rlcore/head.py): [T, V] logits never exist.
    """
    device = next(model.parameters()).device
    hidden = model.model(
        input_ids=torch.tensor([row.token_ids], device=device),
        position_ids=torch.tensor([row.positions], device=device),
        use_cache=False,
        **attention_arguments(model, row, device),
    ).last_hidden_state[0]
    chosen = hidden[torch.tensor(row.predictors, device=device)] / head_divisor(model.config)
    return (head or Head(model.lm_head))(chosen, torch.tensor(row.targets, device=device), temperature, entropy_gradient)


def head_divisor(config: Any) -> float:
    """What a family divides the last hidden states by before its head: MiniCPM by hidden_size / dim_model_base, others by 1."""
    base = getattr(config, "dim_model_base", None)
    return config.hidden_size / base if base else 1.0


class Scorer(torch.nn.Module):
    """The language model as DeepSpeed wraps it: its forward is `token_logprobs`, so ZeRO's hooks see every use of it."""

    def __init__(self, lm: Any) -> None:
        super().__init__()
        self.lm, self.head = lm, Head(lm.lm_head)

    def forward(self, row: Row, temperature: float, entropy_gradient: bool = False) -> tuple[Tensor, Tensor]:
        return token_logprobs(self.lm, row, temperature, entropy_gradient, self.head)


@dataclass(frozen=True)
class TrainedTokens:
    """What the policy loss knows of the N trained tokens of a row; all [N], fp32 but for `sequences`."""

    weights: Tensor
    advantages: Tensor
    rollout_logprobs: Tensor
    sequences: Tensor  # number of each token's sequence, from 0
    reference_logprobs: Tensor | None = None

    @classmethod
    def of(cls, row: Row, device: Any, reference_logprobs: Tensor | None = None) -> TrainedTokens:
        weights, advantages, rollout = (
            torch.tensor(values, dtype=torch.float32, device=device)
            for values in (row.weights, row.advantages, row.rollout_logprobs)
        )
        sequences = torch.unique(torch.tensor(row.samples, device=device), return_inverse=True)[1]
        return cls(weights, advantages, rollout, sequences, reference_logprobs)


@dataclass(frozen=True)
class PolicyLoss:
    """PPO's clipped surrogate (arXiv 1707.06347) with separate bounds (DAPO, arXiv 2503.14476) and dual clip (arXiv 1912.09729).

        r_t = exp(log pi(t) - log pi_old(t));  s_t = min(r_t A, clip(r_t, 1 - low, 1 + high) A);  A < 0: s_t = max(s_t, c A)
        loss = - sum_t w_t f_t s_t  +  kl.coef sum_t w_t KL_t  -  entropy_coef sum_t w_t H_t

    The weights w carry every normalisation, f is the off-policy correction's factor.
    `ratio` "sequence" (GSPO, arXiv 2507.18071): every token of a sequence has r = exp(mean_t(log pi(t) - log pi_old(t))).
    `surrogate` "cispo" (arXiv 2506.13585): s_t = sg(clip(r_t, 1 - low, 1 + high)) A log pi(t); no token loses its gradient, and
    low = 1 is no lower bound.
    `old_logprobs` "rollout": those recorded by the sampler, so the ratio corrects for stale weights and for numerical differences
    at once. "recomputed": the learner's own under the weights this step starts from. A window is one optimizer step, so they are
    this forward pass's, detached: r is 1, nothing is clipped, and what the sampler did differently is left to the correction.
    """

    clip_low: float = 0.2
    clip_high: float = 0.28
    dual_clip: float | None = 10.0
    ratio: str = "token"
    surrogate: str = "clip"
    old_logprobs: str = "rollout"
    correction: Correction = Correction()
    kl: KL = KL()
    entropy_coef: float = 0.0

    def __call__(self, logprobs: Tensor, tokens: TrainedTokens, entropy: Tensor | None = None) -> tuple[Tensor, dict[str, float]]:
        """The summed loss, and figures: its parts (`policy_loss`, `kl_loss`) and sums over tokens (`*_sum`).

        `entropy` [N] carries a gradient when there is a bonus for it. A token of weight zero adds exactly nothing, whatever its
        values are.
        """
        live, zero = tokens.weights != 0, torch.zeros((), device=logprobs.device)
        logprobs = torch.where(live, logprobs, zero)
        rollout = torch.where(live, tokens.rollout_logprobs, zero)
        advantages = torch.where(live, tokens.advantages, zero)
        mismatch = (logprobs - rollout).detach()
        in_ratio = self.old_logprobs == "rollout"
        log_ratio = logprobs - (rollout if in_ratio else logprobs.detach())
        if self.ratio == "sequence":
            log_ratio = sequence_means(log_ratio, tokens.sequences)
        surrogate, clipped = self._surrogate(bounded_exp(log_ratio), logprobs, advantages)
        factor = self.correction.factor(mismatch, tokens.sequences, in_ratio)
        loss = -(tokens.weights * factor * surrogate).sum()
        figures = {
            "policy_loss": loss.item(),
            "clipped_sum": (clipped & live).float().sum().item(),
            "masked_sum": ((factor == 0) & live).float().sum().item(),
            **mismatch_sums(mismatch, self.correction),
        }
        if self.kl.in_loss:
            assert tokens.reference_logprobs is not None, "KL in the loss needs the reference's log-probabilities"
            estimates, beyond = self.kl.estimate(logprobs, torch.where(live, tokens.reference_logprobs, zero))
            kl_loss = self.kl.coef * (tokens.weights * estimates).sum()
            loss = loss + kl_loss
            figures |= {
                "kl_loss": kl_loss.item(),
                "kl_sum": estimates.detach().sum().item(),
                "kl_bounded_sum": beyond.float().sum().item(),
            }
        if self.entropy_coef:
            assert entropy is not None, "an entropy bonus needs entropies"
            loss = loss - self.entropy_coef * (tokens.weights * torch.where(live, entropy, zero)).sum()
        return loss, figures

    def _surrogate(self, ratio: Tensor, logprobs: Tensor, advantages: Tensor) -> tuple[Tensor, Tensor]:
        """[N] surrogates to maximise, and [N] bool of tokens whose ratio was bounded in them."""
        clipped = ratio.clamp(1.0 - self.clip_low, 1.0 + self.clip_high)
        if self.surrogate == "cispo":
            return clipped.detach() * advantages * logprobs, (clipped != ratio).detach()
        surrogate = torch.minimum(ratio * advantages, clipped * advantages)
        if self.dual_clip is not None:
            surrogate = torch.where(advantages < 0, torch.maximum(surrogate, self.dual_clip * advantages), surrogate)
        return surrogate, (surrogate != ratio * advantages).detach()


def policy_loss(algo: AlgoConfig) -> PolicyLoss:
    """The loss that the algorithm's knobs describe."""
    return PolicyLoss(**{f.name: getattr(algo, f.name) for f in fields(PolicyLoss)})


def sft_loss(logprobs: Tensor, weights: Tensor) -> Tensor:
    """Weighted negative log-likelihood, - sum_t w_t log pi(t): a mean over response tokens when the weights say so."""
    return -(weights * logprobs).sum()
