"""Ray and placement: what a run needs, what there is, and who computes when.

Everything is counted before an actor is created. Ray itself would wait for ever for a CPU that will never exist.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import resource
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlcore.config import Config
from rlcore.errors import ConfigError, InfrastructureFailure
from rlcore.judge_config import chosen_judges
from rlcore.metrics import console


@dataclass(frozen=True)
class Need:
    """Resources of one kind of actor: Ray's logical CPUs and GPUs for each of `count` actors, and threads it really uses."""

    what: str
    count: int
    cpus: float
    gpus: int
    threads: int


def needs(c: Config) -> list[Need]:
    """Every actor a run of all stages starts."""
    k, judges = c.cluster, chosen_judges(c.env.reward)
    return [
        Need("rollout engine (vLLM)", k.engines, k.engine_cpus, k.engine_gpus, k.engine_threads),
        Need("learner rank (DeepSpeed)", k.learner_ranks, k.learner_cpus, k.learner_gpus, k.learner_threads),
        Need("reward worker", k.reward_workers, k.reward_worker_cpus, 0, 1),
        *(Need(f"service {name}", s.replicas, s.cpus, 0, 1) for name, s in c.env.services.items()),
        *(Need(f"judge {name}", 1, j.cpus, 0, 1) for name, j in judges.items()),
        *(Need(f"{name}'s server (vLLM)", s.servers, s.cpus, s.gpus, s.threads) for name, j in judges.items() if (s := j.local)),
    ]


def check_placement(c: Config, have_cpus: float, have_gpus: float) -> None:
    """Raises ConfigError with a table of need and have when the actors do not all fit."""
    rows = needs(c)
    cpus, gpus = sum(n.count * n.cpus for n in rows), sum(n.count * n.gpus for n in rows)
    if cpus <= have_cpus + 1e-6 and gpus <= have_gpus:
        return
    table = "\n".join(f"  {n.what:26} {n.count} x ({n.cpus:g} CPU, {n.gpus} GPU)" for n in rows)
    short = [
        f"{name}: need {need:g}, have {have:g}"
        for name, need, have in [("CPUs", cpus, have_cpus), ("GPUs", gpus, have_gpus)]
        if need > have
    ]
    raise ConfigError(
        f"the cluster is too small: {'; '.join(short)}.\n{table}\n"
        "lower cluster.engines, cluster.engine_cpus, cluster.learner_ranks or cluster.learner_cpus, or add nodes"
    )


def local_resources() -> tuple[float, float]:
    """CPUs and GPUs of this machine."""
    gpus = len(list(Path("/proc/driver/nvidia/gpus").glob("*"))) if Path("/proc/driver/nvidia/gpus").is_dir() else 0
    return float(os.cpu_count() or 1), float(gpus)


def print_plan(c: Config) -> None:
    """The placement plan: every actor's CPUs, GPUs and threads, and whether engine and learner take turns."""
    for n in needs(c):
        console.print(f"  {n.what:26} {n.count} x {n.cpus:g} CPU, {n.gpus} GPU, {n.threads} threads")
    turns = (
        "take turns (max_staleness=0)"
        if c.algo.max_staleness == 0
        else f"compute at the same time (max_staleness={c.algo.max_staleness})"
    )
    console.print(f"  engine and learner {turns}")
    for line in memory_estimate(c):
        console.print(f"  {line}")
    if c.model.dtype == "bfloat16" and c.deepspeed.get("zero_optimization", {}).get("stage", 0) == 0:
        console.print(
            "  [bold]a learner in bfloat16 without ZeRO sums its gradients in bfloat16, and DeepSpeed starts it with[/bold]"
        )
        console.print("  [bold]an optimizer step on zero gradients: use deepspeed=zero2 or zero3[/bold]")


