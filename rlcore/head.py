"""The output head and the log-softmax behind it as one operation, which never holds more than a chunk of logits.

With x = W h / temperature and p = softmax(x):  log p(t) = x_t - logsumexp(x),  H = - sum_v p_v log p_v, and backwards

    d log p(t) / dx_v = 1[v = t] - p_v        dH / dx_v = - p_v (log p_v + H)

Written out, since autograd would keep several [N, V] tensors where one buffer of [LOGIT_CHUNK, V] does.
Legend: N = trained tokens, V = vocabulary, n = tokens of a chunk.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

LOGIT_CHUNK = 1024  # trained tokens whose logits exist at one time; a row with no more keeps them for backward
CACHED = 16  # of them at a time go through the softmax, whose steps find them in the processor's cache


class Head(torch.nn.Module):
    """The model's output matrix; a module, so that ZeRO's hooks bring a sharded one together. Raises ValueError for a bias."""

    def __init__(self, linear: Any) -> None:
        super().__init__()
        if linear.bias is not None:
            raise ValueError("an output head with a bias is not supported")
        self.weight = linear.weight

    def forward(self, hidden: Tensor, targets: Tensor, temperature: float, entropy_gradient: bool) -> tuple[Tensor, Tensor]:
        """[N, hidden size] last hidden states and [N] targets -> [N] log-probabilities and [N] entropies, fp32."""
        logprobs, entropy = _HeadLogprobs.apply(hidden, self.weight, targets, temperature)
        return logprobs, entropy if entropy_gradient else entropy.detach()


class _HeadLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        logprobs, entropy = (torch.empty(len(targets), dtype=torch.float32, device=hidden.device) for _ in range(2))
        log_p: Tensor | None = None
        for h, t, lp, e in zip(*(x.split(LOGIT_CHUNK) for x in (hidden, targets, logprobs, entropy)), strict=True):
            log_p = _log_softmax(h, weight, temperature, log_p)
            lp.copy_(log_p.gather(1, t[:, None])[:, 0])
            for rows, out in zip(log_p.split(CACHED), e.split(CACHED), strict=True):
                out.copy_(torch.linalg.vecdot(rows.exp(), rows)).neg_()
        ctx.temperature = temperature
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(hidden, weight, targets, entropy, log_p if len(targets) <= LOGIT_CHUNK else None)
        return logprobs, entropy

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_logprobs: Tensor | None, d_entropy: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, targets, entropy, log_p = ctx.saved_tensors
        kept = log_p is not None
        d_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        d_weight: Tensor | None = None  # summed over chunks in fp32
        for start in range(0, len(targets), LOGIT_CHUNK):
            chunk = slice(start, start + LOGIT_CHUNK)
            if not kept:
                log_p = _log_softmax(hidden[chunk], weight, ctx.temperature, log_p)
            d_x = _d_logits(
                log_p, targets[chunk], None if d_logprobs is None else d_logprobs[chunk] / ctx.temperature,
                None if d_entropy is None else d_entropy[chunk] / ctx.temperature, entropy[chunk],
            ).to(weight.dtype)  # fmt: skip
            if d_hidden is not None:
                torch.mm(d_x, weight, out=d_hidden[chunk])
            if not ctx.needs_input_grad[1]:
                continue
            if d_weight is None:
                d_weight = torch.mm(d_x.t(), hidden[chunk]).float()
            elif d_x.dtype == torch.float32:
                d_weight.addmm_(d_x.t(), hidden[chunk])
            else:
                d_weight.add_(torch.mm(d_x.t(), hidden[chunk]))
        return d_hidden, None if d_weight is None else d_weight.to(weight.dtype), None, None


def _log_softmax(hidden: Tensor, weight: Tensor, temperature: float, buffer: Tensor | None) -> Tensor:
    """[n, V] fp32 log-probabilities, in `buffer` where it is one of an earlier chunk."""
    if weight.dtype == torch.float32 and buffer is not None:
        x = torch.mm(hidden, weight.t(), out=buffer[: len(hidden)])
    else:
        x = torch.mm(hidden, weight.t()).float()
    for rows in x.split(CACHED):
        rows.copy_(torch.log_softmax(rows.div_(temperature), dim=-1))
    return x


def _d_logits(log_p: Tensor, targets: Tensor, d_logprobs: Tensor | None, d_entropy: Tensor | None, entropy: Tensor) -> Tensor:
    """[n, V] gradient by the head's output, in place of `log_p`; the gradients that come in are divided by the temperature."""
    for i, rows in enumerate(log_p.split(CACHED)):
        part = slice(i * CACHED, (i + 1) * CACHED)
        if d_entropy is None:
            assert d_logprobs is not None
            rows.exp_().mul_(-d_logprobs[part, None])
        else:
            p = rows.exp()
            rows.add_(entropy[part, None]).mul_(d_entropy[part, None])
            if d_logprobs is not None:
                rows.add_(d_logprobs[part, None])
            rows.mul_(p).neg_()
    if d_logprobs is not None:
        log_p.scatter_add_(1, targets[:, None], d_logprobs[:, None])
    return log_p
