"""What enters the loss: shaped rewards, advantages per trajectory, and who is left out."""

from dataclasses import replace

import pytest

from rlcore.types import Group, Query, Sequence
from rlcore.window import group_advantages, reply_lengths, shaped_reward, tied, training_samples, window_figures
from tests.rlcore.test_config import composed
from tests.rlcore.trajectories import trajectory

ALGO = composed().algo


def group(*rewards: float | None) -> Group:
    return Group("g", Query("q"), [trajectory(r) for r in rewards])


def test_a_missing_score_leaves_its_group_and_is_not_a_zero():
    # statistics over the two scores: mean 0.5, sample std sqrt(0.5)
    wanted = [[pytest.approx(0.5**0.5), None, pytest.approx(-(0.5**0.5))]]
    assert group_advantages([group(1.0, None, 0.0)], ALGO) == wanted


def test_one_score_of_four_gives_no_signal():
    assert group_advantages([group(1.0, None, None, None)], ALGO) == [[0.0, None, None, None]]


def test_the_scheme_sees_the_whole_window():
    """Window mean 0.75, sample std 0.5 over [1, 0] and [1, 1] (see test_advantage)."""
    values = group_advantages([group(1.0, 0.0), group(1.0, None, 1.0)], replace(ALGO, advantage="reinforce_pp"))
    assert values == [[pytest.approx(0.5), pytest.approx(-1.5)], [pytest.approx(0.5), None, pytest.approx(0.5)]]


def test_kl_in_the_reward_is_taken_off_before_the_statistics():
    algo = replace(ALGO, advantage="rloo")
    values = group_advantages([group(1.0, 0.0)], algo, penalties=[[0.25, 0.0]])
    assert values == [[pytest.approx(0.75), pytest.approx(-0.75)]]


def test_kl_in_the_reward_makes_no_signal_of_equal_rewards():
    """Penalties tell the members of a tied group apart; it is a tie all the same."""
    algo, groups = replace(ALGO, advantage="rloo"), [group(1.0, 1.0), group(1.0, 0.0)]
    values = group_advantages(groups, algo, penalties=[[0.01, 0.0], [0.0, 0.0]])
    assert values == [[pytest.approx(-0.01), pytest.approx(0.01)], [1.0, -1.0]]
    assert [s.advantage for s in training_samples(groups, values, algo)] == [1.0, -1.0]
    assert len(training_samples(groups, values, replace(algo, tied_groups="keep"))) == 4
    assert window_figures(groups, values, algo)["tied_share"] == 0.5


@pytest.mark.parametrize("advantage", ["reinforce_pp", "reinforce_pp_baseline"])
def test_noise_of_kl_is_not_scaled_to_advantages_when_no_reward_differs(advantage):
    algo, groups = replace(ALGO, advantage=advantage), [group(0.0, 0.0), group(0.0, 0.0)]
    values = group_advantages(groups, algo, penalties=[[2e-4, -1e-4], [5e-5, 0.0]])
    assert values == [[0.0, 0.0], [0.0, 0.0]] and not training_samples(groups, values, algo)


def test_tied_groups_leave_the_loss_or_stay_in_its_denominator():
    groups = [group(*[1.0] * 4), group(1.0, 0.0, 0.0, 1.0)]
    values = group_advantages(groups, ALGO)
    assert values[0] == [0.0] * 4 and tied(groups[0], ALGO) and not tied(groups[1], ALGO)
    assert len(training_samples(groups, values, replace(ALGO, tied_groups="drop"))) == 4
    assert len(training_samples(groups, values, replace(ALGO, tied_groups="keep"))) == 8


def test_the_one_reward_of_a_report_goes_to_all_its_actions_and_counts_once_in_the_statistics():
    """Reports of 1, 3 and 90 actions: were statistics over actions, the mean would be near the third report's reward."""
    reports = group(0.0, 0.5, 1.0)
    for report, actions in zip(reports.trajectories, (1, 3, 90), strict=True):
        report.sequences *= actions
    values = group_advantages([reports], ALGO)
    assert values == [[-1.0, 0.0, 1.0]]  # mean 0.5, sample standard deviation 0.5
    samples = training_samples([reports], values, ALGO)
    assert [(s.trajectory, s.advantage) for s in samples] == [(0, -1.0)] + [(1, 0.0)] * 3 + [(2, 1.0)] * 90


@pytest.mark.parametrize(
    ("truncated", "reward", "samples"),
    [("keep", 0.75, 2), ("zero", 0.0, 2), ("soft", -0.25, 2), ("mask", 0.75, 1)],
)
def test_a_truncated_reply_by_choice(truncated, reward, samples):
    algo = replace(ALGO, truncated=truncated, overlong_buffer=4, max_tokens=10)
    cut = trajectory(0.75, "truncated")
    groups = [Group("g", Query("q"), [trajectory(1.0), cut])]
    assert shaped_reward(cut, algo) == reward and shaped_reward(groups[0].trajectories[0], algo) == 1.0
    values = group_advantages(groups, algo)
    assert values == [[pytest.approx(0.5**0.5), pytest.approx(-(0.5**0.5))]]  # masked, it is still in the statistics
    assert len(training_samples(groups, values, algo)) == samples


@pytest.mark.parametrize(("tokens", "penalty"), [(6, 0.0), (7, 0.25), (9, 0.75), (10, 1.0), (12, 1.0)])
def test_the_overlong_penalty_grows_over_the_last_tokens(tokens, penalty):
    algo = replace(ALGO, truncated="soft", overlong_buffer=4, max_tokens=10)
    assert shaped_reward(trajectory(1.0, tokens=tokens), algo) == pytest.approx(1.0 - penalty)


def test_the_length_that_counts_is_of_one_reply_and_not_of_the_conversation():
    s = Sequence()
    s.append_context([1, 2])
    s.append_sampled([3] * 4, [-1.0] * 4, [0] * 4, "stop")
    s.append_context([9])
    s.append_sampled([3] * 5, [-1.0] * 5, [0] * 5, "stop")
    assert reply_lengths(s) == [4, 5] and reply_lengths(Sequence()) == [0]


def test_figures_of_a_window():
    cut = trajectory(0.0, "truncated", tokens=7)
    groups = [Group("a", Query("a"), [trajectory(1.0, tokens=3), cut, trajectory(None)]), group(1.0, 1.0)]
    assert window_figures(groups, group_advantages(groups, ALGO), ALGO) == {
        "tied_share": 0.5, "tokens_positive": 3.0, "tokens_negative": 7.0, "reward_finished": 1.0, "reward_truncated": 0.0
    }  # fmt: skip