def memory_estimate(c: Config) -> list[str]:
    """Rough bytes per actor, from the size of the local checkpoint.

    A learner also holds gradients and AdamW's two moments of what is trained: all of the model, or an adapter.
    """
    from rlcore.lora import adapter_parameters
    from rlcore.model import parameter_bytes

    size = parameter_bytes(c.model.path)
    if size is None:
        return [f"memory: unknown until {c.model.path} has been downloaded"]
    stage = c.deepspeed.get("zero_optimization", {}).get("stage", 0)
    ranks = c.cluster.learner_ranks
    parameters = size / (4 if c.model.dtype == "float32" else 2)
    weights = parameters * (4 if c.model.dtype == "float32" else 2)
    lora = c.model.lora
    trained = parameters if lora is None else adapter_parameters(c.model.path, lora)
    moments, gradients = trained * 8 / (ranks if stage >= 1 else 1), trained * 4 / (ranks if stage >= 2 else 1)
    master = trained * 4 / (ranks if stage >= 1 else 1) if c.model.dtype == "bfloat16" else 0.0
    copied = c.algo.kl.coef and (lora is None or c.algo.kl.reference is not None)
    reference = weights if copied else 0.0  # a whole copy on every rank; the model under an adapter needs none
    learner = weights / (ranks if stage >= 3 else 1) + gradients + moments + master + reference
    gib = 2.0**30
    return [
        f"memory: engine {weights / gib:.2f} GiB + KV cache {c.cluster.kv_cache_gib} GiB; "
        f"learner rank {learner / gib:.2f} GiB + activations, and {1.5 * moments / gib:.2f} GiB while a checkpoint is written"
    ]


def start_ray(c: Config) -> None:
    """Start Ray here, or join the configured cluster. Raises ConfigError when the run does not fit."""
    import ray

    _raise_open_files()
    if c.cluster.address is None:
        cpus, gpus = local_resources()
        check_placement(c, cpus, gpus)
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        ray.init(
            num_cpus=int(cpus), include_dashboard=False, logging_level="ERROR", log_to_driver=False, _node_ip_address=_loopback()
        )
    else:
        ray.init(address=c.cluster.address, logging_level="ERROR", log_to_driver=False)
        total = ray.cluster_resources()
        try:
            check_placement(c, total.get("CPU", 0.0), total.get("GPU", 0.0))
        except ConfigError:
            ray.shutdown()
            raise


def _loopback() -> str | None:
    """Loopback where this host's name does not resolve to one of its own addresses (laptops, containers); else Ray's choice."""
    try:
        socket.create_server((socket.gethostbyname(socket.gethostname()), 0)).close()
    except OSError:
        return "127.0.0.1"
    return None


