"""The policy loss against values worked out by hand. Both sides' log-probabilities are given, no model is run."""

import math
from dataclasses import replace

import pytest
import torch

from rlcore.correction import Correction
from rlcore.kl import KL
from rlcore.loss import PolicyLoss, TrainedTokens

LOSS = PolicyLoss()


def run(loss: PolicyLoss, log_ratios, advantages, weights=None, sequences=None, reference=None, entropy=None):
    """The loss with log pi = log_ratios and sampler's log-probabilities of 0. Returns value, gradient and figures."""
    n = len(log_ratios)
    logprobs = torch.tensor(log_ratios, dtype=torch.float32, requires_grad=True)
    tokens = TrainedTokens(
        weights=torch.tensor(weights or [1.0] * n),
        advantages=torch.tensor(advantages),
        rollout_logprobs=torch.zeros(n),
        sequences=torch.tensor(sequences or list(range(n))),
        reference_logprobs=None if reference is None else torch.tensor(reference),
    )
    value, figures = loss(logprobs, tokens, entropy)
    value.backward()
    return value.item(), logprobs.grad.tolist(), figures


def test_clipping():
    #        ratio 1.5, A>0 -> 1.28 ; ratio 1.5, A<0 -> -1.5 ; ratio 0.5, A<0 -> -0.8 ; ratio 20, A<0 -> dual clip -10
    ratios = [math.log(1.5), math.log(1.5), math.log(0.5), math.log(20.0)]
    value, gradient, figures = run(LOSS, ratios, [1.0, -1.0, -1.0, -1.0])
    assert value == pytest.approx(-(1.28 - 1.5 - 0.8 - 10.0), abs=1e-5)
    assert figures["clipped_sum"] == 3.0
    assert gradient == pytest.approx([0.0, 1.5, 0.0, 0.0], abs=1e-5)
    assert run(replace(LOSS, dual_clip=None), [math.log(20.0)], [-1.0])[0] == pytest.approx(20.0, rel=1e-5)


def test_low_and_high_bounds_are_separate():
    loss = replace(LOSS, clip_low=0.5, clip_high=0.1)
    assert run(loss, [math.log(1.2), math.log(0.6)], [1.0, -1.0])[0] == pytest.approx(-(1.1 - 0.6), abs=1e-6)


def test_on_policy_the_ratio_is_one_and_the_gradient_the_policy_gradient():
    value, gradient, figures = run(LOSS, [0.0, 0.0], [2.0, -3.0], [0.5, 0.5])
    assert value == pytest.approx(0.5) and figures["clipped_sum"] == 0 and figures["policy_loss"] == pytest.approx(0.5)
    assert gradient == pytest.approx([-1.0, 1.5])
    assert figures["importance_sum"] == 2.0 and figures["abs_log_ratio_sum"] == 0.0


def test_a_sequence_ratio_is_the_geometric_mean_of_its_tokens():
    """Sequence 0: exp((0.2 + 0.4) / 2) = 1.3499 is clipped to 1.28; sequence 1: exp(-0.1) = 0.9048 is not."""
    value, gradient, figures = run(
        replace(LOSS, ratio="sequence"), [0.2, 0.4, -0.1], [1.0, 1.0, -1.0], [0.25, 0.25, 0.5], sequences=[0, 0, 1]
    )
    assert value == pytest.approx(-0.5 * 1.28 + 0.5 * math.exp(-0.1), abs=1e-6)
    assert gradient == pytest.approx([0.0, 0.0, 0.5 * math.exp(-0.1)], abs=1e-6) and figures["clipped_sum"] == 2
    # unclipped, each of the two tokens has half of the sequence's gradient: -(0.25 + 0.25) exp(0.1) / 2
    gradient = run(replace(LOSS, ratio="sequence"), [0.3, -0.1], [1.0, 1.0], [0.25, 0.25], sequences=[0, 0])[1]
    assert gradient == pytest.approx([-0.25 * math.exp(0.1)] * 2, abs=1e-6)


def test_cispo_bounds_the_weight_and_keeps_every_gradient():
    loss = replace(LOSS, surrogate="cispo", clip_low=1.0, clip_high=0.28)
    value, gradient, figures = run(loss, [math.log(1.5), math.log(1.5), math.log(0.5)], [1.0, -1.0, -2.0])
    assert gradient == pytest.approx([-1.28, 1.28, 1.0], abs=1e-6) and figures["clipped_sum"] == 2
    assert value == pytest.approx(-(1.28 * math.log(1.5) - 1.28 * math.log(1.5) - math.log(0.5)), abs=1e-6)


