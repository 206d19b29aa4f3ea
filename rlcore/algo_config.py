"""The algorithm's knobs and what is refused about them before anything starts. conf/algo/ holds the named combinations."""

from __future__ import annotations

from dataclasses import dataclass

from rlcore.advantage import GRPO, SCHEMES
from rlcore.batch import AGGREGATIONS
from rlcore.correction import CORRECTIONS, Correction
from rlcore.errors import ConfigError
from rlcore.kl import ESTIMATORS, KL
from rlcore.schedule import Schedule
from rlcore.typed import one_of


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW and its learning-rate schedule."""

    lr: float
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.95
    grad_clip: float = 1.0
    schedule: str = "constant"
    warmup_steps: int = 0
    floor: float = 0.0


@dataclass(frozen=True)
class AlgoConfig:
    """The algorithm and its loop; conf/algo/grpo.yaml says what each value does."""

    steps: int
    queries_per_step: int
    group_size: int
    max_staleness: int
    groups_in_flight: int | None
    temperature: float
    max_tokens: int
    advantage: str
    std: str
    aggregation: str
    constant_length: float | None
    tied_groups: str
    resample_tied: int
    truncated: str
    overlong_buffer: int | None
    ratio: str
    surrogate: str
    clip_low: float
    clip_high: float
    dual_clip: float | None
    old_logprobs: str
    correction: Correction
    kl: KL
    entropy_coef: float
    row_tokens: int
    optimizer: OptimizerConfig
    max_failed_share: float
    max_nonfinite_steps: int
    checkpoint_every: int
    keep_checkpoints: int | None
    keep_best: int
    evaluate_every: int


def check_algo(a: AlgoConfig) -> None:
    """Refuse what cannot work. Raises ConfigError with the field, its value and values that would work."""
    for name in ("steps", "queries_per_step", "max_tokens", "row_tokens", "max_nonfinite_steps"):
        if getattr(a, name) < 1:
            raise ConfigError(f"algo.{name}={getattr(a, name)} must be at least 1")
    if a.group_size < 2:
        raise ConfigError(f"algo.group_size={a.group_size} must be at least 2: a group of one has no baseline")
    if a.max_staleness < 0:
        raise ConfigError(f"algo.max_staleness={a.max_staleness} must be 0 (synchronous) or more")
    most = (a.max_staleness + 1) * a.queries_per_step
    if a.groups_in_flight is not None and not a.queries_per_step <= a.groups_in_flight <= most:
        raise ConfigError(
            f"algo.groups_in_flight={a.groups_in_flight} must lie between algo.queries_per_step={a.queries_per_step} and "
            f"(algo.max_staleness + 1) * algo.queries_per_step = {most}"
        )
    if a.temperature <= 0:
        raise ConfigError(
            f"algo.temperature={a.temperature} must be above 0: greedy samples carry no information for the policy gradient"
        )
    one_of("algo.advantage", a.advantage, tuple(SCHEMES))
    GRPO(a.std)
    check_aggregation("algo.aggregation", a.aggregation)
    if a.aggregation == "constant" and not a.constant_length:
        raise ConfigError("algo.aggregation=constant needs algo.constant_length, the fixed number of tokens to divide by")
    one_of("algo.tied_groups", a.tied_groups, ("drop", "keep"))
    if a.resample_tied < 0:
        raise ConfigError(f"algo.resample_tied={a.resample_tied} must be 0 (off) or the largest number of tries for a group")
    one_of("algo.truncated", a.truncated, ("zero", "keep", "soft", "mask"))
    if a.truncated == "soft" and not 0 < (a.overlong_buffer or 0) < a.max_tokens:
        raise ConfigError(
            f"algo.truncated=soft needs algo.overlong_buffer between 1 and algo.max_tokens - 1 = {a.max_tokens - 1}, the last "
            f"tokens of a reply over which the penalty grows; got {a.overlong_buffer}"
        )
    if not 0 <= a.max_failed_share < 1:
        raise ConfigError(f"algo.max_failed_share={a.max_failed_share} must be a share from 0 to below 1")
    if a.keep_checkpoints is not None and a.keep_checkpoints < 1:
        raise ConfigError(f"algo.keep_checkpoints={a.keep_checkpoints} must be at least 1, or null: all of them")
    if a.keep_best < 0:
        raise ConfigError(f"algo.keep_best={a.keep_best} must be 0 or the number of best checkpoints to keep beside the newest")
    check_optimizer("algo", a.optimizer)
    _check_loss(a)


def _check_loss(a: AlgoConfig) -> None:
    one_of("algo.ratio", a.ratio, ("token", "sequence"))
    one_of("algo.surrogate", a.surrogate, ("clip", "cispo"))
    if not 0 < a.clip_low <= 1:
        raise ConfigError(f"algo.clip_low={a.clip_low} must be above 0 and at most 1 (the ratio's lower bound is 1 - clip_low)")
    if a.clip_high <= 0:
        raise ConfigError(f"algo.clip_high={a.clip_high} must be above 0 (the ratio's upper bound is 1 + clip_high)")
    if a.dual_clip is not None and a.dual_clip <= 1 + a.clip_high:
        raise ConfigError(f"algo.dual_clip={a.dual_clip} must be above 1 + algo.clip_high = {1 + a.clip_high:g}, or null")
    one_of("algo.old_logprobs", a.old_logprobs, ("rollout", "recomputed"))
    c = a.correction
    one_of("algo.correction.kind", c.kind, CORRECTIONS)
    if not 0 <= c.low < 1 < c.high:
        raise ConfigError(f"algo.correction.low={c.low}, high={c.high} must lie on both sides of a ratio of 1, low from 0")
    if c.kind == "truncate" and a.old_logprobs == "rollout":
        raise ConfigError(
            "algo.correction.kind=truncate would count the importance weight twice: with algo.old_logprobs=rollout the policy "
            "ratio is that weight; use algo.old_logprobs=recomputed, or icepop, sequence_mask or geometric_mask"
        )
    one_of("algo.kl.estimator", a.kl.estimator, ESTIMATORS)
    one_of("algo.kl.where", a.kl.where, ("loss", "reward"))
    for name, coef in [("algo.kl.coef", a.kl.coef), ("algo.entropy_coef", a.entropy_coef)]:
        if coef < 0:
            raise ConfigError(f"{name}={coef} must be 0 (off) or more")
    scaled = a.advantage == "grpo" and a.std != "none"
    if a.kl.coef and a.kl.where == "reward" and scaled:
        raise ConfigError(
            f"algo.kl.where=reward with algo.std={a.std}: in a group of nearly equal rewards differences of KL would be "
            "scaled to full advantages; use algo.kl.where=loss, algo.std=none, or algo.advantage=rloo or reinforce_pp"
        )


def check_aggregation(name: str, value: str) -> None:
    one_of(name, value, AGGREGATIONS)


def check_optimizer(name: str, optimizer: OptimizerConfig) -> None:
    if optimizer.lr <= 0:
        raise ConfigError(f"{name}.optimizer.lr={optimizer.lr} must be above 0")
    Schedule(optimizer.schedule, optimizer.warmup_steps, 1)
