"""What the learner must keep to go on: fp32 weights, optimizer state, counters and RNG, as pieces of named parameters.

    save: every rank the pieces it owns -> rank-00000.safetensors ...    load: every rank the pieces it needs, from whichever file

The files know parameters, not ranks or ZeRO stages, so they are loaded at any number of ranks and at any stage. DeepSpeed's own
checkpoints are pickles bound to one number of ranks; its universal ones have to be converted beforehand, and there are none
without ZeRO. What is frozen is not saved: it is the model's that the training starts from.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

WEIGHT, RNG = "weight", "rng"


@dataclass(frozen=True)
class Piece:
    """Elements [start, start + numel) of a flattened parameter: from `offset` on in `updated`, the optimizer's tensor."""

    name: str
    start: int
    numel: int
    updated: Tensor
    offset: int

    def of(self, tensor: Tensor) -> Tensor:
        """The piece of `updated` or of a state of its shape, as a view."""
        return tensor.detach().view(-1)[self.offset : self.offset + self.numel]


def trained_parameters(engine: Any) -> dict[str, Any]:
    return {name: p for name, p in engine.module.named_parameters() if p.requires_grad}


def pieces(engine: Any) -> Iterator[Piece]:
    """What this rank updates of the trained parameters; without ZeRO that is all of them."""
    optimizer, stage = engine.optimizer, engine.zero_optimization_stage()
    copies: dict[Any, Any] = {}  # bfloat16 parameter -> its fp32 copy, where DeepSpeed holds them one by one
    if stage == 0 and hasattr(optimizer, "fp32_groups"):
        for low, high in zip(optimizer.fp16_groups, optimizer.fp32_groups, strict=True):
            copies |= dict(zip(low, high, strict=True))
    for name, p in trained_parameters(engine).items():
        if stage == 3:
            group, offset, size = optimizer.grad_position[optimizer.get_param_id(p)]
            start = engine.global_rank * size  # equal shares, the last ones padded
            if start < p.ds_numel:
                yield Piece(name, start, min(size, p.ds_numel - start), optimizer.fp32_partitioned_groups_flat[group], offset)
        elif stage:
            mapping = p._hp_mapping
            if mapping is not None:
                (flat,) = engine.basic_optimizer.param_groups[mapping.param_group_index]["params"]
                own, there = mapping.lp_fragment_address, mapping.hp_fragment_address
                yield Piece(name, own.start, own.numel, flat, there.start)
        else:
            yield Piece(name, 0, p.numel(), copies.get(p, p), 0)


def snapshot(engine: Any) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Copies in host memory of what this rank has to save, and its metadata; training may go on while they are written."""
    shares = list(pieces(engine)) if engine.zero_optimization_stage() or engine.global_rank == 0 else []
    tensors = {}
    for piece in shares:
        for key, value in {WEIGHT: piece.updated, **engine.basic_optimizer.state.get(piece.updated, {})}.items():
            part = piece.of(value) if value.shape == piece.updated.shape else value.detach()  # AdamW's step is one number
            tensors[f"{key}:{piece.start}:{piece.name}"] = part.to("cpu", copy=True)
    tensors[f"{RNG}:0:cpu"] = torch.get_rng_state()
    if engine.device.type == "cuda":
        tensors[f"{RNG}:0:cuda"] = torch.cuda.get_rng_state()
    counters = {"steps": engine.global_steps, "skipped": engine.skipped_steps, "schedule": engine.lr_scheduler.last_epoch}
    return tensors, {"counters": json.dumps(counters), "python_rng": json.dumps(random.getstate())}


def write(folder: Path, rank: int, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """This rank's file of a snapshot. Raises OSError when the disk does not take it."""
    folder.mkdir(exist_ok=True)
    path = folder / f"rank-{rank:05d}.safetensors"
    try:
        save_file(tensors, path, metadata)
        with open(path, "rb") as file:
            os.fsync(file.fileno())  # the folder gets its name only when its files are on disk
    except SafetensorError as error:  # what the disk says, in the library's words
        raise OSError(f"{path}: {error}") from error


