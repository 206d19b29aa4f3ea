"""The rollout engine: one vLLM `AsyncLLM` in a Ray actor, token ids in, token ids and log-probabilities out.

    policy client --(prompt ids, sampling)--> Engine.generate --> ids, log-probs, policy version of every token
    learner rank 0 --(broadcast)------------> Engine.receive_weights   (rlcore/weights.py drives it)

Every sampled token is stamped with the version of the weights that produced it, so a rollout that lives through a weight
push says so itself. Log-probabilities are those of the distribution that was sampled from (`processed_logprobs`).
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import time
from typing import Any

import ray

from rlcore.cluster import cpu_environment
from rlcore.errors import InfrastructureFailure, deadline
from rlcore.sampling import Generation, Sampling


@dataclasses.dataclass(frozen=True)
class EngineOptions:
    """What one engine needs to start. `gpus` 0 means vLLM's CPU backend; `kv_cache_gib` is used there only."""

    model: str
    dtype: str
    max_model_len: int
    max_num_seqs: int
    seed: int
    stop_token_ids: tuple[int, ...]
    gpus: int = 0
    threads: int = 1
    kv_cache_gib: int = 1
    gpu_memory_utilization: float = 0.85
    trust_remote_code: bool = False
    worker_extension: str = "rlcore.weight_receiver.WeightReceiverExtension"


# Unbound threads: the learner needs the cores between rollouts. The worker lives in the engine core's process: one start less.
CPU_ENVIRONMENT = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}


class Engine:
    """One vLLM engine. Run it with `ray.remote(Engine)`; every method is a coroutine of the actor's event loop."""

    def __init__(self, options: EngineOptions) -> None:
        self.options = options
        self.version = -1  # nothing may be sampled before the first push (see `generate`)
        self._llm: Any = None
        self._requests = 0

    async def start(self) -> dict[str, float]:
        """Load vLLM and the model. Returns the seconds both took."""
        began = time.monotonic()
        if self.options.gpus == 0:
            os.environ["VLLM_CPU_KVCACHE_SPACE"] = str(self.options.kv_cache_gib)
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        imported = time.monotonic()
        on_cpu = self.options.gpus == 0
        args = AsyncEngineArgs(
            model=self.options.model,
            dtype=self.options.dtype,
            max_model_len=self.options.max_model_len,
            max_num_seqs=self.options.max_num_seqs,
            seed=self.options.seed,
            trust_remote_code=self.options.trust_remote_code,
            tensor_parallel_size=max(1, self.options.gpus),
            distributed_executor_backend="mp" if self.options.gpus > 1 else "uni",
            gpu_memory_utilization=0.3 if on_cpu else self.options.gpu_memory_utilization,
            enforce_eager=on_cpu,  # compiling takes longer than a CPU run; on a GPU CUDA graphs pay
            enable_prefix_caching=True,
            # A seeded request whose prefill is cut into chunks kills vLLM 0.32's CPU worker: its generator has no offset.
            enable_chunked_prefill=not on_cpu,
            max_num_batched_tokens=max(4096, self.options.max_model_len) if on_cpu else None,
            block_size=32 if on_cpu else None,  # the CPU default of 128 would share almost no short prompt
            skip_tokenizer_init=True,
            generation_config="vllm",  # the model folder's sampling defaults must not leak into training
            logprobs_mode="processed_logprobs",
            worker_extension_cls=self.options.worker_extension,
            weight_transfer_config={"backend": "rlcore"},
            disable_log_stats=True,
        )
        self._llm = AsyncLLM.from_engine_args(args)
        return {"import_s": imported - began, "start_s": time.monotonic() - imported}

    async def serve_loaded(self) -> None:
        """Take the weights loaded from disk for the policy, as version 0: for runs that have no learner to push others."""
        self.version = 0

    async def generate(self, prompt_ids: list[int], sampling: Sampling) -> Generation:
        """One completion. Raises RuntimeError before the first weight push: what was loaded from disk is not the policy."""
        if self.version < 0:
            raise RuntimeError("the engine holds no pushed weights yet; push before the first sample")
        result = await self._generate(prompt_ids, sampling, prompt_logprobs=None)
        if result.finish_reason == "abort":
            raise RuntimeError("vLLM aborted the request")
        return result

    async def _generate(self, prompt_ids: list[int], sampling: Sampling, prompt_logprobs: int | None) -> Generation:
        from vllm import SamplingParams, TokensPrompt
        from vllm.sampling_params import RequestOutputKind

        params = SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            max_tokens=sampling.max_tokens,
            seed=sampling.seed,
            stop_token_ids=list(self.options.stop_token_ids),
            logprobs=0,
            prompt_logprobs=prompt_logprobs,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        self._requests += 1
        result = Generation([], [], [], "abort")
        async for out in self._llm.generate(TokensPrompt(prompt_token_ids=prompt_ids), params, request_id=f"r{self._requests}"):
            if out.prompt_logprobs and not result.prompt_logprobs:
                result.prompt_logprobs = [
                    next_[token].logprob for token, next_ in zip(prompt_ids[1:], out.prompt_logprobs[1:], strict=True)
                ]
            delta = out.outputs[0]
            result.token_ids += delta.token_ids
            result.logprobs += [step[token].logprob for token, step in zip(delta.token_ids, delta.logprobs or [], strict=True)]
            result.versions += [self.version] * len(delta.token_ids)
            if delta.finish_reason is not None:
                result.finish_reason = delta.finish_reason
        return result

    async def probe(self, prompts: list[list[int]], max_tokens: int) -> list[Generation]:
        """Greedy continuations with the log-probability of every prompt and sampled token, for the parity probe."""
        sampling = Sampling(temperature=0.0, max_tokens=max_tokens)
        return list(await asyncio.gather(*(self._generate(p, sampling, prompt_logprobs=0) for p in prompts)))

    async def join_transfer(self, init_info: dict[str, Any]) -> None:
        """Join the learner's broadcast group (blocks until every member has joined or its timeout passes)."""
        from vllm.distributed.weight_transfer.base import WeightTransferInitRequest

        await self._llm.init_weight_transfer_engine(WeightTransferInitRequest(init_info=init_info))

    async def pause(self) -> None:
        """Freeze requests in flight and drop the prefix cache, which holds activations of the old weights."""
        await self._llm.pause_generation(mode="keep", clear_cache=True)

    async def receive_weights(self, update_info: dict[str, Any], version: int) -> None:
        """Receive one full set of weights from the broadcast group; the engine must be paused."""
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        await self._llm.start_weight_update()
        await self._llm.update_weights(WeightTransferUpdateRequest(update_info=update_info))
        await self._llm.finish_weight_update(weight_version=str(version))
        self.version = version

    async def resume(self) -> None:
        await self._llm.resume_generation()

    async def held_version(self) -> int:
        """The version vLLM itself says it holds, -1 before the first push."""
        text = await self._llm.get_weight_version()
        return int(text) if text.lstrip("-").isdigit() and self.version >= 0 else -1

    async def collective(self, method: str, *args: Any) -> list[Any]:
        """Call a method of the worker extension in every worker process of this engine."""
        return await self._llm.collective_rpc(method, args=args)

    async def stop(self) -> None:
        if self._llm is not None:
            self._llm.shutdown()