def _raise_open_files() -> None:
    """Engines, workers and sockets use thousands of descriptors; the soft limit is often 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def free_port(host: str = "") -> int:
    """A free port outside the range that systems give to outgoing connections: it is bound seconds later, and free until then."""
    for port in random.SystemRandom().sample(range(20_000, 32_000), 100):
        with socket.socket() as s, contextlib.suppress(OSError):
            s.bind((host, port))
            return port
    raise RuntimeError("no free port between 20000 and 32000")


def cpu_environment(threads: int) -> dict[str, str]:
    """Environment of a process that computes on the CPU: its threads, and an allocator that keeps its pages.

    glibc otherwise returns every large buffer to the kernel and page-faults it back: an elementwise operation on 6 MB took 8 ms
    instead of 1 ms on the development machine. And OpenMP's threads otherwise spin for milliseconds before they sleep, at the
    cost of the processes beside them: bounded, vLLM decodes 10 % faster on a quiet machine and much faster on a busy one.
    """
    return {
        "OMP_NUM_THREADS": str(threads),
        "GOMP_SPINCOUNT": "20000",
        "MALLOC_MMAP_THRESHOLD_": "8589934592",
        "MALLOC_TRIM_THRESHOLD_": "17179869184",
    }


class Service:
    """Runs in a Ray actor and hosts one object (such as a search service), built at the first call."""

    def __init__(self, target: str, args: dict[str, Any]) -> None:
        self._target, self._args = target, args
        self._object: Any = None

    async def started(self) -> None:
        """Build the object unless that has been done. Raises what its constructor raises."""
        from rlcore.targets import Target, build

        if self._object is None:  # no await between the check and the assignment: built once
            self._object = build(Target(self._target, self._args))

    async def call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        await self.started()
        return await getattr(self._object, method)(*args, **kwargs)


class ServiceProxy:
    """Looks like the hosted object to an environment: `await proxy.search(...)`.

    A call goes to the living replica with the fewest calls in flight. A replica that has died is taken out of service and the
    call is sent to another one, so a method must be safe to repeat. A call that no replica answers, or not within `timeout_s`,
    is an InfrastructureFailure. A proxy may be sent to another process, where it counts its own calls.
    """

    def __init__(self, name: str, replicas: Sequence[Any], timeout_s: float) -> None:
        self._name, self._timeout_s = name, timeout_s
        self._in_flight = dict.fromkeys(replicas, 0)  # living replicas and their unanswered calls

    def __reduce__(self) -> Any:
        return ServiceProxy, (self._name, list(self._in_flight), self._timeout_s)

    async def ready(self) -> None:
        """Wait until every replica has built its object. Raises what a constructor raised."""
        import ray

        try:
            await asyncio.gather(*(replica.started.remote() for replica in self._in_flight))
        except ray.exceptions.RayTaskError as error:
            raise (error.cause if isinstance(error.cause, Exception) else error) from None

    def __getattr__(self, method: str) -> Any:
        import ray

        async def call(*args: Any, **kwargs: Any) -> Any:
            try:
                async with asyncio.timeout(self._timeout_s):
                    return await self._call(method, args, kwargs)
            except TimeoutError as error:
                raise InfrastructureFailure(f"service {self._name}.{method}: no answer within {self._timeout_s:g} s") from error
            except ray.exceptions.RayTaskError as error:
                raise (error.cause if isinstance(error.cause, Exception) else error) from None

        return call

    async def _call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One call, tried on each living replica at most once."""
        import ray

        tried: set[Any] = set()
        error: Exception | None = None
        while candidates := [replica for replica in self._in_flight if replica not in tried]:
            replica = min(candidates, key=self._in_flight.__getitem__)
            tried.add(replica)
            try:
                return await self._send(replica, method, args, kwargs)
            except ray.exceptions.ActorDiedError as died:
                self._in_flight.pop(replica, None)
                error = died
            except ray.exceptions.RayActorError as unavailable:  # it may come back
                error = unavailable
        reason = f"no replica answers: {type(error).__name__}: {error}" if error else "no replica lives"
        raise InfrastructureFailure(f"service {self._name}.{method}: {reason}") from error

    async def _send(self, replica: Any, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call counts until its replica has answered, also when the caller has given up: a hung replica gets no more."""

        def ended(task: asyncio.Future[Any]) -> None:
            if replica in self._in_flight:
                self._in_flight[replica] -= 1
            if not task.cancelled():
                task.exception()  # marks it as seen

        task = asyncio.ensure_future(replica.call.remote(method, args, kwargs))
        self._in_flight[replica] += 1
        task.add_done_callback(ended)
        return await asyncio.shield(task)


def start_service(
    name: str,
    target: str,
    args: dict[str, Any],
    cpus: float,
    timeout_s: float,
    replicas: int = 1,
    gpus: int = 0,
    restarts: int = 0,
) -> ServiceProxy:
    """Host an object in `replicas` actors of its own and return the proxy an environment is given.

    A replica that dies is built anew up to `restarts` times; Ray sends it the calls it had not answered.
    """
    import ray

    retries = -1 if restarts else 0  # of a call: for as long as there is a replica to come
    options = {"num_cpus": cpus, "num_gpus": gpus, "max_restarts": restarts, "max_task_retries": retries}
    actor = ray.remote(max_concurrency=4096, **options)(Service)
    env = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    actor = actor.options(runtime_env={"env_vars": env})
    return ServiceProxy(name, [actor.remote(target, args) for _ in range(replicas)], timeout_s)
