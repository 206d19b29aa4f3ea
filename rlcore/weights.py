"""Moving weights from the learner to the engines, and proving that they arrived.

    push:  pause(keep) -> learner broadcasts, engines receive -> resume -> parity probe -> next version is in service

A push is one collective: learner rank 0 is rank 0 of a broadcast group, every vLLM worker has a rank of its own. Nothing
passes through Ray's object store. After each push the engines score a few held-out prompts and so does the learner; a
difference above the tolerance raises ParityError and the engines stay paused.
"""

from __future__ import annotations

import asyncio
import datetime
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from rlcore.errors import ParityError, deadline
from rlcore.metrics import mean

BUCKET_BYTES = 256 * 1024 * 1024


class BroadcastGroup:
    """A process group of its own for weights, apart from the learner's training group and vLLM's. Rank 0 sends.

    Raises RuntimeError naming host, port and the missing ranks' count when not everyone has joined within `timeout_s`.
    """

    def __init__(self, host: str, port: int, rank: int, world_size: int, device: torch.device, timeout_s: float) -> None:
        self.rank, self.device = rank, device
        timeout = datetime.timedelta(seconds=timeout_s)
        try:
            store = dist.TCPStore(host, port, world_size, is_master=rank == 0, timeout=timeout)
        except (RuntimeError, dist.DistError) as error:
            raise RuntimeError(
                f"weight group: rank {rank} of {world_size} could not meet the others at {host}:{port} "
                f"in {timeout_s:g} s: {error}"
            ) from error
        prefix = dist.PrefixStore("weights", store)
        if device.type == "cpu":
            self._group = dist.ProcessGroupGloo(prefix, rank, world_size, timeout)
        else:
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = timeout
            self._group = dist.ProcessGroupNCCL(prefix, rank, world_size, options)
        self._store = store  # the store must outlive the group

    def broadcast(self, tensor: torch.Tensor) -> None:
        """Send (rank 0) or receive (others) one contiguous tensor in place."""
        options = dist.BroadcastOptions()
        options.rootRank = 0
        self._group.broadcast([tensor], options).wait()


@dataclass(frozen=True)
class TensorInfo:
    """Name, dtype name ("float32") and shape of one tensor on the wire."""

    name: str
    dtype: str
    shape: list[int]

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


def plan_buckets(tensors: list[TensorInfo], bucket_bytes: int = BUCKET_BYTES) -> list[list[TensorInfo]]:
    """Cut the ordered tensors into broadcasts of one dtype and at most `bucket_bytes` (a larger tensor goes alone).

    Both ends call this with the same list, so they cut alike.
    """
    buckets: list[list[TensorInfo]] = []
    size = 0
    for info in tensors:
        bytes_ = info.numel * getattr(torch, info.dtype).itemsize
        if not buckets or buckets[-1][0].dtype != info.dtype or size + bytes_ > bucket_bytes:
            buckets.append([])
            size = 0
        buckets[-1].append(info)
        size += bytes_
    return buckets


def send_buckets(group: BroadcastGroup, tensors: Iterator[tuple[str, torch.Tensor]], infos: list[TensorInfo]) -> None:
    """Broadcast every tensor in the order of `infos`. Raises ValueError when the iterator does not match them."""
    for bucket in plan_buckets(infos):
        flat = torch.empty(sum(i.numel for i in bucket), dtype=getattr(torch, bucket[0].dtype), device=group.device)
        offset = 0
        for info in bucket:
            name, tensor = next(tensors)
            if name != info.name or list(tensor.shape) != info.shape:
                raise ValueError(f"weight push: expected {info.name} {info.shape}, the model gave {name} {list(tensor.shape)}")
            flat[offset : offset + info.numel].copy_(tensor.detach().reshape(-1))
            offset += info.numel
        group.broadcast(flat)


def receive_buckets(group: BroadcastGroup, infos: list[TensorInfo]) -> Iterator[list[tuple[str, torch.Tensor]]]:
    """The other end of `send_buckets`: yields each bucket as (name, tensor) pairs, views of one buffer."""
    for bucket in plan_buckets(infos):
        flat = torch.empty(sum(i.numel for i in bucket), dtype=getattr(torch, bucket[0].dtype), device=group.device)
        group.broadcast(flat)
        parts = flat.split([i.numel for i in bucket])
        yield [(info.name, part.view(info.shape)) for info, part in zip(bucket, parts, strict=True)]


