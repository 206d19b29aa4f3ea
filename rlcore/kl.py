"""KL(pi || reference) from sampled tokens: Schulman's three estimators (http://joschu.net/blog/kl-approx.html)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # this is also the configuration's type, which must be light to import
    from torch import Tensor

ESTIMATORS = ("k1", "k2", "k3")
MAX_LOG_RATIO = 10.0  # bounds x before exp, so that neither k3 nor its gradient overflows; beyond it there is no gradient


@dataclass(frozen=True)
class KL:
    """`coef` times the estimate is a term of the loss (`where` "loss") or is taken off the trajectory's reward ("reward").

        x = log pi_ref(t) - log pi(t);   k1 = -x;   k2 = x^2 / 2;   k3 = exp(x) - x - 1

    k1 is unbiased but may be negative, k2 has little bias and k3 none; both are at least 0. In the loss the gradient of k1 is
    zero on average (it only adds noise) and that of k2 is the gradient of the true KL; k1 belongs into the reward
    (arXiv 2510.01555). `reference` is a model's path; None stands for the model that training starts from.
    """

    coef: float = 0.0
    estimator: str = "k3"
    where: str = "loss"
    reference: str | None = None

    @property
    def in_loss(self) -> bool:
        return self.coef > 0 and self.where == "loss"

    @property
    def in_reward(self) -> bool:
        return self.coef > 0 and self.where == "reward"

    def estimate(self, logprobs: Tensor, reference_logprobs: Tensor) -> tuple[Tensor, Tensor]:
        """[N] estimates, in nats, and [N] bool: tokens whose exponent was bounded."""
        x = reference_logprobs - logprobs
        beyond = x.detach() > MAX_LOG_RATIO
        if self.estimator == "k1":
            return -x, beyond
        if self.estimator == "k2":
            return x.square() / 2, beyond
        bounded = x.clamp(max=MAX_LOG_RATIO)  # before exp: a bound after it leaves a gradient of NaN
        return bounded.expm1() - bounded, beyond
