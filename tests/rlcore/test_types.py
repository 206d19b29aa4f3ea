import json
import math

import pytest

from rlcore.types import Group, Outcome, Query, RewardResult, Sequence, Trajectory, scored, unavailable


def grown() -> Sequence:
    s = Sequence()
    s.append_context([1, 2, 3])
    s.append_sampled([4, 5], [-0.5, -0.25], [7, 8], "stop", span="draft")
    s.append_context([6])
    s.append_sampled([9], [-1.0], [8], "length", span="draft")
    return s


def test_a_sequence_keeps_its_four_lists_aligned():
    s = grown()
    assert s.token_ids == [1, 2, 3, 4, 5, 6, 9]
    assert s.loss_mask == [0, 0, 0, 1, 1, 0, 1]
    assert s.rollout_logprobs == [0, 0, 0, -0.5, -0.25, 0, -1.0]
    assert s.policy_version == [-1, -1, -1, 7, 8, -1, 8]
    assert s.spans == {"draft": [(3, 5), (6, 7)]} and s.finish_reason == "length"
    assert s.prompt_length == 3 and s.oldest_version == 7


def test_unequal_lengths_are_refused_and_change_nothing():
    s = grown()
    with pytest.raises(ValueError, match="2 ids, 2 mask, 1 logprobs, 2 versions"):
        s.append_sampled([1, 2], [-1.0], [0, 0], "stop")
    assert len(s) == 7


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 0.5])
def test_log_probabilities_must_be_finite_and_not_positive(bad):
    with pytest.raises(ValueError, match="rollout_logprobs"):
        Sequence().append_sampled([1], [bad], [0], "stop")


def test_an_unavailable_reward_is_not_a_zero():
    assert not unavailable("judge down").available and unavailable("judge down").value is None
    assert scored(0.0).available


@pytest.mark.parametrize("bad", [math.nan, math.inf, True, "1"])
def test_a_score_must_be_a_finite_number(bad):
    with pytest.raises(ValueError, match="reward value"):
        scored(bad)
    with pytest.raises(ValueError, match="reward recall"):
        scored(1.0, {"recall": bad})


def test_a_trajectory_survives_json_text():
    t = Trajectory(
        Query("q", {"a": [1]}), "g", 3, [grown()], Outcome({"x": "李明"}, {"valid": 1.0}), reward=scored(0.5, {"recall": 0.5})
    )
    t.timings = {"model": [0.1]}
    assert Trajectory.from_json(json.loads(json.dumps(t.to_json()))) == t


def test_only_scored_rollouts_that_did_not_fail_are_usable():
    t = Trajectory(Query("q"), "g", 0)
    assert not t.usable
    t.reward = scored(0.0)
    assert t.usable
    t.status = "failed"
    assert not t.usable
    t.status, t.reward = "completed", RewardResult(None, {}, "timeout")
    assert not t.usable


def test_a_group_is_as_old_as_its_oldest_sampled_token():
    group = Group("g", Query("q"), [Trajectory(Query("q"), "g", 0, [grown()]), Trajectory(Query("q"), "g", 1, [])])
    assert group.oldest_version == 7
