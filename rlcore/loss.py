"""Log-probabilities of trained tokens and the policy loss. The same function scores new, old and probe tokens.

Legend: T = tokens of a packed row, N = trained tokens of it, V = vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from rlcore.batch import PROMPT, Row

LOGIT_CHUNK = 1024  # trained tokens whose [chunk, V] logits exist at one time; a row with fewer recomputes none
MAX_LOG_RATIO = 20.0  # bounds the exponent before exp, so that neither value nor gradient overflows


def attention_mask(segments: Tensor, branches: Tensor) -> Tensor:
    """[1, 1, T, T] bool: True where query token i may attend to key token j (earlier, same segment, prompt or own branch)."""
    i = torch.arange(len(segments), device=segments.device)
    earlier = i[:, None] >= i[None, :]
    same = segments[:, None] == segments[None, :]
    visible = (branches[None, :] == PROMPT) | (branches[:, None] == branches[None, :])
    return (earlier & same & visible)[None, None]


def token_logprobs(model: Any, row: Row, temperature: float) -> tuple[Tensor, Tensor]:
    """log p(target) of every trained token of the row at the given temperature, and its entropy (no gradient); both [N] fp32.

    Only hidden states that predict a trained token meet the output head, `LOGIT_CHUNK` at a time, recomputed in backward:
    [T, V] logits never exist.
    """
    device = next(model.parameters()).device
    segments, branches = torch.tensor(row.segments, device=device), torch.tensor(row.branches, device=device)
    hidden = model.model(
        input_ids=torch.tensor([row.token_ids], device=device),
        position_ids=torch.tensor([row.positions], device=device),
        attention_mask=attention_mask(segments, branches),
        use_cache=False,
    ).last_hidden_state[0]
    chosen = hidden[torch.tensor(row.predictors, device=device)] / head_divisor(model.config)
    targets = torch.tensor(row.targets, device=device)
    parts = []
    for h, t in zip(chosen.split(LOGIT_CHUNK), targets.split(LOGIT_CHUNK), strict=True):
        if torch.is_grad_enabled() and len(targets) > LOGIT_CHUNK:
            parts.append(checkpoint(_head_logprobs, h, model.lm_head, t, temperature, use_reentrant=False))
        else:
            parts.append(_head_logprobs(h, model.lm_head, t, temperature))
    return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])


def head_divisor(config: Any) -> float:
    """What a family divides the last hidden states by before its head: MiniCPM by hidden_size / dim_model_base, others by 1."""
    base = getattr(config, "dim_model_base", None)
    return config.hidden_size / base if base else 1.0


def _head_logprobs(hidden: Tensor, head: Any, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    logits = head(hidden).float() / temperature
    lse = torch.logsumexp(logits, dim=-1)
    with torch.no_grad():
        entropy = lse - (torch.softmax(logits, dim=-1) * logits).sum(-1)
    return logits.gather(-1, targets[:, None])[:, 0] - lse, entropy


class Scorer(torch.nn.Module):
    """The language model as DeepSpeed wraps it: its forward is `token_logprobs`, so ZeRO's hooks see every use of it."""

    def __init__(self, lm: Any) -> None:
        super().__init__()
        self.lm = lm

    def forward(self, row: Row, temperature: float) -> tuple[Tensor, Tensor]:
        return token_logprobs(self.lm, row, temperature)


@dataclass(frozen=True)
class PolicyLoss:
    """PPO's clipped surrogate (arXiv 1707.06347) with separate bounds (DAPO, arXiv 2503.14476) and dual clip (arXiv 1912.09729).

        r_t = exp(log pi(t) - log pi_rollout(t));  s_t = min(r_t A, clip(r_t, 1 - low, 1 + high) A);  A < 0: s_t = max(s_t, c A)
        loss = - sum_t w_t s_t

    The ratio is against the log-probabilities recorded by the sampler, so it corrects for stale weights and for numerical
    differences between sampler and learner at once. The weights w carry every normalisation.
    """

    clip_low: float = 0.2
    clip_high: float = 0.28
    dual_clip: float = 10.0

    def __call__(self, logprobs: Tensor, rollout_logprobs: Tensor, advantages: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the summed loss and the [N] bool of tokens whose gradient the clip removed."""
        ratio = torch.exp((logprobs - rollout_logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO))
        clipped = ratio.clamp(1.0 - self.clip_low, 1.0 + self.clip_high)
        surrogate = torch.minimum(ratio * advantages, clipped * advantages)
        bounded = torch.where(advantages < 0, torch.maximum(surrogate, self.dual_clip * advantages), surrogate)
        removed = bounded.detach() != (ratio * advantages).detach()
        return -(weights * bounded).sum(), removed


def sft_loss(logprobs: Tensor, weights: Tensor) -> Tensor:
    """Weighted negative log-likelihood, - sum_t w_t log pi(t): a mean over response tokens when the weights say so."""
    return -(weights * logprobs).sum()
