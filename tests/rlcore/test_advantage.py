import math

import pytest

from rlcore.advantage import GRPO


@pytest.mark.parametrize(
    ("std", "rewards", "expected"),
    [
        # mean 0.5; deviations +-0.5; sample variance 4 * 0.25 / 3 = 1/3; population variance 1/4
        ("sample", [1, 0, 0, 1], [0.5 * math.sqrt(3), -0.5 * math.sqrt(3), -0.5 * math.sqrt(3), 0.5 * math.sqrt(3)]),
        ("population", [1, 0, 0, 1], [1, -1, -1, 1]),
        ("none", [1, 0, 0, 1], [0.5, -0.5, -0.5, 0.5]),
        # mean 2; deviations -1, 0, 1; sample variance 1
        ("sample", [1, 2, 3], [-1, 0, 1]),
    ],
)
def test_values_worked_out_by_hand(std, rewards, expected):
    assert GRPO(std)(rewards) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("std", ["sample", "population", "none"])
def test_a_tied_group_gets_exact_zeros_despite_rounding(std):
    assert GRPO(std)([0.7] * 8) == [0.0] * 8
    assert GRPO(std)([0.1 + 0.2, 0.3, 0.3]) == [0.0] * 3


def test_fewer_than_two_rewards_have_no_baseline():
    assert GRPO()([0.9]) == [0.0] and GRPO()([]) == []


def test_a_missing_score_must_have_left_the_group():
    with pytest.raises(ValueError, match="finite"):
        GRPO()([1.0, math.nan])


def test_unknown_std_names_the_choices():
    with pytest.raises(ValueError, match="sample, population or none, got 'max'"):
        GRPO("max")
