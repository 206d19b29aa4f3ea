import pytest

from rlcore.batch import PROMPT, Row, Sample, build_rows, spread_rows, token_weights
from rlcore.types import Sequence


def sequence(prompt: list[int], reply: list[int], later: list[int] | None = None, more: list[int] | None = None) -> Sequence:
    s = Sequence()
    s.append_context(prompt)
    s.append_sampled(reply, [-0.1 * (i + 1) for i in range(len(reply))], [0] * len(reply), "stop")
    if later is not None:
        s.append_context(later)
        s.append_sampled(more or [], [-2.0] * len(more or []), [0] * len(more or []), "stop")
    return s


def test_weights_of_each_aggregation_by_hand():
    samples = [Sample(sequence([1], [2]), 1.0, 0), Sample(sequence([1], [2, 3, 4]), -1.0, 1)]  # replies of 1 and 3 tokens
    assert token_weights(samples, "token_mean") == [1 / 4, 1 / 4]
    assert token_weights(samples, "trajectory_mean") == [1 / 2, 1 / 6]
    assert token_weights(samples, "sequence_mean") == [1 / 2, 1 / 6]
    assert token_weights(samples, "constant", 10) == [1 / 20, 1 / 20]
    joined = [Sample(s.sequence, 1.0, 0) for s in samples]  # the same replies in one trajectory
    assert token_weights(joined, "trajectory_mean") == [1 / 4, 1 / 4]
    assert token_weights(joined, "sequence_mean") == [1 / 2, 1 / 6]


def votes(samples: list[Sample], aggregation: str) -> dict[int, float]:
    """What each trajectory weighs in the loss: its tokens' weights as they stand in the packed rows, summed."""
    samples = [Sample(s.sequence, float(s.trajectory), s.trajectory) for s in samples]  # so that a row's token names its own
    result: dict[int, float] = {}
    for row in build_rows(samples, token_weights(samples, aggregation), max_tokens=64):
        for weight, trajectory in zip(row.weights, row.advantages, strict=True):
            result[int(trajectory)] = result.get(int(trajectory), 0.0) + weight
    return result


def test_trajectories_of_1_3_and_90_sequences_have_one_vote_each():
    """Replies of every length from 1 to 5 tokens, prompts shared and not: rows are cut in between, the votes stay equal."""
    reports = [
        Sample(sequence([7, number % 4], [5] * (1 + (number + trajectory) % 5)), 1.0, trajectory)
        for trajectory, count in enumerate([1, 3, 90])
        for number in range(count)
    ]
    assert votes(reports, "trajectory_mean") == pytest.approx({0: 1 / 3, 1: 1 / 3, 2: 1 / 3})
    assert votes(reports, "sequence_mean") == pytest.approx({0: 1 / 94, 1: 3 / 94, 2: 90 / 94})
    # Tokens: 1; 2 + 3 + 4; and of the 90, which start at length 3, each length 18 times: 18 x 15.
    assert votes(reports, "token_mean") == pytest.approx({0: 1 / 280, 1: 9 / 280, 2: 270 / 280})


def test_constant_needs_its_length_and_unknown_names_list_the_choices():
    with pytest.raises(ValueError, match="constant_length"):
        token_weights([], "constant")
    with pytest.raises(ValueError, match="token_mean, trajectory_mean, sequence_mean, constant"):
        token_weights([], "mean")


def test_a_shared_prompt_is_stored_once_and_replies_restart_their_positions():
    samples = [Sample(sequence([7, 8, 9], [1, 2]), 0.5, 0), Sample(sequence([7, 8, 9], [3], [4], [5]), -0.5, 1)]
    (row,) = build_rows(samples, [0.1, 0.2], max_tokens=100)
    assert row.token_ids == [7, 8, 9, 1, 2, 3, 4, 5]
    assert row.positions == [0, 1, 2, 3, 4, 3, 4, 5]
    assert row.branches == [PROMPT] * 3 + [0, 0, 1, 1, 1]
    assert row.segments == [0] * 8
    # token 1 and token 3 are both predicted by the prompt's last token; token 5 by the context token 4 before it
    assert row.predictors == [2, 3, 2, 6] and row.targets == [1, 2, 3, 5]
    assert row.weights == [0.1, 0.1, 0.2, 0.2] and row.advantages == [0.5, 0.5, -0.5, -0.5]
    assert row.rollout_logprobs == [-0.1, -0.2, -0.1, -2.0] and row.samples == [0, 0, 1, 1]


def test_a_second_family_in_a_row_is_a_segment_of_its_own():
    samples = [Sample(sequence([7, 8], [1]), 1.0, 0), Sample(sequence([9], [2]), 1.0, 1)]
    (row,) = build_rows(samples, [1.0, 1.0], max_tokens=100)
    assert row.token_ids == [7, 8, 1, 9, 2] and row.segments == [0, 0, 0, 1, 1]
    assert row.positions == [0, 1, 2, 0, 1] and row.predictors == [1, 3]


def test_rows_respect_the_token_budget_and_lose_nothing():
    samples = [Sample(sequence([7] * 10, [i] * 6), 1.0, i) for i in range(5)]
    rows = build_rows(samples, [1.0] * 5, max_tokens=22)  # the prompt and two replies fill a row
    assert [len(r) for r in rows] == [22, 22, 16]
    assert sorted(t for r in rows for t in r.targets) == sorted(t for i in range(5) for t in [i] * 6)
    assert all(r.samples == r.targets for r in rows)  # sample i says i: each token still knows whose it is


def test_a_sequence_longer_than_the_budget_has_a_row_of_its_own():
    rows = build_rows([Sample(sequence([7] * 10, [1] * 30), 1.0, 0)], [1.0], max_tokens=16)
    assert [len(r) for r in rows] == [40]


def test_a_sequence_without_a_sampled_token_adds_nothing():
    s = Sequence()
    s.append_context([1, 2, 3])
    samples = [Sample(s, 1.0, 0), Sample(sequence([1], [2]), 1.0, 1)]
    assert token_weights(samples, "trajectory_mean") == token_weights(samples, "sequence_mean") == [0.0, 1.0]
    assert len(build_rows(samples, [0.0, 1.0], 100)) == 1


@pytest.mark.parametrize(("rows", "ranks"), [(1, 2), (3, 2), (4, 4), (5, 4), (0, 2)])
def test_every_rank_gets_the_same_number_of_rows(rows, ranks):
    given = [Row(token_ids=[0] * (i + 1), targets=[0]) for i in range(rows)]
    shares = spread_rows(given, ranks)
    assert len({len(s) for s in shares}) == 1
    assert sorted(len(r) for s in shares for r in s if not r.filler) == [i + 1 for i in range(rows)]
