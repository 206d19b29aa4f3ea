import math

import pytest
import torch

from rlcore.kl import KL

LN2 = math.log(2)


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        # x = log reference - log policy = ln 2, then -ln 2
        ("k1", [-LN2, LN2]),
        ("k2", [LN2**2 / 2, LN2**2 / 2]),
        ("k3", [2 - LN2 - 1, 0.5 + LN2 - 1]),
    ],
)
def test_estimates_by_hand(estimator, expected):
    estimates, beyond = KL(1.0, estimator).estimate(torch.tensor([-2.0, -2.0]), torch.tensor([-2.0 + LN2, -2.0 - LN2]))
    assert estimates.tolist() == pytest.approx(expected, abs=1e-6) and not beyond.any()


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_the_policy_itself_is_at_distance_zero(estimator):
    logprobs = torch.tensor([-0.5, -3.0])
    assert KL(1.0, estimator).estimate(logprobs, logprobs)[0].tolist() == [0.0, 0.0]


def test_a_large_log_ratio_is_bounded_before_exp_and_counted():
    logprobs = torch.tensor([-100.0, -1.0], requires_grad=True)
    estimates, beyond = KL(1.0, "k3").estimate(logprobs, torch.zeros(2))
    estimates.sum().backward()
    assert estimates.tolist() == pytest.approx([math.exp(10) - 11, math.e - 2], rel=1e-6)
    assert logprobs.grad.tolist() == pytest.approx([0.0, 1 - math.e], abs=1e-6)
    assert beyond.tolist() == [True, False]


def test_a_policy_that_left_the_reference_is_still_pulled_back():
    """x = ln 1e-6 - ln 0.9 = -13.71: k3 = e^x - x - 1 = 12.71, and its slope in log pi is 1 - e^x."""
    logprobs = torch.tensor([math.log(0.9)], requires_grad=True)
    estimates, beyond = KL(1.0, "k3").estimate(logprobs, torch.tensor([math.log(1e-6)]))
    estimates.sum().backward()
    assert estimates.item() == pytest.approx(12.7102, abs=1e-4) and logprobs.grad.item() == pytest.approx(1.0, abs=1e-5)
    assert not beyond.any()


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_estimators_agree_on_the_expectation_of_what_they_estimate(estimator):
    """KL((.5, .5) || (.6, .4)), exactly, as the policy's own average over both tokens; k2 only nearly."""
    policy, reference = torch.tensor([0.5, 0.5]), torch.tensor([0.6, 0.4])
    true = 0.5 * math.log(0.5 / 0.6) + 0.5 * math.log(0.5 / 0.4)
    estimates, _ = KL(1.0, estimator).estimate(policy.log(), reference.log())
    assert float((policy * estimates).sum()) == pytest.approx(true, abs=1e-3 if estimator == "k2" else 1e-6)


def test_where_the_term_goes_and_that_zero_is_off():
    assert KL(0.1, where="loss").in_loss and not KL(0.1, where="loss").in_reward
    assert KL(0.1, where="reward").in_reward and not KL(0.0, where="reward").in_reward and not KL(0.0).in_loss