class WeightSync:
    """The driver's side: connects learner ranks and engines once, then pushes whenever the loop asks.

    `probe_prompts` are token ids of held-out prompts. After each push every engine continues them greedily by
    `probe_tokens` tokens and the learner scores the same sequences; the largest absolute difference of log-probabilities
    must stay below `tolerance`, and their mean below `mean_tolerance`. In fp32 the first says it all; in bfloat16 a logit of
    either side is rounded by up to 0.1, so single tokens differ by several tenths and only the mean tells rounding from error.
    """

    def __init__(
        self,
        learners: list[Any],
        engines: list[Any],
        workers_per_engine: int,
        probe_prompts: list[list[int]],
        tolerance: float,
        mean_tolerance: float,
        timeout_s: float,
        probe_tokens: int = 4,
    ) -> None:
        assert probe_prompts, "a push without a probe proves nothing"
        self._learners, self._engines, self._workers = learners, engines, workers_per_engine
        self._prompts, self._probe_tokens = probe_prompts, probe_tokens
        self._tolerance, self._mean_tolerance, self._timeout_s = tolerance, mean_tolerance, timeout_s
        self._tensors: list[dict[str, Any]] = []

    async def connect(self) -> None:
        """Open the broadcast group between learner rank 0 and every engine worker."""
        # The members' own time limit is the shorter one: its message says who is missing.
        async with deadline("joining the weight group", self._timeout_s + 30, "cluster.push_timeout_s"):
            host, port = await self._learners[0].address.remote()
            world = 1 + len(self._engines) * self._workers
            joins = [self._learners[0].open_transfer.remote(host, port, world, self._timeout_s)]
            for index, engine in enumerate(self._engines):
                info = {"host": host, "port": port, "rank_offset": 1 + index * self._workers, "world_size": world}
                joins.append(engine.join_transfer.remote({**info, "timeout_s": self._timeout_s}))
            await asyncio.gather(*joins)
            self._tensors = await self._learners[0].tensor_infos.remote()

    async def push(self, version: int, folder: Path | None = None) -> dict[str, float]:
        """Put the learner's weights into service as `version`. On any failure the engines are left paused.

        With `folder` the engines read them from that export, as they would at a start: the probe then is of what was written.
        """
        source = {"tensors": self._tensors} if folder is None else {"tensors": [], "folder": str(folder)}
        senders = [] if folder is not None else self._learners
        began = time.monotonic()
        async with deadline(f"pushing version {version}", self._timeout_s, "cluster.push_timeout_s"):
            await self._all("pause")
            await asyncio.gather(
                *(learner.send_weights.remote() for learner in senders),
                *(e.receive_weights.remote(source, version) for e in self._engines),
            )
            held = await self._all("held_version")
            if any(h != version for h in held):
                raise ParityError(f"engines hold versions {held} after a push of version {version}")
            landed = time.monotonic()
            await self._all("resume")
            try:
                largest, average = await self.probe()
                if not (largest < self._tolerance and average < self._mean_tolerance):
                    raise ParityError(
                        f"after the push of version {version} sampler and learner disagree: |difference of log-probabilities| "
                        f"max {largest:.3g}, limit {self._tolerance:g}; mean {average:.3g}, limit {self._mean_tolerance:g}; "
                        "sampling is stopped"
                    )
            except BaseException:
                for engine in self._engines:
                    engine.pause.remote()  # not awaited: whatever went wrong must not be hidden behind a second failure
                raise
        return {"push_s": landed - began, "probe_s": time.monotonic() - landed, "parity": largest, "parity_mean": average}

    async def _all(self, method: str) -> list[Any]:
        """Call a method of every engine."""
        return list(await asyncio.gather(*(getattr(e, method).remote() for e in self._engines)))

    async def probe(self) -> tuple[float, float]:
        """|log p(engine) - log p(learner)| of all tokens of the probe prompts and their greedy continuations: the largest of any
        engine, and the largest mean of one."""
        per_engine = await asyncio.gather(*(e.probe.remote(self._prompts, self._probe_tokens) for e in self._engines))
        largest = average = 0.0
        for generations in per_engine:
            sequences = [p + g.token_ids for p, g in zip(self._prompts, generations, strict=True)]
            scores = await asyncio.gather(*(learner.score.remote(sequences) for learner in self._learners))
            engine_side = [x for g in generations for x in g.prompt_logprobs + g.logprobs]
            learner_side = [x for logprobs in scores[0] for x in logprobs]
            differences = [abs(a - b) for a, b in zip(engine_side, learner_side, strict=True)]
            differences = [d if math.isfinite(d) else math.inf for d in differences]
            largest, average = max(largest, *differences), max(average, mean(differences))
        return largest, average
