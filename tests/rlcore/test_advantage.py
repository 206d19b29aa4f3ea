import math

import pytest

from rlcore.advantage import GRPO, RLOO, SCHEMES, ReinforcePP

HALF = 0.5 * math.sqrt(3)
ROOT = math.sqrt(2)
EVERY = [GRPO("sample"), GRPO("population"), GRPO("none"), RLOO(), ReinforcePP("batch"), ReinforcePP("group")]


@pytest.mark.parametrize(
    ("scheme", "rewards", "expected"),
    [
        # mean 0.5; deviations +-0.5; sample variance 4 * 0.25 / 3 = 1/3; population variance 1/4
        (GRPO("sample"), [[1, 0, 0, 1]], [[HALF, -HALF, -HALF, HALF]]),
        (GRPO("population"), [[1, 0, 0, 1]], [[1, -1, -1, 1]]),
        (GRPO("none"), [[1, 0, 0, 1]], [[0.5, -0.5, -0.5, 0.5]]),
        # mean 2; deviations -1, 0, 1; sample variance 1. A second group has statistics of its own.
        (GRPO("sample"), [[1, 2, 3], [10, 30]], [[-1, 0, 1], [-ROOT / 2, ROOT / 2]]),
        # the others of a 1 are 0, 0, 1; those of a 0 are 1, 0, 1
        (RLOO(), [[1, 0, 0, 1], [1, 2, 3]], [[2 / 3, -2 / 3, -2 / 3, 2 / 3], [-1.5, 0, 1.5]]),
        # window mean 0.75; deviations 0.25 three times and -0.75; sample variance 0.75 / 3, std 0.5
        (ReinforcePP("batch"), [[1, 0], [1, 1]], [[0.5, -1.5], [0.5, 0.5]]),
        # deviations from the groups' means +-0.5, 0, +-1: squares sum to 2.5, over n - 1 = 5 that is 0.5, std sqrt(0.5)
        (ReinforcePP("group"), [[1, 0], [1, 1], [3, 1]], [[ROOT / 2, -ROOT / 2], [0, 0], [ROOT, -ROOT]]),
    ],
)
def test_values_worked_out_by_hand(scheme, rewards, expected):
    for got, wanted in zip(scheme(rewards), expected, strict=True):
        assert got == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("scheme", EVERY)
def test_ties_get_exact_zeros_despite_rounding(scheme):
    assert scheme([[0.7] * 8]) == [[0.0] * 8]
    assert scheme([[0.1 + 0.2, 0.3, 0.3]]) == [[0.0] * 3]


@pytest.mark.parametrize("scheme", EVERY)
def test_fewer_than_two_rewards_have_no_baseline(scheme):
    assert scheme([[0.9], []]) == [[0.0], []]


@pytest.mark.parametrize("scheme", [GRPO("sample"), RLOO(), ReinforcePP("group")])
def test_a_tied_group_beside_another_gets_exact_zeros(scheme):
    tied, other = scheme([[0.1] * 3, [1.0, 0.0]])
    assert tied == [0.0] * 3 and other[0] > 0 > other[1]


@pytest.mark.parametrize("scheme", EVERY)
def test_a_missing_score_must_have_left_the_group(scheme):
    with pytest.raises(ValueError, match="finite"):
        scheme([[1.0, 0.0], [1.0, math.nan]])


def test_unknown_std_names_the_choices():
    with pytest.raises(ValueError, match="sample, population or none, got 'max'"):
        GRPO("max")


def test_the_names_of_the_configuration_stand_for_these_schemes():
    made = {name: scheme("none") for name, scheme in SCHEMES.items()}
    assert made == {
        "grpo": GRPO("none"), "rloo": RLOO(), "reinforce_pp": ReinforcePP("batch"), "reinforce_pp_baseline": ReinforcePP("group")
    }  # fmt: skip
