"""One optimizer window: its groups -> shaped rewards -> advantages -> what enters the loss.

reward of the environment --(truncated, KL in the reward)--> shaped reward --(scheme)--> advantage --> Samples
"""

from __future__ import annotations

from itertools import groupby

from rlcore.advantage import SCHEMES
from rlcore.advantage import tied as equal
from rlcore.algo_config import AlgoConfig
from rlcore.batch import Sample
from rlcore.metrics import mean
from rlcore.types import Group, Sequence, Trajectory

Advantages = list[list[float | None]]  # per group, per trajectory; None for one that cannot train


def shaped_reward(trajectory: Trajectory, algo: AlgoConfig) -> float:
    """The reward of a usable trajectory as `algo.truncated` has it.

    zero: a truncated trajectory earns 0.  keep, mask: as it scored.
    soft: DAPO's overlong penalty (arXiv 2503.14476) is added: 0 while the longest reply has at most max_tokens - overlong_buffer
    tokens, falling to -1 at max_tokens; a truncated trajectory, cut by whatever limit, gets -1.
    """
    assert trajectory.reward is not None and trajectory.reward.value is not None, "only a scored trajectory has a reward"
    value, cut = trajectory.reward.value, trajectory.status == "truncated"
    if algo.truncated == "zero" and cut:
        return 0.0
    if algo.truncated == "soft":
        assert algo.overlong_buffer is not None, "checked with the configuration"
        longest = max(reply for s in trajectory.sequences for reply in reply_lengths(s))
        over = longest - (algo.max_tokens - algo.overlong_buffer)
        return value - (1.0 if cut else min(1.0, max(0, over) / algo.overlong_buffer))
    return value


def reply_lengths(sequence: Sequence) -> list[int]:
    """Lengths of the runs of sampled tokens; context separates the replies of a conversation."""
    return [len(list(run)) for sampled, run in groupby(sequence.loss_mask) if sampled] or [0]


def tied(group: Group, algo: AlgoConfig) -> bool:
    """True when the group's shaped rewards carry no preference."""
    return equal([shaped_reward(t, algo) for t in group.trajectories if t.usable])


def group_advantages(groups: list[Group], algo: AlgoConfig, penalties: list[list[float]] | None = None) -> Advantages:
    """One advantage per trajectory, statistics over the usable ones; None for those that cannot train.

    `penalties` (KL in the reward), per group and trajectory, are taken off the shaped rewards. In a window where no reward
    differs from another there is nothing but they to normalise, and noise would become full advantages: all are zero.
    """
    usable = [[i for i, t in enumerate(g.trajectories) if t.usable] for g in groups]
    shaped = [[shaped_reward(g.trajectories[i], algo) for i in members] for g, members in zip(groups, usable, strict=True)]
    rewards = shaped
    if penalties is not None and not equal([r for group in shaped for r in group]):
        rewards = [
            [r - penalties[n][i] for r, i in zip(values, members, strict=True)]
            for n, (values, members) in enumerate(zip(shaped, usable, strict=True))
        ]
    advantages = SCHEMES[algo.advantage](algo.std)(rewards)
    result: Advantages = []
    for group, members, values in zip(groups, usable, advantages, strict=True):
        by_index = dict(zip(members, values, strict=True))
        result.append([by_index.get(i) for i in range(len(group.trajectories))])
    return result


def no_signal(group: Group, values: list[float | None], algo: AlgoConfig) -> bool:
    """True for a group without advantages, and for one whose rewards tie, so that only KL in the reward tells its members apart;
    a baseline of the whole window gives a tied group a signal of its own."""
    return not any(values) or (algo.advantage != "reinforce_pp" and tied(group, algo))


def training_samples(groups: list[Group], advantages: Advantages, algo: AlgoConfig) -> list[Sample]:
    """What enters the loss: usable trajectories; `tied_groups: drop` and `truncated: mask` leave some out.

    A group left out takes its KL and its entropy bonus along; kept, it has both although its advantages are 0.
    """
    samples: list[Sample] = []
    number = 0
    for group, values in zip(groups, advantages, strict=True):
        if algo.tied_groups == "drop" and no_signal(group, values, algo):
            continue
        for trajectory, advantage in zip(group.trajectories, values, strict=True):
            if advantage is None or (algo.truncated == "mask" and trajectory.status == "truncated"):
                continue
            samples += [Sample(sequence, advantage, number) for sequence in trajectory.sequences]
            number += 1
    return samples


def window_figures(groups: list[Group], advantages: Advantages, algo: AlgoConfig) -> dict[str, float]:
    """Dead groups, and what may drift unseen: lengths by the advantage's sign, rewards of finished and of cut trajectories."""
    trained = [(t, a) for g, v in zip(groups, advantages, strict=True) for t, a in zip(g.trajectories, v, strict=True) if a]
    scored = [t for g in groups for t in g.trajectories if t.usable]
    rewards = [(t.status == "truncated", t.reward.value) for t in scored if t.reward is not None and t.reward.value is not None]
    return {
        "tied_share": mean(float(tied(group, algo)) for group in groups),
        "tokens_positive": mean(float(t.sampled_tokens) for t, a in trained if a > 0),
        "tokens_negative": mean(float(t.sampled_tokens) for t, a in trained if a < 0),
        "reward_finished": mean(value for cut, value in rewards if not cut),
        "reward_truncated": mean(value for cut, value in rewards if cut),
    }