def test_recomputed_old_log_probabilities_leave_the_samplers_difference_to_the_correction():
    log_ratios, advantages = [math.log(3.0), math.log(0.25)], [1.0, -1.0]
    plain = replace(LOSS, old_logprobs="recomputed")
    assert run(plain, log_ratios, advantages)[1] == pytest.approx([-1.0, 1.0], abs=1e-6)
    truncated = replace(plain, correction=Correction("truncate", 0.5, 2.0))
    assert run(truncated, log_ratios, advantages)[1] == pytest.approx([-2.0, 0.25], abs=1e-6)
    masked = replace(plain, correction=Correction("icepop", 0.5, 4.0))
    _, gradient, figures = run(masked, log_ratios, advantages)
    assert gradient == pytest.approx([-3.0, 0.0], abs=1e-6) and figures["masked_sum"] == 1


@pytest.mark.parametrize("kind", ["sequence_mask", "geometric_mask"])
def test_a_masked_sequence_adds_no_gradient(kind):
    loss = replace(LOSS, correction=Correction(kind, 0.5, 2.0))
    _, gradient, figures = run(loss, [1.0, 1.0, 0.1], [-1.0, -1.0, -1.0], sequences=[0, 0, 1])
    assert gradient == pytest.approx([0.0, 0.0, math.exp(0.1)], abs=1e-6) and figures["masked_sum"] == 2


def test_kl_in_the_loss_is_a_part_of_its_own():
    """log pi = ln 2 at both tokens, reference 0 and ln 4: x = -ln 2 and ln 2; k3 = 0.1931 and 0.3069, slopes 1 - exp(x)."""
    loss = replace(LOSS, kl=KL(0.1, "k3"))
    ln2 = math.log(2)
    value, gradient, figures = run(loss, [ln2, ln2], [0.0, 0.0], [0.5, 0.5], reference=[0.0, 2 * ln2])
    k3 = [0.5 + ln2 - 1, 2 - ln2 - 1]
    assert value == pytest.approx(0.05 * sum(k3), abs=1e-6) and figures["policy_loss"] == 0.0
    assert figures["kl_loss"] == pytest.approx(value) and figures["kl_sum"] == pytest.approx(sum(k3), abs=1e-6)
    assert gradient == pytest.approx([0.05 * 0.5, 0.05 * -1.0], abs=1e-6)
    assert figures["kl_bounded_sum"] == 0
    assert run(loss, [-100.0], [0.0], reference=[0.0])[2]["kl_bounded_sum"] == 1


def test_an_entropy_bonus_lowers_the_loss_by_the_weighted_entropy():
    entropy = torch.tensor([1.0, 3.0], requires_grad=True)
    value, _, _ = run(replace(LOSS, entropy_coef=0.1), [0.0, 0.0], [0.0, 0.0], [0.5, 0.25], entropy=entropy)
    assert value == pytest.approx(-0.1 * (0.5 + 0.75))
    assert entropy.grad.tolist() == pytest.approx([-0.05, -0.025])


@pytest.mark.parametrize("log_ratio", [100.0, -100.0])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("change", [{}, {"ratio": "sequence"}, {"surrogate": "cispo"}])
def test_an_enormous_ratio_stays_finite_in_value_and_gradient(log_ratio, advantage, change):
    value, gradient, _ = run(replace(LOSS, **change), [log_ratio], [advantage])
    assert math.isfinite(value) and math.isfinite(gradient[0])


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("change", [{}, {"ratio": "sequence"}, {"correction": Correction("geometric_mask")}, {"kl": KL(0.1)}])
def test_whatever_has_weight_zero_cannot_poison_the_rest(poison, change):
    loss = replace(LOSS, **change)

    def tokens(rollout, advantage, reference):
        return TrainedTokens(
            torch.tensor([0.5, 0.0]), torch.tensor([1.0, advantage]), torch.tensor([-1.0, rollout]), torch.tensor([0, 1]),
            torch.tensor([-1.5, reference]),
        )  # fmt: skip

    def gradient(given):
        logprobs = torch.tensor([-1.1, -2.0], requires_grad=True)
        value, figures = loss(logprobs, given)
        value.backward()
        return value.item(), logprobs.grad.tolist(), figures

    clean = gradient(tokens(-2.0, 0.0, -2.0))
    value, grad, figures = gradient(tokens(poison, poison, poison))
    assert (value, grad) == (clean[0], clean[1]) and grad[1] == 0.0
    assert all(math.isfinite(x) for x in figures.values())
