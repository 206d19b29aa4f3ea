"""Configuration of a reward and of the judges it asks (conf/judge/), and what is refused before anything starts."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from rlcore.endpoint import check_url
from rlcore.errors import ConfigError
from rlcore.targets import Target

RESTART_S = 120.0  # what a restart of the judge's actor may add to a question's time


@dataclass(frozen=True)
class JudgeEndpointConfig:
    """`model` behind an OpenAI-compatible API at `url`, which ends before /chat/completions.

    `key_env` names the environment variable that holds the key, null for a server without keys. `weight` is its share of the
    requests while every endpoint works. `structured` sends the JSON schema of a question. Prices are per million tokens.
    """

    url: str
    model: str
    key_env: str | None = None
    weight: float = 1.0
    structured: bool = True
    prompt_price: float = 0.0
    completion_price: float = 0.0


@dataclass(frozen=True)
class LocalJudgeConfig:
    """Engines of ours behind vLLM's own OpenAI server: `servers` of them, with these CPUs, GPUs and threads each.

    `args` are further arguments of the server's command line, such as [--quantization, fp8].
    """

    model: str
    dtype: str
    max_model_len: int
    servers: int = 1
    max_num_seqs: int = 64
    cpus: float = 0.5
    gpus: int = 0
    threads: int = 1
    kv_cache_gib: int = 1
    gpu_memory_utilization: float = 0.9
    args: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class JudgeLimitsConfig:
    """What all workers of the run together may ask of the judge; null: as much as they like."""

    concurrent: int = 16
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None


@dataclass(frozen=True)
class JudgeConfig:
    """A judge: its endpoints by name, engines of ours among them where `local` is given, and how it is asked.

    `timeout_s` is for one request, `attempts` the requests of one question. `budget_s` is the time from the first of these to the
    answer, waits included, and again the time a question may queue before that. After `breaker_failures` failures in a row an
    endpoint gets no request for `breaker_open_s` seconds, then one as a probe. `extra` is added to the body of every request;
    null takes a field out of it. `cache` is the folder of the answers, shared by every run that names it, null for none; at
    `cache_mib` the oldest answers go.
    """

    endpoints: dict[str, JudgeEndpointConfig] = field(default_factory=dict)
    local: LocalJudgeConfig | None = None
    limits: JudgeLimitsConfig = field(default_factory=JudgeLimitsConfig)
    temperature: float = 0.0
    max_tokens: int = 1024
    extra: dict[str, Any] = field(default_factory=dict)
    timeout_s: float = 120.0
    attempts: int = 6
    budget_s: float = 600.0
    breaker_failures: int = 5
    breaker_open_s: float = 30.0
    cache: str | None = None
    cache_mib: int = 1024
    cpus: float = 0.1

    @property
    def longest_s(self) -> float:
        """What a question may take in all: the queue, its requests, a restart of the actor."""
        return 2 * self.budget_s + RESTART_S


@dataclass
class RewardConfig(Target):
    """A reward and the judges it is given, by the names of its keyword arguments."""

    judges: dict[str, JudgeConfig | None] = field(default_factory=dict)


def chosen_judges(reward: RewardConfig) -> dict[str, JudgeConfig]:
    """The judges of a reward. Raises ConfigError where one is null, as with judge=none."""
    for name, judge in reward.judges.items():
        if judge is None:
            raise ConfigError(
                f"env.reward.judges.{name} is null, and {reward.target} needs it: choose judge=local or judge=openai"
            )
    return {name: judge for name, judge in reward.judges.items() if judge is not None}


def check_judges(reward: RewardConfig, reward_timeout_s: float, chosen: JudgeConfig | None = None) -> None:
    """Raises ConfigError naming field and value, also when the judge `chosen` by judge= is none of the reward's."""
    if chosen is not None and chosen not in reward.judges.values():
        raise ConfigError(
            f"judge= chooses a judge that env.reward.target={reward.target} does not ask: choose a judged reward of conf/reward/ "
            "(reward@env.reward=warp_atomic_judged), or give yours the judge by '+env.reward.judges.judge=${judge}'; rules alone "
            "need judge=none"
        )
    for key, j in chosen_judges(reward).items():
        name = f"env.reward.judges.{key}"
        if not j.endpoints and j.local is None:
            raise ConfigError(f"{name} has neither endpoints nor local")
        positive: list[tuple[str, float | None]] = [
            ("limits.concurrent", j.limits.concurrent), ("limits.requests_per_minute", j.limits.requests_per_minute),
            ("limits.tokens_per_minute", j.limits.tokens_per_minute), ("max_tokens", j.max_tokens), ("timeout_s", j.timeout_s),
            ("attempts", j.attempts), ("breaker_failures", j.breaker_failures), ("breaker_open_s", j.breaker_open_s),
            ("cache_mib", j.cache_mib), *((f"endpoints.{e}.weight", c.weight) for e, c in j.endpoints.items()),
            *([("local.servers", j.local.servers), ("local.max_num_seqs", j.local.max_num_seqs)] if j.local else []),
        ]  # fmt: skip
        for what, value in positive:
            if value is not None and value <= 0:
                raise ConfigError(f"{name}.{what}={value} must be above 0")
        if j.temperature < 0:
            raise ConfigError(f"{name}.temperature={j.temperature} must be 0 or more")
        for endpoint, e in j.endpoints.items():
            check_url(f"{name}.endpoints.{endpoint}.url", e.url)
            if e.prompt_price < 0 or e.completion_price < 0:
                raise ConfigError(f"{name}.endpoints.{endpoint}: prices must be 0 or more")
        if j.limits.tokens_per_minute is not None and j.limits.tokens_per_minute <= j.max_tokens:
            raise ConfigError(
                f"{name}.limits.tokens_per_minute={j.limits.tokens_per_minute} never allows a reply of max_tokens={j.max_tokens}"
            )
        if j.timeout_s >= j.budget_s:
            raise ConfigError(f"{name}: timeout_s={j.timeout_s:g} < budget_s={j.budget_s:g} must hold: a request may be repeated")
        if j.longest_s > reward_timeout_s:
            raise ConfigError(
                f"{name}.budget_s={j.budget_s:g}: a question may take {j.longest_s:g} s (2 * budget_s, and {RESTART_S:g} s for a "
                f"restart) and has to end before the reward that asked it: cluster.reward_timeout_s={reward_timeout_s:g}"
            )


def check_keys(reward: RewardConfig) -> None:
    """Raises ConfigError when the environment lacks the key of an endpoint."""
    for judge, config in chosen_judges(reward).items():
        for name, endpoint in config.endpoints.items():
            read_key(f"env.reward.judges.{judge}.endpoints.{name}", endpoint.key_env)


def read_key(name: str, key_env: str | None) -> str | None:
    """The key in the environment variable `key_env`, without blanks around it, of the endpoint configured at `name`; null: none.

    Raises ConfigError when the environment does not hold a key there.
    """
    if key_env is None:
        return None
    key = os.environ.get(key_env, "").strip()
    if not key:
        raise ConfigError(f"{name}.key_env={key_env}: no such environment variable; null for a server without keys")
    if not all("!" <= letter <= "~" for letter in key):
        raise ConfigError(f"{name}.key_env={key_env}: its value has blanks or other characters that no key has")
    return key
