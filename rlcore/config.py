"""Typed configuration. Hydra composes, `load_config` turns the result into these dataclasses, and DictConfig is never seen again.

An unknown key is an error that names the nearest key, also after `+`. Everything that can be known to fail (missing files,
numbers that do not divide, algorithms without their constant) is refused by `check_config` before anything is started.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlcore.algo_config import AlgoConfig, OptimizerConfig, check_aggregation, check_algo, check_optimizer
from rlcore.endpoint import check_url
from rlcore.errors import ConfigError
from rlcore.judge_config import JudgeConfig, RewardConfig, check_judges, check_keys
from rlcore.targets import Target
from rlcore.typed import convert, one_of

# Keys of DeepSpeed's config that follow from ours: set twice, they would disagree in silence.
DEEPSPEED_OWNED = {
    "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping", "bf16", "fp16",
    "optimizer", "scheduler", "data_types",
}  # fmt: skip


@dataclass(frozen=True)
class LoraConfig:
    """An adapter in place of full training (rlcore/lora.py): `rank` and `alpha` give the factor alpha / rank, `targets` are the
    names of the decoder's linear layers that get one, such as q_proj. There is no dropout: a ratio of 1 on policy excludes it.
    """

    rank: int
    alpha: float
    targets: list[str]


@dataclass(frozen=True)
class ModelConfig:
    """A causal language model: a local folder or a hub name. `build_hint` is the command that makes a local one."""

    name: str
    path: str
    local: bool
    dtype: str
    max_model_len: int
    trust_remote_code: bool = False
    train_layers: int | None = None  # only the last so many decoder layers are trained; null: all of the model
    lora: LoraConfig | None = None  # an adapter is trained (in those layers); null: the model's own weights
    gradient_checkpointing: bool = False  # keep only the inputs of decoder layers for backward, compute the rest again
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    build_hint: str = ""


@dataclass(frozen=True)
class ClusterConfig:
    """What runs where. CPUs are Ray's logical ones (they decide placement); threads are what a process really uses.

    `address` null starts Ray on this machine, otherwise joins that cluster ("auto" finds the running one). With
    `max_staleness: 0` engine and learner take turns, so both may use all cores; above 0 they compute at the same time.
    """

    address: str | None
    engines: int
    engine_cpus: float
    engine_gpus: int
    engine_threads: int
    max_num_seqs: int
    kv_cache_gib: int
    gpu_memory_utilization: float
    learner_ranks: int
    learner_cpus: float
    learner_gpus: int
    learner_threads: int
    reward_workers: int
    reward_worker_cpus: float
    start_timeout_s: float
    push_timeout_s: float
    call_timeout_s: float
    trajectory_timeout_s: float
    reward_timeout_s: float
    step_timeout_s: float
    parity_tolerance: float
    parity_mean_tolerance: float


@dataclass(frozen=True)
class ServiceConfig:
    """An object the environment needs, hosted in Ray actors of its own, such as the search service; `cpus` of each replica."""

    target: str
    args: dict[str, Any] = field(default_factory=dict)
    cpus: float = 0.2
    replicas: int = 1


@dataclass(frozen=True)
class EnvConfig:
    """An environment, its services (passed to it by name), its queries and its reward.

    `queries` is called with split="train" or "heldout" and returns a list of Query.
    """

    name: str
    target: str
    queries: Target
    reward: RewardConfig
    args: dict[str, Any] = field(default_factory=dict)
    services: dict[str, ServiceConfig] = field(default_factory=dict)
    group_by: str | None = None  # field of a query's data whose values get metrics of their own
    preflight: Target | None = None  # called with no more arguments before anything starts; raises ConfigError


@dataclass(frozen=True)
class SftConfig:
    """Supervised fine-tuning on the responses of an environment's train queries (see rlcore/sft.py).

    Every `validate_every` steps (0: never) and after the last, the loss of `validation_samples` held-out responses is logged.
    Every `checkpoint_every` steps (0: never) there is a checkpoint; the newest `keep_checkpoints` stay.
    """

    steps: int
    batch_size: int
    row_tokens: int
    aggregation: str
    optimizer: OptimizerConfig
    validate_every: int
    validation_samples: int
    checkpoint_every: int
    keep_checkpoints: int


@dataclass(frozen=True)
class EvaluateConfig:
    """Held-out evaluation: how many queries, rollouts of each, and how they are sampled.

    `baseline_queries` is how many of them recipes.curriculum gives the untrained model, whose replies run to the limit.
    `expansions` are the forced numbers of expansions at which recipes.evaluate scores a report; empty: none.
    """

    queries: int
    baseline_queries: int
    temperature: float
    max_tokens: int
    samples: int = 1
    reports: int = 0  # whole reports that recipes.curriculum writes at the end
    report_temperature: float = 0.7
    expansions: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class WandbConfig:
    """Weights & Biases, through one writer in the driver. `mode`: online, offline or disabled."""

    mode: str
    project: str
    entity: str | None = None
    name: str | None = None


@dataclass(frozen=True)
class TeacherConfig:
    """Who plays the trajectories. `kind`: scripted (from the queries' oracle), engine (the configured model in the run's own
    engines) or openai (`model` behind the OpenAI-compatible API at `url`, such as http://host:8000/v1).

    `key_env` names the environment variable that holds the API's key, null for a server without keys. `attempts` is how many
    replies are asked for until one can be used, `timeout_s` the time of one request.
    """

    kind: str
    url: str | None
    model: str | None
    key_env: str | None
    temperature: float
    top_p: float
    attempts: int
    timeout_s: float


@dataclass(frozen=True)
class TrajectoriesConfig:
    """Reference trajectories of the teacher: how many samples of each action to keep, by split. -1 keeps all.

    `world` is the folder with corpus, index and research queries; `folder` gets the samples. With `prune` the teacher expands
    for as long as it can, `reward` (a report reward) scores every draft, and samples end at the best.
    """

    world: str
    folder: str
    train: dict[str, int]
    heldout: dict[str, int]
    concurrency: int
    teacher: TeacherConfig
    prune: bool
    reward: Target


@dataclass(frozen=True)
class Config:
    """One run. `run_dir` null makes `runs/<time>-<recipe>`. `replay` is a recorded trajectories.jsonl, for recipes.minimal."""

    recipe_name: str
    seed: int
    dry_run: bool
    run_dir: str | None
    resume: str | None
    replay: str | None
    model: ModelConfig
    cluster: ClusterConfig
    env: EnvConfig
    algo: AlgoConfig
    sft: SftConfig
    evaluate: EvaluateConfig
    trajectories: TrajectoriesConfig
    deepspeed: dict[str, Any]
    wandb: WandbConfig
    judge: JudgeConfig | None = None  # the one chosen by judge=, for a reward to name


def load_config(values: dict[str, Any]) -> Config:
    """Plain nested values (a resolved Hydra config) -> Config, checked. Raises ConfigError naming field and value."""
    config = convert(Config, values)
    check_config(config)
    return config


def check_config(c: Config) -> None:
    """Refuse what cannot work. Raises ConfigError with the field, its value and values that would work."""
    for name, value in [
        ("cluster.engines", c.cluster.engines), ("cluster.learner_ranks", c.cluster.learner_ranks),
        ("sft.steps", c.sft.steps), ("sft.batch_size", c.sft.batch_size), ("evaluate.queries", c.evaluate.queries),
        ("sft.validation_samples", c.sft.validation_samples), ("sft.keep_checkpoints", c.sft.keep_checkpoints),
        ("evaluate.samples", c.evaluate.samples), ("cluster.reward_workers", c.cluster.reward_workers),
        ("cluster.max_num_seqs", c.cluster.max_num_seqs),
        ("trajectories.concurrency", c.trajectories.concurrency),
        *((f"env.services.{name}.replicas", s.replicas) for name, s in c.env.services.items()),
        ("trajectories.teacher.attempts", c.trajectories.teacher.attempts),
    ]:  # fmt: skip
        if value < 1:
            raise ConfigError(f"{name}={value} must be at least 1")
    if any(k < 0 for k in c.evaluate.expansions):
        raise ConfigError(f"evaluate.expansions={c.evaluate.expansions} must be numbers of expansions, 0 or more")
    check_algo(c.algo)
    for name, share in [("algo.queries_per_step", c.algo.queries_per_step), ("sft.batch_size", c.sft.batch_size)]:
        ranks = c.cluster.learner_ranks
        if share % ranks:
            low, high = share // ranks * ranks, (share // ranks + 1) * ranks
            fits = " or ".join(str(v) for v in (low, high) if v)
            divisors = ", ".join(str(d) for d in range(1, share + 1) if share % d == 0)
            raise ConfigError(
                f"{name}={share} is not divisible by cluster.learner_ranks={ranks}; "
                f"{name}={fits} would work, or cluster.learner_ranks in {{{divisors}}}"
            )
    if c.sft.validate_every < 0:
        raise ConfigError(f"sft.validate_every={c.sft.validate_every} must be 0 (never) or a number of steps")
    check_aggregation("sft.aggregation", c.sft.aggregation)
    check_optimizer("sft", c.sft.optimizer)
    owned = sorted(DEEPSPEED_OWNED & c.deepspeed.keys())
    if owned:
        raise ConfigError(f"deepspeed.{owned[0]} is the framework's own, as are {sorted(DEEPSPEED_OWNED)}; see algo, sft, model")
    for part in ("offload_optimizer", "offload_param"):
        if (c.deepspeed.get("zero_optimization", {}).get(part) or {}).get("device") == "nvme":
            raise ConfigError(f"deepspeed.zero_optimization.{part}.device=nvme: checkpoints do not reach there; cpu works")
    k = c.cluster
    longest = 2 * k.trajectory_timeout_s + k.reward_timeout_s  # a rollout may be tried twice
    if k.step_timeout_s < longest:
        raise ConfigError(
            f"cluster.step_timeout_s={k.step_timeout_s:g} is shorter than a retried rollout and its reward may take "
            f"(2 x trajectory_timeout_s + reward_timeout_s = {longest:g})"
        )
    one_of("wandb.mode", c.wandb.mode, ("online", "offline", "disabled"))
    one_of("model.dtype", c.model.dtype, ("float32", "bfloat16"))
    _check_lora(c.model.lora)
    for limit, where in [(c.algo.max_tokens, "algo.max_tokens"), (c.evaluate.max_tokens, "evaluate.max_tokens")]:
        if limit >= c.model.max_model_len:
            raise ConfigError(f"{where}={limit} leaves no room for a prompt in model.max_model_len={c.model.max_model_len}")
    _check_trajectories(c.trajectories)
    check_judges(c.env.reward, k.reward_timeout_s, c.judge)


def _check_lora(lora: LoraConfig | None) -> None:
    if lora is None:
        return
    if lora.rank < 1:
        raise ConfigError(f"model.lora.rank={lora.rank} must be at least 1")
    if lora.alpha <= 0:
        raise ConfigError(f"model.lora.alpha={lora.alpha:g} must be above 0")
    if not lora.targets:
        raise ConfigError("model.lora.targets=[] must name linear layers of the decoder, such as q_proj")


def _check_trajectories(t: TrajectoriesConfig) -> None:
    for split, counts in [("train", t.train), ("heldout", t.heldout)]:
        if not counts:
            raise ConfigError(f"trajectories.{split} must say how many samples of each action to keep")
        for action, n in counts.items():
            if n < -1:
                raise ConfigError(f"trajectories.{split}.{action}={n} must be 0 or more, or -1 for all")
    teacher, name = t.teacher, "trajectories.teacher"
    one_of(f"{name}.kind", teacher.kind, ("scripted", "engine", "openai"))
    if teacher.kind == "openai":
        check_url(f"{name}.url", teacher.url)
        if not teacher.model:
            raise ConfigError(f"{name}.model={teacher.model!r} must be the name of a model that {teacher.url} serves")
    if teacher.temperature < 0:
        raise ConfigError(f"{name}.temperature={teacher.temperature} must be 0 or more")
    if not 0 < teacher.top_p <= 1:
        raise ConfigError(f"{name}.top_p={teacher.top_p} must be above 0 and at most 1")
    if teacher.timeout_s <= 0:
        raise ConfigError(f"{name}.timeout_s={teacher.timeout_s} must be above 0")


def check_files(c: Config) -> None:
    """Refuse a model folder or a recorded run that is not there, and whatever the environment's own preflight finds."""
    from rlcore.lora import check_targets
    from rlcore.model import linear_shapes
    from rlcore.targets import build, resolve

    if c.replay is not None and not Path(c.replay).is_file():
        raise ConfigError(f"replay={c.replay!r} is no file; it is the trajectories.jsonl in the folder of a run")
    hint = c.model.build_hint
    if c.model.local and not (Path(c.model.path) / "config.json").is_file():
        raise ConfigError(f"model.path={c.model.path!r} holds no model" + (f"; build it with `{hint}`" if hint else ""))
    if c.model.local and c.model.train_layers is not None:
        layers = json.loads((Path(c.model.path) / "config.json").read_text())["num_hidden_layers"]
        if not 1 <= c.model.train_layers <= layers:
            raise ConfigError(
                f"model.train_layers={c.model.train_layers} must be between 1 and {layers}, the model's layers, or null"
            )
    if c.model.local and c.model.lora is not None and (shapes := linear_shapes(c.model.path)):
        check_targets(c.model.lora, {name for name, _, _ in shapes})
    reference = c.algo.kl.reference
    if c.model.local and c.algo.kl.coef and reference is not None and not (Path(reference) / "config.json").is_file():
        raise ConfigError(f"algo.kl.reference={reference!r} holds no model")
    for spec in [c.env.target, c.env.queries.target, c.env.reward.target, *(s.target for s in c.env.services.values())]:
        resolve(spec)
    check_keys(c.env.reward)
    if c.env.preflight is not None:
        build(c.env.preflight)
