"""recipes.minimal and the packed path are two ways to write one algorithm; on a random model, without actors."""

from dataclasses import replace

import pytest
import torch

from recipes.minimal import check_default, train_step
from rlcore.batch import build_rows, token_weights
from rlcore.errors import ConfigError
from rlcore.kl import KL
from rlcore.loss import TrainedTokens, policy_loss, token_logprobs
from rlcore.types import Group, Query, Sequence, Trajectory, scored
from rlcore.window import group_advantages, training_samples
from tests.rlcore.conftest import model  # noqa: F401 - the fixture
from tests.rlcore.test_config import composed

ALGO = composed().algo


def groups() -> list[Group]:
    """Two groups and a tied one; trajectories of one and of two sequences; ratios on both sides of both bounds."""
    made = []
    for number, rewards in enumerate([(1.0, 0.0, 0.25), (0.5, 0.5), (0.0, 1.0)]):
        group = Group(f"{number}", Query("q"))
        for index, reward in enumerate(rewards):
            t = Trajectory(group.query, group.id, index, reward=scored(reward))
            for part in range(1 + index % 2):
                s = Sequence()
                s.append_context([5 + number, 9, 3 + part])
                length = 2 + 3 * index + part
                ids = [(7 * number + 5 * index + 3 * part + j) % 60 for j in range(length)]
                s.append_sampled(ids, [-3.4 - 0.3 * (j % 5) for j in range(length)], [0] * length, "stop")
                t.sequences.append(s)
            group.trajectories.append(t)
        made.append(group)
    return made


@pytest.mark.parametrize("aggregation", ["token_mean", "trajectory_mean"])
def test_the_specification_and_the_packed_path_agree_on_loss_and_gradient(model, aggregation):  # noqa: F811
    algo = replace(ALGO, aggregation=aggregation)
    window = groups()
    samples = training_samples(window, group_advantages(window, algo), algo)
    assert len(samples) == 7 and not {s.trajectory for s in samples} - set(range(5))
    model.zero_grad()
    total, clipped = 0.0, 0.0
    for row in build_rows(samples, token_weights(samples, aggregation), 24):
        value, figures = policy_loss(algo)(token_logprobs(model, row, algo.temperature)[0], TrainedTokens.of(row, "cpu"))
        value.backward()
        total, clipped = total + float(value.detach()), clipped + figures["clipped_sum"]
    norm = float(torch.nn.utils.get_total_norm([p.grad for p in model.parameters()]))
    model.zero_grad()
    still = torch.optim.SGD(model.parameters(), lr=0.0)
    figures = train_step(model, still, [g.trajectories for g in window], algo)
    assert clipped > 0
    assert figures["loss"] == pytest.approx(total, abs=1e-5) and figures["grad_norm"] == pytest.approx(norm, rel=1e-5)


def test_other_algorithms_are_refused():
    check_default(ALGO)
    for changes, message in [
        ({"ratio": "sequence"}, "recipes.minimal has algo.ratio=token only"),
        ({"kl": KL(0.1)}, "algo.kl.coef=0.1: recipes.minimal has algo.kl.coef=0.0 only"),
        ({"aggregation": "sequence_mean"}, "token_mean or trajectory_mean"),
    ]:
        with pytest.raises(ConfigError, match=message):
            check_default(replace(ALGO, **changes))
