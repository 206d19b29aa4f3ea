"""Every algorithm finds the optimum of a token task, through the code that trains: advantages, weights, rows and the policy loss.

The policy is a table: the logits of a token given the one before it. A reply has three tokens, its reward is the share of them
that are right; right is the one reply TARGET.
"""

import math
from dataclasses import replace

import pytest
import torch

from rlcore.batch import build_rows, token_weights
from rlcore.correction import Correction
from rlcore.kl import KL
from rlcore.loss import TrainedTokens, policy_loss
from rlcore.types import Group, Query, Sequence, Trajectory, scored
from rlcore.window import group_advantages, training_samples
from tests.rlcore.test_config import composed

VOCABULARY, START, TARGET = 6, 0, (2, 4, 1)
GROUPS, SIZE = 2, 8


def sample(table: torch.Tensor, version: int, generator: torch.Generator) -> list[Group]:
    """Groups of replies drawn from the table, scored."""
    logp = torch.log_softmax(table, -1)
    tokens = [torch.full((GROUPS * SIZE,), START)]
    for _ in TARGET:
        tokens.append(torch.multinomial(logp[tokens[-1]].exp(), 1, generator=generator)[:, 0])
    replies = torch.stack(tokens, 1)
    logprobs = logp[replies[:, :-1], replies[:, 1:]].tolist()
    groups = [Group(str(g), Query("q")) for g in range(GROUPS)]
    for i, reply in enumerate(replies[:, 1:].tolist()):
        s = Sequence()
        s.append_context([START])
        s.append_sampled(reply, logprobs[i], [version] * len(reply), "stop")
        right = sum(a == b for a, b in zip(reply, TARGET, strict=True))
        group = groups[i // SIZE]
        group.trajectories.append(Trajectory(group.query, group.id, i % SIZE, [s], reward=scored(right / len(TARGET))))
    return groups


def chance_of_target(table: torch.Tensor) -> float:
    logp = torch.log_softmax(table, -1)
    return math.exp(sum(logp[a, b].item() for a, b in zip((START, *TARGET), TARGET, strict=False)))


def k1(trajectory: Trajectory, reference: float) -> float:
    return sum(lp - reference for lp in trajectory.sequences[0].rollout_logprobs[1:])


def learn(algo, sign: float = 1.0, steps: int = 20, lag: int = 0) -> float:
    """The probability of TARGET after training from a uniform table. `lag`: replies come from weights so many steps old."""
    loss = policy_loss(algo)
    generator = torch.Generator().manual_seed(0)
    table = torch.zeros(VOCABULARY, VOCABULARY, requires_grad=True)
    uniform = -math.log(VOCABULARY)
    optimizer = torch.optim.Adam([table], lr=0.5)
    past = [table.detach().clone()]
    for step in range(steps):
        groups = sample(past[max(0, step - lag)], step, generator)
        penalties = [[algo.kl.coef * k1(t, uniform) for t in g.trajectories] for g in groups]
        advantages = group_advantages(groups, algo, penalties if algo.kl.in_reward else None)
        signed = [[sign * a for a in values] for values in advantages]
        samples = training_samples(groups, signed, algo)
        optimizer.zero_grad()
        for row in build_rows(samples, token_weights(samples, algo.aggregation, algo.constant_length), 32):
            before = torch.tensor(row.token_ids)[row.predictors]
            logp = torch.log_softmax(table, -1)[before]
            logprobs = logp.gather(-1, torch.tensor(row.targets)[:, None])[:, 0]
            reference = torch.full_like(logprobs, uniform).detach() if algo.kl.in_loss else None
            value, _ = loss(logprobs, TrainedTokens.of(row, "cpu", reference), -(logp.exp() * logp).sum(-1))
            value.backward()
        optimizer.step()
        past.append(table.detach().clone())
    return chance_of_target(table)


GRPO = composed("algo.aggregation=trajectory_mean").algo
ALGORITHMS = {
    **{name: composed(f"algo={name}").algo for name in ("dr_grpo", "dapo", "gspo", "cispo", "rloo", "reinforce_pp", "icepop")},
    "grpo": GRPO,
    "grpo, population std": replace(GRPO, std="population"),
    "reinforce_pp_baseline": replace(GRPO, advantage="reinforce_pp_baseline"),
    "with KL and entropy in the loss": replace(GRPO, kl=KL(0.01, "k2"), entropy_coef=0.001),
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_optimum_is_found_and_with_the_sign_turned_it_is_not(name):
    assert learn(ALGORITHMS[name]) > 0.9
    assert learn(ALGORITHMS[name], sign=-1.0, steps=5) < 1 / VOCABULARY**3


@pytest.mark.parametrize(
    "algo",
    [
        GRPO,
        replace(GRPO, old_logprobs="recomputed", correction=Correction("truncate")),
        replace(GRPO, correction=Correction("geometric_mask")),
    ],
    ids=["ratio", "truncate", "geometric_mask"],
)
def test_replies_of_older_weights_lead_there_too(algo):
    assert learn(algo, lag=2, steps=40) > 0.9


def test_a_strong_kl_term_holds_the_policy_at_its_reference():
    assert learn(replace(GRPO, kl=KL(10.0, "k3"))) < 0.05