def restore(engine: Any, folder: Path) -> None:
    """The inverse of `snapshot` and `write`; every rank at once. The learning rate is the schedule's of now at the saved step.

    Raises RuntimeError when the files are missing, or hold other parameters than are trained here, or only parts of them.
    """
    files = sorted(folder.glob("rank-*.safetensors"))
    if not files:
        raise RuntimeError(f"{folder} holds no rank-*.safetensors")
    with ExitStack() as stack, torch.no_grad():
        opened = [stack.enter_context(safe_open(file, "pt")) for file in files]
        stored = _Stored(opened)
        trained = trained_parameters(engine).keys()
        if stored.names != trained:
            differing = sorted(stored.names ^ trained)
            raise RuntimeError(f"{folder} is of other trained parameters: {differing[:5]} ({len(differing)} differ)")
        engine.basic_optimizer.state.clear()
        for piece in pieces(engine):
            _restore_piece(engine.basic_optimizer.state, piece, stored)
        _refresh_parameters(engine)
        counters = json.loads(opened[0].metadata()["counters"])
        own = opened[engine.global_rank] if engine.global_rank < len(opened) else None  # a new rank keeps its seed's RNG
        if own is not None:
            _restore_rng(own, engine)
    engine.global_steps, engine.skipped_steps = counters["steps"], counters["skipped"]
    scheduler = engine.lr_scheduler
    scheduler.last_epoch = counters["schedule"]
    scheduler._last_lr = [
        base * factor(scheduler.last_epoch) for base, factor in zip(scheduler.base_lrs, scheduler.lr_lambdas, strict=True)
    ]
    for group, lr in zip(engine.basic_optimizer.param_groups, scheduler._last_lr, strict=True):
        group["lr"] = lr


class _Stored:
    """All files of a checkpoint, by parameter and by what is kept of it."""

    def __init__(self, files: list[Any]) -> None:
        self._parts: dict[str, dict[str, list[tuple[int, str, Any]]]] = {}
        for file in files:
            for stored in file.keys():  # noqa: SIM118 - not a dict
                key, start, name = stored.split(":", 2)
                if key != RNG:
                    self._parts.setdefault(name, {}).setdefault(key, []).append((int(start), stored, file))
        self.names = self._parts.keys()

    def keys(self, name: str) -> list[str]:
        return list(self._parts[name])

    def read(self, name: str, key: str, start: int, numel: int) -> Tensor:
        """Elements [start, start + numel) of the flattened parameter's `key`, or the one number that it is."""
        found, parts = torch.empty(numel), 0
        for first, stored, file in self._parts[name][key]:
            view = file.get_slice(stored)
            if not view.get_shape():
                return file.get_tensor(stored)
            low, high = max(start, first), min(start + numel, first + view.get_shape()[0])
            if low < high:
                found[low - start : high - start] = view[low - first : high - first]
                parts += high - low
        if parts != numel:
            raise RuntimeError(f"the checkpoint holds {parts} of {numel} elements of {name} ({key}) from {start} on")
        return found


def _restore_piece(state: Any, piece: Piece, stored: _Stored) -> None:
    piece.of(piece.updated).copy_(stored.read(piece.name, WEIGHT, piece.start, piece.numel))
    for key in stored.keys(piece.name):
        if key == WEIGHT:
            continue
        value = stored.read(piece.name, key, piece.start, piece.numel)
        kept = state[piece.updated]
        if not value.shape:
            kept[key] = value.to(piece.updated.device)
            continue
        if key not in kept:  # before the first step there is none
            kept[key] = torch.zeros_like(piece.updated)
        piece.of(kept[key]).copy_(value)


def _refresh_parameters(engine: Any) -> None:
    """The model's parameters from the fp32 weights that the optimizer updates, as after a step."""
    optimizer, stage = engine.optimizer, engine.zero_optimization_stage()
    if stage == 3:
        optimizer.checkpoint_event_prologue()
        for group in range(len(optimizer.fp32_partitioned_groups_flat)):
            optimizer._reassign_or_swap_out_partitioned_parameters(group)
        optimizer.checkpoint_event_epilogue()
    elif stage:
        optimizer.update_lp_params()
    elif hasattr(optimizer, "fp32_groups"):
        for low, high in zip(optimizer.fp16_groups, optimizer.fp32_groups, strict=True):
            for p, updated in zip(low, high, strict=True):
                p.copy_(updated)


def _restore_rng(file: Any, engine: Any) -> None:
    version, internal, gauss = json.loads(file.metadata()["python_rng"])
    random.setstate((version, tuple(internal), gauss))
    torch.set_rng_state(file.get_tensor(f"{RNG}:0:cpu"))
    if engine.device.type == "cuda" and f"{RNG}:0:cuda" in file.keys():  # noqa: SIM118 - not a dict
        torch.cuda.set_rng_state(file.get_tensor(f"{RNG}:0:cuda"))
