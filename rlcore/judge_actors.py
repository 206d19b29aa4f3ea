"""The judges of a run as Ray actors: one pool for each named judge, and the vLLM servers of those that are local.

reward worker --proxy--> JudgePool (one actor) --HTTP--> vLLM servers of ours (an actor and a process each), any other URL
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from rlcore.cluster import ServiceProxy, start_service
from rlcore.errors import ConfigError, InfrastructureFailure, RunFailed
from rlcore.judge_config import JudgeConfig, JudgeEndpointConfig, read_key
from rlcore.model import weights_fingerprint

T = TypeVar("T")

RESTARTS = 3  # of a judge's actor; its counts start anew, its answers are on disk
FIGURES_S = 5.0
WATCH_S = 2.0
STOP_S = 20.0


def make_pool(minute_s: float = 60.0, **args: Any) -> Any:
    """A JudgePool in its actor. One that takes over from an actor that died waits a minute: the limits hold through that."""
    import ray

    from rlcore.judge_pool import JudgePool

    restarted = ray.get_runtime_context().was_current_actor_reconstructed
    not_before = asyncio.get_running_loop().time() + minute_s if restarted else 0.0
    return JudgePool(minute_s=minute_s, not_before=not_before, **args)


def with_absolute_cache(config: JudgeConfig) -> JudgeConfig:
    """Actors have a working directory of their own; the cache is meant relative to the driver's."""
    return config if config.cache is None else replace(config, cache=str(Path(config.cache).absolute()))


class Judges:
    """The judges a reward is given, by name. `start` before the reward workers, `stop` before Ray goes down."""

    def __init__(self, configs: dict[str, JudgeConfig], options: dict[str, Any] | None = None) -> None:
        """`options` go to every JudgePool; for tests."""
        self._configs, self._options = configs, options or {}
        self._servers: list[ServiceProxy] = []
        self.proxies: dict[str, ServiceProxy] = {}

    @property
    def caches(self) -> list[str]:
        """The folders of their answers."""
        return sorted({folder for c in self._configs.values() if (folder := with_absolute_cache(c).cache) is not None})

    async def start(self, timeout_s: float) -> None:
        """Start servers and pools and check every endpoint. Raises ConfigError naming judge, endpoint and reason."""
        started = await asyncio.gather(*(self._start(name, c, timeout_s) for name, c in self._configs.items()))
        self.proxies = dict(zip(self._configs, started, strict=True))

    async def _start(self, name: str, config: JudgeConfig, timeout_s: float) -> ServiceProxy:
        keys = {e: read_key(f"env.reward.judges.{name}.endpoints.{e}", c.key_env) for e, c in config.endpoints.items()}
        endpoints = dict(config.endpoints)
        try:
            for i, (url, key) in enumerate(await self._start_servers(name, config, timeout_s)):
                assert config.local is not None
                endpoints[f"local-{i}"] = JudgeEndpointConfig(url, config.local.model)
                keys[f"local-{i}"] = key
            weights = weights_fingerprint(config.local.model) if config.local else ""
            args = {"config": with_absolute_cache(config), "endpoints": endpoints, "keys": keys, "weights": weights}
            proxy = start_service(
                f"judge {name}",
                "rlcore.judge_actors.make_pool",
                args | self._options,
                config.cpus,
                config.longest_s,
                restarts=RESTARTS,
            )
            await proxy.check()
        except (ConfigError, InfrastructureFailure) as error:  # the latter: a server or an actor ended, or took too long
            raise ConfigError(f"env.reward.judges.{name}: {error}") from error
        return proxy

    async def _start_servers(self, name: str, config: JudgeConfig, timeout_s: float) -> list[tuple[str, str]]:
        """URL and key of each server of ours."""
        local = config.local
        if local is None:
            return []
        servers = [
            start_service(
                f"{name}'s server",
                "rlcore.judge_server.JudgeServer",
                {"config": local},
                local.cpus,
                timeout_s + 2 * STOP_S,
                gpus=local.gpus,
            )  # fmt: skip
            for _ in range(local.servers)
        ]
        self._servers += servers
        return list(await asyncio.gather(*(server.start(timeout_s) for server in servers)))

    async def watch(self) -> NoReturn:
        """Runs beside the training. Raises RunFailed with its last words when a server of ours has ended."""
        while True:
            try:
                await asyncio.gather(*(server.check() for server in self._servers))
            except InfrastructureFailure as error:
                raise RunFailed(f"a judge is lost: {error}") from error
            await asyncio.sleep(WATCH_S)

    async def beside(self, work: Coroutine[Any, Any, T]) -> T:
        """The work's result, or `watch`'s error as soon as there is one: without a judge it would only wait for its deadlines."""
        task, watching = asyncio.create_task(work), asyncio.create_task(self.watch())
        try:
            await asyncio.wait({task, watching}, return_when=asyncio.FIRST_COMPLETED)
            return await (task if task.done() else watching)  # the watch ends by its error only
        finally:
            task.cancel()
            watching.cancel()
            await asyncio.gather(task, watching, return_exceptions=True)

    async def figures(self) -> dict[str, float]:
        """What every judge counted, as judge/<name>/...; nothing of one that does not answer at once."""

        async def one(name: str, proxy: ServiceProxy) -> dict[str, float]:
            try:
                async with asyncio.timeout(FIGURES_S):
                    return {f"judge/{name}/{k}": v for k, v in (await proxy.stats()).items()}
            except (TimeoutError, InfrastructureFailure):
                return {}

        parts = await asyncio.gather(*(one(name, proxy) for name, proxy in self.proxies.items()))
        return {k: v for part in parts for k, v in part.items()}

    async def stop(self) -> None:
        """End the servers' processes."""
        try:
            async with asyncio.timeout(STOP_S):
                await asyncio.gather(*(server.stop() for server in self._servers), return_exceptions=True)
        except TimeoutError:
            pass  # their parents end with Ray, and they with their parents