class EngineGroup:
    """All engines behind one EngineClient: each request goes to the living engine with the fewest in flight.

    A call that outlives `call_timeout_s` raises TimeoutError; a dead engine raises InfrastructureFailure.
    """

    def __init__(self, actors: list[Any], call_timeout_s: float) -> None:
        self.actors, self._call_timeout_s = actors, call_timeout_s
        self._in_flight = [0] * len(actors)
        self._dead: set[int] = set()

    async def start(self, timeout_s: float) -> list[dict[str, float]]:
        """Start every engine at once. Raises RunFailed after `timeout_s`."""
        async with deadline("starting the engines", timeout_s, "cluster.start_timeout_s"):
            return list(await asyncio.gather(*(a.start.remote() for a in self.actors)))

    async def generate(self, prompt_ids: list[int], sampling: Sampling) -> Generation:
        living = [i for i in range(len(self.actors)) if i not in self._dead]
        if not living:
            raise InfrastructureFailure("every engine is dead")
        index = min(living, key=lambda i: self._in_flight[i])
        self._in_flight[index] += 1
        call = self.actors[index].generate.remote(prompt_ids, sampling)
        try:
            async with asyncio.timeout(self._call_timeout_s):
                return await call
        except (asyncio.CancelledError, TimeoutError):
            ray.cancel(call)  # otherwise vLLM goes on decoding for nobody
            raise
        except ray.exceptions.RayActorError as error:
            self._dead.add(index)
            raise InfrastructureFailure(f"engine {index} died: {str(error).strip().splitlines()[0]}") from error
        except ray.exceptions.RayTaskError as error:  # a dead vLLM inside a living actor, among others
            raise InfrastructureFailure(f"engine {index}: {str(error).strip().splitlines()[-1]}") from error
        finally:
            self._in_flight[index] -= 1

    async def stop(self, timeout_s: float) -> None:
        """Ask every engine to end its own processes, then end the actors."""
        stops = [a.stop.remote() for a in self.actors]
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(*stops, return_exceptions=True)
        except TimeoutError:
            pass
        for actor in self.actors:
            ray.kill(actor)


def start_engine_actors(options: EngineOptions, count: int, cpus: float) -> list[Any]:
    """Create the Ray actors of `count` engines; `EngineGroup.start` loads them."""
    env = cpu_environment(options.threads) | CPU_ENVIRONMENT if options.gpus == 0 else {}
    make = ray.remote(num_cpus=cpus, num_gpus=options.gpus, max_concurrency=4096, max_restarts=0)(Engine)
    return [make.options(runtime_env={"env_vars": env}).remote(options) for _ in range(count)]
