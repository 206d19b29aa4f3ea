"""The records that flow through training: query -> trajectory -> group.

    Query --(environment.run)--> Trajectory = [Sequence, ...] + Outcome --(reward)--> RewardResult
    Group = every trajectory of one occurrence of a query

Token ids come from the engine and are never re-tokenised. A sequence grows through `Sequence.append` only, so ids, mask,
log-probabilities and policy versions cannot drift apart.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Status = Literal["completed", "truncated", "failed"]
FailureKind = Literal["infrastructure", "data", "reward_unavailable"]


@dataclass(frozen=True, slots=True)
class Query:
    """One task for the agent: an id and whatever its environment needs, as plain JSON data."""

    id: str
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Sequence:
    """One growing token sequence; all four lists have the same length T.

    `loss_mask[t]` is 1 only where the policy sampled token t. `rollout_logprobs[t]` is log p(token t) in nats at the
    sampling temperature (0.0 where the mask is 0), `policy_version[t]` the weights' version that sampled it (-1 where the
    mask is 0). `spans` names half-open token ranges, such as `{"draft": [(12, 40)]}`.
    """

    token_ids: list[int] = field(default_factory=list)
    loss_mask: list[int] = field(default_factory=list)
    rollout_logprobs: list[float] = field(default_factory=list)
    policy_version: list[int] = field(default_factory=list)
    spans: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    finish_reason: str | None = None

    @classmethod
    def demonstrated(cls, prompt_ids: list[int], reply_ids: list[int]) -> Sequence:
        """A prompt and a reply to learn."""
        sequence = cls()
        sequence.append_context(prompt_ids)
        sequence.append_demonstrated(reply_ids)
        return sequence

    def append_context(self, token_ids: list[int]) -> None:
        """Append tokens the policy did not choose (prompt, tool result, template): mask 0."""
        n = len(token_ids)
        self._extend(token_ids, [0] * n, [0.0] * n, [-1] * n)

    def append_sampled(
        self, token_ids: list[int], logprobs: list[float], versions: list[int], finish_reason: str, span: str | None = None
    ) -> None:
        """Append tokens the policy sampled: mask 1, with the engine's log-probabilities and versions.

        Raises ValueError when the lists differ in length or a log-probability is not a finite number <= 0.
        """
        if not all(math.isfinite(lp) and lp <= 1e-4 for lp in logprobs):
            raise ValueError(f"rollout_logprobs must be finite and <= 0, got {logprobs!r}")
        start = len(self.token_ids)
        self._extend(token_ids, [1] * len(token_ids), logprobs, versions)
        self.finish_reason = finish_reason
        if span is not None:
            self.spans.setdefault(span, []).append((start, len(self.token_ids)))

    def append_demonstrated(self, token_ids: list[int]) -> None:
        """Append tokens to learn that no policy sampled: mask 1, version 0, log-probabilities unknown, 0."""
        self.append_sampled(token_ids, [0.0] * len(token_ids), [0] * len(token_ids), "stop")

    def _extend(self, ids: list[int], mask: list[int], logprobs: list[float], versions: list[int]) -> None:
        if not len(ids) == len(mask) == len(logprobs) == len(versions):
            raise ValueError(
                f"a sequence grows by equal lengths, got {len(ids)} ids, {len(mask)} mask, "
                f"{len(logprobs)} logprobs, {len(versions)} versions"
            )
        self.token_ids += ids
        self.loss_mask += mask
        self.rollout_logprobs += logprobs
        self.policy_version += versions

    @property
    def prompt_length(self) -> int:
        """Number of leading tokens before the first sampled one."""
        return self.loss_mask.index(1) if 1 in self.loss_mask else len(self.loss_mask)

    @property
    def oldest_version(self) -> int | None:
        """The smallest policy version among sampled tokens, None when nothing was sampled."""
        return min((v for v, m in zip(self.policy_version, self.loss_mask, strict=True) if m), default=None)

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclass(slots=True)
class Outcome:
    """What an environment returns: its result as plain JSON data, and numbers to log."""

    data: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    truncated: bool = False


@dataclass(slots=True)
class RewardResult:
    """Either scored, with a finite value and its components, or unavailable, with the reason. Never both."""

    value: float | None
    components: dict[str, float] = field(default_factory=dict)
    reason: str | None = None

    @property
    def available(self) -> bool:
        return self.value is not None


def scored(value: float, components: dict[str, float] | None = None) -> RewardResult:
    """A reward. Raises ValueError unless the value and every component are finite numbers (booleans are refused)."""
    for name, x in [("value", value), *(components or {}).items()]:
        if isinstance(x, bool) or not isinstance(x, int | float) or not math.isfinite(x):
            raise ValueError(f"reward {name} must be a finite number, got {x!r}")
    return RewardResult(float(value), {k: float(v) for k, v in (components or {}).items()})


def unavailable(reason: str) -> RewardResult:
    """No reward could be given. This is not a score of 0: the trajectory leaves its group."""
    return RewardResult(None, {}, reason)


@dataclass(slots=True)
class Failure:
    """Why a trajectory failed: its class decides what happens next (retry elsewhere, skip, or drop)."""

    kind: FailureKind
    message: str


@dataclass(slots=True)
class Trajectory:
    """One rollout of one query: its sequences, the environment's outcome and the reward.

    `timings` holds lists of seconds by name: "model", "tool", "reward", and "total".
    """

    query: Query
    group_id: str
    index: int
    sequences: list[Sequence] = field(default_factory=list)
    outcome: Outcome = field(default_factory=Outcome)
    status: Status = "completed"
    failure: Failure | None = None
    reward: RewardResult | None = None
    timings: dict[str, list[float]] = field(default_factory=dict)

    @property
    def usable(self) -> bool:
        """True when it can train: it did not fail and has a reward."""
        return self.status != "failed" and self.reward is not None and self.reward.available

    @property
    def sampled_tokens(self) -> int:
        return sum(sum(s.loss_mask) for s in self.sequences)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> Trajectory:
        """The inverse of `to_json`, also after a trip through JSON text (spans come back as tuples)."""
        row = dict(row)
        sequences = []
        for s in row.pop("sequences"):
            spans = {name: [(a, b) for a, b in ranges] for name, ranges in s["spans"].items()}
            sequences.append(Sequence(**{**s, "spans": spans}))
        failure, reward = row.pop("failure"), row.pop("reward")
        return cls(
            query=Query(**row.pop("query")),
            outcome=Outcome(**row.pop("outcome")),
            failure=Failure(**failure) if failure else None,
            reward=RewardResult(**reward) if reward else None,
            sequences=sequences,
            **row,
        )


@dataclass(slots=True)
class Group:
    """All trajectories of one query occurrence. The id is given when the query is drawn and carried as data."""

    id: str
    query: Query
    trajectories: list[Trajectory] = field(default_factory=list)

    @property
    def oldest_version(self) -> int | None:
        versions = [s.oldest_version for t in self.trajectories for s in t.sequences]
        return min((v for v in versions if v is not None), default=None)
