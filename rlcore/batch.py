"""Groups with advantages -> packed rows with one weight per trained token. Aggregation is data: the learner only sums.

    [prompt | reply 1 | reply 2 | ...]   one packed row; every reply attends to the prompt and to itself

A prompt shared by several sequences is stored and computed once. Positions restart after the prompt for every reply, so
each reply sees exactly what it would see alone. Rows are cut by a token budget; the weights are counted once over the whole
optimizer window, so the gradient cannot depend on how the window is cut into rows, micro-batches or ranks.

Legend: T = tokens of a row, N = trained tokens of a row.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from rlcore.types import Sequence

AGGREGATIONS = ("token_mean", "trajectory_mean", "sequence_mean", "constant")
PROMPT = -1  # branch of tokens that every reply of their segment may see


@dataclass(frozen=True)
class Sample:
    """One sequence with its advantage, and the trajectory (of the window) it belongs to."""

    sequence: Sequence
    advantage: float
    trajectory: int


@dataclass(slots=True)
class Row:
    """One micro-batch: packed tokens, who may attend to whom, and what is trained.

    A token attends to earlier tokens of its own segment that are in branch PROMPT or in its own branch.
    """

    token_ids: list[int] = field(default_factory=list)  # [T]
    positions: list[int] = field(default_factory=list)  # [T]
    segments: list[int] = field(default_factory=list)  # [T]
    branches: list[int] = field(default_factory=list)  # [T]
    predictors: list[int] = field(default_factory=list)  # [N] index of the token whose hidden state predicts the target
    targets: list[int] = field(default_factory=list)  # [N] token id
    weights: list[float] = field(default_factory=list)  # [N]
    advantages: list[float] = field(default_factory=list)  # [N]
    rollout_logprobs: list[float] = field(default_factory=list)  # [N]
    samples: list[int] = field(default_factory=list)  # [N] which of the samples given to `build_rows` the token is of
    filler: bool = False  # weight zero: computed like any row so that a rank joins every collective, counted nowhere

    def __len__(self) -> int:
        return len(self.token_ids)


def token_weights(samples: list[Sample], aggregation: str, constant: float | None = None) -> list[float]:
    """Weight of every trained token of each sample, counted over the whole window.

    token_mean:      1 / (trained tokens of the window): long replies count more.
    trajectory_mean: 1 / (trajectories x trained tokens of the trajectory): one rollout, one vote.
    sequence_mean:   1 / (sequences x trained tokens of the sequence): a rollout of many sequences has as many votes.
    constant:        1 / (trajectories x constant), Dr. GRPO's fixed length: no length bias, no dependence on the batch.
    Example, replies of 1 and 3 tokens: token_mean 1/4 each; trajectory_mean 1/2 and 1/6; constant 10 gives 1/20 each. Were both
    of one trajectory: trajectory_mean 1/4 each, sequence_mean still 1/2 and 1/6.
    """
    tokens: dict[int, int] = {}
    for s in samples:
        tokens[s.trajectory] = tokens.get(s.trajectory, 0) + sum(s.sequence.loss_mask)
    tokens = {t: n for t, n in tokens.items() if n}
    if aggregation == "token_mean":
        total = sum(tokens.values())
        return [1.0 / total if total else 0.0 for _ in samples]
    if aggregation == "trajectory_mean":
        return [1.0 / (len(tokens) * tokens[s.trajectory]) if s.trajectory in tokens else 0.0 for s in samples]
    if aggregation == "sequence_mean":
        lengths = [sum(s.sequence.loss_mask) for s in samples]
        sequences = sum(n > 0 for n in lengths)
        return [1.0 / (sequences * n) if n else 0.0 for n in lengths]
    if aggregation == "constant":
        if not constant or constant <= 0:
            raise ValueError(f"algo.aggregation=constant needs algo.constant_length > 0, got {constant}")
        return [1.0 / (len(tokens) * constant) if tokens else 0.0 for _ in samples]
    raise ValueError(f"algo.aggregation must be one of {', '.join(AGGREGATIONS)}, got {aggregation!r}")


def build_rows(samples: list[Sample], weights: list[float], max_tokens: int) -> list[Row]:
    """Pack samples into rows of at most `max_tokens` tokens. A sequence longer than that has a row of its own.

    Samples with equal prompts share one copy of it per row. Longest families first, each put where it still fits.
    """
    families: dict[tuple[int, ...], list[_Member]] = {}
    for number, (sample, weight) in enumerate(zip(samples, weights, strict=True)):
        sequence = sample.sequence
        if any(sequence.loss_mask):
            prompt = tuple(sequence.token_ids[: sequence.prompt_length])
            families.setdefault(prompt, []).append(_Member(number, sample, weight))
    rows: list[Row] = []
    for prompt, members in sorted(families.items(), key=lambda kv: -_family_size(*kv)):
        for chunk in _cut_family(len(prompt), members, max_tokens):
            size = _family_size(prompt, chunk)
            row = next((r for r in rows if len(r) + size <= max_tokens), None)
            if row is None:
                row = Row()
                rows.append(row)
            _append_family(row, prompt, chunk)
    return rows


class _Member(NamedTuple):
    number: int
    sample: Sample
    weight: float


def _family_size(prompt: tuple[int, ...], members: list[_Member]) -> int:
    return len(prompt) + sum(len(m.sample.sequence) - len(prompt) for m in members)


def _cut_family(prompt: int, members: list[_Member], max_tokens: int) -> list[list[_Member]]:
    """Split a family that does not fit one row; each part repeats the prompt."""
    chunks: list[list[_Member]] = [[]]
    size = prompt
    for member in members:
        reply = len(member.sample.sequence) - prompt
        if chunks[-1] and size + reply > max_tokens:
            chunks.append([])
            size = prompt
        chunks[-1].append(member)
        size += reply
    return chunks


def _append_family(row: Row, prompt: tuple[int, ...], members: list[_Member]) -> None:
    segment = row.segments[-1] + 1 if row.segments else 0
    start = len(row)
    row.token_ids += prompt
    row.positions += range(len(prompt))
    row.segments += [segment] * len(prompt)
    row.branches += [PROMPT] * len(prompt)
    for branch, (number, sample, weight) in enumerate(members):
        sequence = sample.sequence
        offset = len(row) - len(prompt)  # index of the reply's position p in the row is offset + p
        reply = range(len(prompt), len(sequence))
        row.token_ids += sequence.token_ids[len(prompt) :]
        row.positions += reply
        row.segments += [segment] * len(reply)
        row.branches += [branch] * len(reply)
        for p in reply:
            if sequence.loss_mask[p]:
                row.predictors.append(start + p - 1 if p == len(prompt) else offset + p - 1)
                row.targets.append(sequence.token_ids[p])
                row.weights.append(weight)
                row.advantages.append(sample.advantage)
                row.rollout_logprobs.append(sequence.rollout_logprobs[p])
                row.samples.append(number)


def whole_row(token_ids: list[int]) -> Row:
    """A row of one sequence, in which every token but the first is a target of weight zero: for scoring."""
    n = len(token_ids)
    zeros = [0.0] * (n - 1)
    same = [0] * (n - 1)
    return Row(token_ids, list(range(n)), [0] * n, [0] * n, list(range(n - 1)), token_ids[1:], zeros, zeros, zeros, same)


def spread_rows(rows: list[Row], ranks: int) -> list[list[Row]]:
    """Give each rank an equal number of rows of about equal cost; filler rows even the numbers out."""
    shares: list[list[Row]] = [[] for _ in range(ranks)]
    cost = [0] * ranks
    for row in sorted(rows, key=len, reverse=True):
        rank = cost.index(min(cost))
        shares[rank].append(row)
        cost[rank] += len(row)
    longest = max(len(share) for share in shares)
    for share in shares:
        while len(share) < longest:
            filler = whole_row([0, 0])
            filler.filler = True
            share.append(filler)
    return shares
