"""The actors of a run, started together and stopped together: engines, learner ranks, reward pool, services.

with Runtime(config) as runtime:      # Ray up, placement checked
    await runtime.start_rollouts()    # engines + services + reward pool
    await runtime.start_learner(...)  # learner ranks, connected to the engines
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

from rlcore.algo_config import OptimizerConfig
from rlcore.cluster import start_ray, start_service
from rlcore.config import Config
from rlcore.errors import ConfigError, deadline
from rlcore.judge_actors import Judges
from rlcore.judge_config import chosen_judges
from rlcore.metrics import console
from rlcore.model import end_token_ids, load_tokenizer, weights_fingerprint
from rlcore.policy import ChatRenderer
from rlcore.rollout import Rollouts
from rlcore.sampling import Sampling
from rlcore.schedule import Schedule
from rlcore.targets import Target, build
from rlcore.types import Query

RULES_CONCURRENCY = 16  # trajectories that a reward worker scores at the same time
JUDGED_CONCURRENCY = 256  # the same where it mostly waits for a judge, which has limits of its own


class Runtime:
    """Owns every process of a run. Leaving the `with` block ends them, also after an error or Ctrl-C."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.version = -1
        self.engines: Any = None
        self.rewards: Any = None
        self.judges = Judges(chosen_judges(config.env.reward))
        self.learners: list[Any] = []
        self.sync: Any = None
        self.environment: Any = None
        self._services: dict[str, Any] = {}
        self.tokenizer = load_tokenizer(config.model.path, config.model.trust_remote_code)
        self.renderer = ChatRenderer(self.tokenizer, config.model.chat_template_kwargs)

    def __enter__(self) -> Runtime:
        signal.signal(signal.SIGTERM, _interrupt)
        start_ray(self.config)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        import ray

        if ray.is_initialized():
            asyncio.run(self._stop())
        ray.shutdown()

    async def _stop(self) -> None:
        """What has processes of its own to end before Ray ends the actors."""
        engines = [self.engines.stop(15.0)] if self.engines is not None else []
        await asyncio.gather(self.judges.stop(), *engines)

    async def start_rollouts(self) -> None:
        """Engines, the environment's services, the judges and the reward pool, all at once."""
        from rlcore.engine import EngineGroup, EngineOptions, start_engine_actors

        c, k = self.config, self.config.cluster
        self.start_environment()
        options = EngineOptions(
            model=c.model.path,
            dtype=c.model.dtype,
            max_model_len=c.model.max_model_len,
            max_num_seqs=k.max_num_seqs,
            seed=c.seed,
            stop_token_ids=end_token_ids(c.model.path, self.tokenizer),
            gpus=k.engine_gpus,
            threads=k.engine_threads,
            kv_cache_gib=k.kv_cache_gib,
            gpu_memory_utilization=k.gpu_memory_utilization,
            trust_remote_code=c.model.trust_remote_code,
        )
        self.engines = EngineGroup(start_engine_actors(options, k.engines, k.engine_cpus), k.call_timeout_s)
        await asyncio.gather(self.engines.start(k.start_timeout_s), self.start_rewards(), self.services_ready(k.start_timeout_s))

    async def start_rewards(self) -> None:
        """The judges, every endpoint checked, and then the reward workers, which are given them."""
        from rlcore.reward_pool import RewardPool

        k, reward = self.config.cluster, self.config.env.reward
        await self.judges.start(k.start_timeout_s)
        self.rewards = RewardPool(
            reward,
            workers=k.reward_workers,
            timeout_s=k.reward_timeout_s,
            worker_cpus=k.reward_worker_cpus,
            concurrency_per_worker=JUDGED_CONCURRENCY if reward.judges else RULES_CONCURRENCY,
            judges=self.judges.proxies,
            caches=self.judges.caches,
        )
        await self.rewards.start(k.start_timeout_s)

    async def services_ready(self, timeout_s: float) -> None:
        """Wait for the environment's services; a constructor that failed raises its own error here."""
        async with deadline("starting the environment's services", timeout_s, "cluster.start_timeout_s"):
            await asyncio.gather(*(proxy.ready() for proxy in self._services.values()))

    def start_environment(self) -> None:
        """The environment with its services; enough for a scripted policy that needs no engine."""
        if self.environment is None:
            timeout = self.config.cluster.call_timeout_s
            self._services = {
                name: start_service(name, s.target, s.args, s.cpus, timeout, s.replicas)
                for name, s in self.config.env.services.items()
            }
            self.environment = build(Target(self.config.env.target, self.config.env.args), **self._services)

    async def start_policy_learner(self, model: str) -> None:
        """Learner ranks for RL from `model`, with the reference that a KL term needs. Says what the reference is."""
        algo = self.config.algo
        reference = (algo.kl.reference or model) if algo.kl.coef else None
        await self.start_learner(model, algo.optimizer, algo.steps, algo.temperature, reference)
        if reference is not None:
            same = " (the start of this training)" if reference == model else ""
            held = "under the adapter" if same and self.config.model.lora else "a frozen copy on every rank"
            known = weights_fingerprint(reference) or "unknown: not a local folder"
            console.print(
                f"reference: {reference}{same}, {held}; {algo.kl.estimator} in the {algo.kl.where}; fingerprint {known}"
            )
        elif algo.kl.reference is not None:
            console.print(f"algo.kl.reference={algo.kl.reference} is not used: algo.kl.coef is 0", style="yellow", markup=False)
        if algo.kl.in_loss and algo.kl.estimator == "k1":
            console.print("algo.kl.estimator=k1 in the loss restrains nothing: its gradient is zero on average", style="yellow")

    async def start_learner(
        self, model: str, optimizer: OptimizerConfig, steps: int, temperature: float, reference: str | None = None
    ) -> None:
        """Learner ranks with fresh optimizer state for `model`; earlier ranks are ended. See `connect`."""
        import ray

        from rlcore.learner import LearnerOptions, start_learner_actors

        for actor in self.learners:
            ray.kill(actor)
        c, k = self.config, self.config.cluster
        options = LearnerOptions(
            model=model,
            dtype=c.model.dtype,
            deepspeed=c.deepspeed,
            lr=optimizer.lr,
            weight_decay=optimizer.weight_decay,
            betas=(optimizer.beta1, optimizer.beta2),
            grad_clip=optimizer.grad_clip,
            schedule=Schedule(optimizer.schedule, optimizer.warmup_steps, steps, optimizer.floor),
            temperature=temperature,
            ranks=k.learner_ranks,
            seed=c.seed,
            gpus=k.learner_gpus,
            threads=k.learner_threads,
            trust_remote_code=c.model.trust_remote_code,
            train_layers=c.model.train_layers,
            lora=c.model.lora,
            gradient_checkpointing=c.model.gradient_checkpointing,
            reference=reference,
        )
        self.learners = start_learner_actors(options, k.learner_cpus)
        async with deadline("starting the learner", k.start_timeout_s, "cluster.start_timeout_s"):
            host, port = await self.learners[0].address.remote()
            started = await asyncio.gather(*(a.start.remote(host, port) for a in self.learners))
        console.print(
            f"learner: {k.learner_ranks} rank(s), {started[0]['trained']:,} of {started[0]['parameters']:,} parameters trained, "
            f"ready in {started[0]['start_s']:.0f} s"
        )

    async def connect(self, probe_queries: list[Query]) -> None:
        """Open the weight transfer between learner and engines, probed with the prompts of held-out queries."""
        from rlcore.weights import WeightSync

        k = self.config.cluster
        prompts = await self._probe_prompts(probe_queries)
        self.sync = WeightSync(
            self.learners,
            self.engines.actors,
            max(1, k.engine_gpus),
            prompts,
            k.parity_tolerance,
            k.parity_mean_tolerance,
            k.push_timeout_s,
        )
        await self.sync.connect()

    async def push(self, folder: Path | None = None) -> dict[str, float]:
        """Put the learner's weights into service as the next version; from their export in `folder` instead of over the wire."""
        result = await self.sync.push(self.version + 1, folder)
        self.version += 1
        return result

    async def serve_loaded(self) -> None:
        """Put the weights that the engines loaded from disk into service: evaluation and report writing have no learner."""
        k = self.config.cluster
        async with deadline("putting the loaded weights into service", k.call_timeout_s, "cluster.call_timeout_s"):
            await asyncio.gather(*(engine.serve_loaded.remote() for engine in self.engines.actors))
        self.version = 0

    def rollouts(self, temperature: float, max_tokens: int, seed: int) -> Rollouts:
        """The pieces that roll out and score queries under the given sampling."""
        k = self.config.cluster
        return Rollouts(
            environment=self.environment,
            engine=self.engines,
            renderer=self.renderer,
            score=self.rewards.score,
            sampling=Sampling(temperature=temperature, max_tokens=max_tokens, seed=seed),
            max_model_len=self.config.model.max_model_len,
            trajectory_timeout_s=k.trajectory_timeout_s,
            call_timeout_s=k.call_timeout_s,
        )

    async def _probe_prompts(self, queries: list[Query], count: int = 2, length: int = 96) -> list[list[int]]:
        """Prompts the environment itself makes of held-out queries, cut to `length` tokens: what is probed is what is sampled.

        Raises ConfigError when there is no held-out query, or the environment asks nothing of the policy.
        """
        prompts = []
        for query in queries[:count]:
            recorder = _FirstPrompt(self.renderer)
            async with deadline("the environment's first prompt", self.config.cluster.call_timeout_s, "cluster.call_timeout_s"):
                with contextlib.suppress(_Recorded):
                    await self.environment.run(query, recorder)
            if recorder.ids:
                prompts.append(recorder.ids[:length])
        if not prompts:
            raise ConfigError(
                f"env={self.config.env.name}: the parity probe needs a held-out query whose environment asks the policy"
            )
        return prompts


class _Recorded(BaseException):
    """Ends an environment's run as soon as its first prompt is known, also through a broad `except Exception`."""


class _FirstPrompt:
    """A policy that only remembers the first prompt it is asked."""

    def __init__(self, renderer: ChatRenderer) -> None:
        self._renderer = renderer
        self.ids: list[int] = []

    async def generate(self, messages: list[Any], **_: Any) -> Any:
        self.ids = self._renderer.prompt(messages)
        raise _Recorded

    def conversation(self, messages: list[Any]) -> Any:
        self.ids = self._renderer.prompt(messages)
        raise _Recorded


def _interrupt(signum: int, frame: Any) -> None:
    raise KeyboardInterrupt


def config_as_dict(config: Config) -> dict[str, Any]:
    """The resolved configuration as plain data."""
    return asdict(config)
