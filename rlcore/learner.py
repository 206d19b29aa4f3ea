"""The learner: one DeepSpeed engine per rank, each in a Ray actor. It sums weighted token losses; it normalises nothing.

    rows (per rank) --> forward, backward per row --> one optimizer step per window --> weights to the engines

Every rank receives the same number of rows (filler rows of weight zero even them out), so collectives line up. DeepSpeed
averages gradients over ranks; the loss is multiplied by the number of ranks to make that a sum, once, in `train_step`.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ray

from rlcore.batch import Row, Sample, build_rows, token_weights, whole_row
from rlcore.cluster import cpu_environment, free_port
from rlcore.config import LoraConfig
from rlcore.lora import adapter_off, base_parameters, choose_trained, factors, merged
from rlcore.schedule import Schedule
from rlcore.types import Sequence


@dataclasses.dataclass(frozen=True)
class LearnerOptions:
    """What a rank needs to start. `deepspeed` is DeepSpeed's own config, completed by `_deepspeed_config`."""

    model: str
    dtype: str
    deepspeed: dict[str, Any]
    lr: float
    weight_decay: float
    betas: tuple[float, float]
    grad_clip: float
    schedule: Schedule
    temperature: float
    ranks: int
    seed: int
    gpus: int = 0
    threads: int = 1
    trust_remote_code: bool = False
    train_layers: int | None = None
    lora: LoraConfig | None = None
    gradient_checkpointing: bool = False
    collective_timeout_s: float = 600.0
    reference: str | None = None  # for KL: a model to hold as a frozen copy, or `model` itself, which is there under an adapter


# The learner's log-probabilities of one batch, with and without a gradient, before the first update: how far they may be apart.
ON_POLICY_TOLERANCE = {"float32": 1e-5, "bfloat16": 2e-2}


class Learner:
    """One data-parallel rank. Run it with `ray.remote(Learner)`; methods run one at a time."""

    def __init__(self, options: LearnerOptions, rank: int) -> None:
        self.options, self.rank = options, rank
        self._engine: Any = None
        self._reference: Any = None
        self._transfer: Any = None
        self._writing: Future[None] | None = None

    def address(self) -> tuple[str, int]:
        """This node's address and a free port on it, for a rendezvous."""
        return ray.util.get_node_ip_address(), free_port()

    def start(self, host: str, port: int) -> dict[str, Any]:
        """Join the training group, load the model, wrap it in DeepSpeed. Returns parameter counts and seconds."""
        began = time.monotonic()
        o = self.options
        os.environ.update(MASTER_ADDR=host, MASTER_PORT=str(port), RANK=str(self.rank), LOCAL_RANK="0", WORLD_SIZE=str(o.ranks))
        import datetime

        import deepspeed
        import torch

        from rlcore.loss import Scorer
        from rlcore.model import load_model

        if o.gpus == 0:
            torch.set_num_threads(o.threads)
            # DeepSpeed would compile its shared-memory collectives for a minute at every first start; gloo does for a CPU.
            deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        torch.manual_seed(o.seed + self.rank)
        deepspeed.init_distributed(
            dist_backend="nccl" if o.gpus else "gloo",
            timeout=datetime.timedelta(seconds=o.collective_timeout_s),
            verbose=False,
        )
        model = Scorer(load_model(o.model, o.dtype, o.trust_remote_code))
        choose_trained(model.lm, o.train_layers, o.lora, o.seed)
        if o.gradient_checkpointing:
            model.lm.gradient_checkpointing_enable({"use_reentrant": False})
        trained = [p for p in model.parameters() if p.requires_grad]
        decay, rest = [p for p in trained if p.ndim > 1], [p for p in trained if p.ndim <= 1]
        groups = [{"params": decay, "weight_decay": o.weight_decay}, {"params": rest, "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW([g for g in groups if g["params"]], lr=o.lr, betas=o.betas, fused=True)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, o.schedule.factor)
        self._engine, *_ = deepspeed.initialize(
            model=model, optimizer=optimizer, lr_scheduler=scheduler, config=_deepspeed_config(o), dist_init_required=False
        )
        self._check_scorer()
        if o.reference is not None and not (o.lora and o.reference == o.model):
            reference = load_model(o.reference, o.dtype, o.trust_remote_code).to(self._engine.device)
            self._reference = Scorer(reference).requires_grad_(False)
        sizes = {p: getattr(p, "ds_numel", p.numel()) for p in model.parameters()}
        return {
            "parameters": sum(sizes.values()),
            "trained": sum(sizes[p] for p in trained),
            "start_s": time.monotonic() - began,
        }

    def train_step(self, rows: list[Row], loss: Any, first: bool = False) -> dict[str, float]:
        """One optimizer step over this rank's rows. `loss` is a PolicyLoss, or None for SFT.

        Returns sums over this rank's trained tokens (keys ending in `_sum`, and `tokens`), and the step's own figures
        (`loss` and its parts, this rank's share; `grad_norm`; `lr`; `nonfinite`). When the gradient norm is not finite no
        optimizer step is taken, and weights, optimizer and schedule are as before: `nonfinite` is then 1.
        `first` asks for the on-policy check: RuntimeError when the ratio of new to recomputed old log-probabilities is not 1.
        """
        began = time.monotonic()
        engine = self._engine
        sums: dict[str, float] = {}
        before = [self._score_row(engine.module, row, self.options.temperature) for row in rows] if first else None
        for index, row in enumerate(rows):
            engine.set_gradient_accumulation_boundary(index == len(rows) - 1)
            value, stats = self._row_loss(row, loss, before[index] if before else None)
            engine.backward(value * self.options.ranks)
            for name, x in {"loss": value.detach().item(), **stats}.items():
                sums[name] = sums.get(name, 0.0) + x
        lr = engine.get_lr()[0]
        norm = self._unsharded_norm()
        if norm is not None and not math.isfinite(norm):
            engine.zero_grad()
        else:
            engine.step()  # DeepSpeed itself skips a step whose norm it finds not finite, in every mode but that above
        if norm is None:
            norm = float(engine.get_global_grad_norm())
        own = {"grad_norm": norm, "lr": lr, "nonfinite": float(not math.isfinite(norm)), "train_s": time.monotonic() - began}
        return sums | own | {"row_tokens": float(sum(len(r) for r in rows))}

    def _score_row(self, model: Any, row: Row, temperature: float) -> Any:
        """[N] log-probabilities of the row's trained tokens, without a gradient."""
        import torch

        model.eval()
        with torch.no_grad():
            logprobs, _ = model(row, temperature)
        model.train()
        return logprobs

    def score_reference(self, rows: list[Row]) -> list[list[float]]:
        """The reference's log-probabilities of each row's trained tokens, at the sampling temperature."""
        return [self._reference_logprobs(row).tolist() for row in rows]

    def _reference_logprobs(self, row: Row) -> Any:
        """[N] log-probabilities under the frozen copy, or under the model without its adapter."""
        if self._reference is not None:
            return self._score_row(self._reference, row, self.options.temperature)
        with adapter_off(self._engine.module.lm):
            return self._score_row(self._engine.module, row, self.options.temperature)

    def _unsharded_norm(self) -> float | None:
        """The gradient norm where every rank holds all gradients and DeepSpeed does not report it (ZeRO 0 in fp32); else None."""
        import torch

        if self._engine.zero_optimization() or self.options.dtype != "float32":
            return None
        return float(torch.nn.utils.get_total_norm([p.grad for p in self._engine.module.parameters() if p.grad is not None]))

    def _check_scorer(self) -> None:
        """Our log-probabilities in a packed row must be the model's own of each sequence alone.

        Some families scale hidden states or logits on the way to the head, and some have attention of their own, which takes no
        block mask: replies would see each other. Two replies share a prompt, a third has another.
        """
        import torch

        prompt, other = list(range(5, 15)), list(range(40, 46))
        parts = [(prompt, [20, 21, 22, 23]), (prompt, [30, 31, 32]), (other, [24, 25, 26])]
        samples = [Sample(Sequence.demonstrated(*part), 0.0, number) for number, part in enumerate(parts)]
        (row,) = build_rows(samples, token_weights(samples, "token_mean"), 64)
        packed = dict(zip(row.targets, self._score_row(self._engine.module, row, 1.0).tolist(), strict=True))
        difference, exact = 0.0, self.options.dtype == "float32"
        for context, reply in parts:
            with torch.no_grad():
                ids = torch.tensor([context + reply], device=self._engine.device)
                logits = self._engine.module.lm(ids).logits[0, len(context) - 1 : -1].float()
            own = torch.log_softmax(logits, -1)[range(len(reply)), reply]
            found = torch.tensor([packed[token] for token in reply], device=own.device)
            differences = (own - found).abs()
            # In bfloat16 a single logit may be a rounding of 0.1 apart; what is wrong is wrong on the whole.
            difference = max(difference, (differences.max() if exact else differences.mean()).item())
        if not difference < (1e-3 if exact else 0.1):
            name = type(self._engine.module.lm).__name__
            raise RuntimeError(
                f"{name} does more than apply lm_head to its last hidden states, or its attention takes no block mask "
                f"(log-probabilities off by {difference:.3g})"
            )

    def _row_loss(self, row: Row, loss: Any, before: Any) -> tuple[Any, dict[str, float]]:
        """The row's loss and its figures; fillers count nowhere. `before`: log-probabilities that the row's must still equal."""
        from rlcore.loss import TrainedTokens, sft_loss

        counted = 0.0 if row.filler else 1.0
        bonus = loss is not None and loss.entropy_coef > 0
        in_loss = loss is not None and loss.kl.in_loss
        reference = self._reference_logprobs(row) if in_loss else None  # before the forward pass that backward belongs to
        logprobs, entropy = self._engine(row, self.options.temperature if loss else 1.0, bonus)
        stats = {"tokens": counted * len(row.targets), "entropy_sum": counted * entropy.sum().item()}
        if before is not None:
            check_on_policy(logprobs.detach(), before, self.options.dtype)
        tokens = TrainedTokens.of(row, logprobs.device, reference)
        if loss is None:
            return sft_loss(logprobs, tokens.weights), stats | {"logprob_sum": counted * logprobs.detach().sum().item()}
        value, figures = loss(logprobs, tokens, entropy)
        return value, stats | {name: counted * x for name, x in figures.items()}

    def score(self, sequences: list[list[int]]) -> list[list[float]]:
        """log p of every token but the first of each sequence, at temperature 1, with the current weights."""
        return [self._score_row(self._engine.module, whole_row(ids), 1.0).tolist() for ids in sequences]

    def sft_loss(self, rows: list[Row]) -> float:
        """This rank's share of the SFT loss of the rows, with the current weights and without a gradient."""
        from rlcore.loss import TrainedTokens, sft_loss

        scored = [(row, self._score_row(self._engine.module, row, 1.0)) for row in rows]
        return sum(sft_loss(logprobs, TrainedTokens.of(row, logprobs.device).weights).item() for row, logprobs in scored)

    def tensor_infos(self) -> list[dict[str, Any]]:
        """What a push sends: every parameter once (a tied head is not sent: it is the embedding), in sending order."""
        return [
            {"name": n, "dtype": str(p.dtype).removeprefix("torch."), "shape": list(getattr(p, "ds_shape", p.shape))}
            for n, p, _ in base_parameters(self._engine.module.lm)
        ]

    def open_transfer(self, host: str, port: int, world_size: int, timeout_s: float) -> None:
        """Rank 0: open the broadcast group and wait until every engine worker has joined."""
        from rlcore.weights import BroadcastGroup

        device = next(self._engine.module.parameters()).device
        self._transfer = BroadcastGroup(host, port, 0, world_size, device, timeout_s)

    def send_weights(self) -> float:
        """Every rank: gather sharded parameters; rank 0 broadcasts them. Returns seconds."""
        from rlcore.weights import TensorInfo, send_buckets

        began = time.monotonic()
        tensors = self._full_tensors()
        if self.rank == 0:
            send_buckets(self._transfer, tensors, [TensorInfo(**i) for i in self.tensor_infos()])
        for _ in tensors:  # the other ranks join the gathers; rank 0 has none left
            pass
        return time.monotonic() - began

    def _full_tensors(self) -> Any:
        """(name, whole tensor) of what a push sends, an adapter merged into it."""
        import deepspeed

        for name, parameter, layer in base_parameters(self._engine.module.lm):
            with deepspeed.zero.GatheredParameters([parameter, *factors(layer)]):  # does nothing where nothing is sharded
                yield name, merged(parameter, layer)

    def save(self, folder: str) -> None:
        """Every rank: copy its part of optimizer, weights, schedule and RNG to host memory, and begin to write it into `folder`.

        Training may go on; `saved` says when the file is there. Call it again only then.
        """
        from rlcore.learner_state import snapshot, write

        tensors, metadata = snapshot(self._engine)
        writer = ThreadPoolExecutor(1)
        self._writing = writer.submit(write, Path(folder), self.rank, tensors, metadata)
        writer.shutdown(wait=False)

    def saved(self) -> bool:
        """Whether the last `save` is written. Raises what its writing raised."""
        assert self._writing is not None, "nothing has been saved"
        return self._writing.done() and self._writing.result() is None

    def load(self, folder: str) -> None:
        """Every rank: the inverse of `save`, also of another number of ranks. Raises RuntimeError when the files do not fit."""
        from rlcore.learner_state import restore

        restore(self._engine, Path(folder))

    def export(self, folder: str, tokenizer_from: str) -> str:
        """Every rank takes part; rank 0 writes a Hugging Face folder (safetensors, tied head once) and reloads it to check.

        Written beside and renamed. Returns rank 0's words for it. Raises RuntimeError when it does not reload as what was sent.
        """
        from rlcore.export import write_export

        state = {}
        for name, tensor in self._full_tensors():
            if self.rank == 0:
                state[name] = tensor.detach().to("cpu", copy=True)
        if self.rank:
            return ""
        return write_export(self._engine.module.lm, state, Path(folder), tokenizer_from, self.options.trust_remote_code)


def check_on_policy(logprobs: Any, before: Any, dtype: str) -> None:
    """Before the first update nothing may have changed between two scorings of a row. Raises RuntimeError when it has."""
    difference = (logprobs - before).abs().max().item()
    if not difference <= ON_POLICY_TOLERANCE[dtype]:
        raise RuntimeError(
            f"before the first update the ratio of new to old probabilities must be 1, but log-probabilities differ by "
            f"{difference:.3g} ({dtype} allows {ON_POLICY_TOLERANCE[dtype]:g}); does the model use dropout?"
        )


def _deepspeed_config(o: LearnerOptions) -> dict[str, Any]:
    """DeepSpeed's config with what the framework owns filled in: batch sizes are formal, rows decide the real ones.

    A window is many rows on many ranks: their gradients are summed in fp32 also where the model is bfloat16 (not without ZeRO,
    which DeepSpeed refuses).
    """
    sharded = o.deepspeed.get("zero_optimization", {}).get("stage", 0) > 0
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": o.grad_clip,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "bf16": {"enabled": o.dtype == "bfloat16"},
        **(
            {"data_types": {"grad_accum_dtype": "fp32"}, "communication_data_type": "fp32"}
            if o.dtype == "bfloat16" and sharded
            else {}
        ),
        "steps_per_print": 10**9,
        **json.loads(json.dumps(o.deepspeed)),
    }


def start_learner_actors(options: LearnerOptions, cpus: float, kind: type[Learner] = Learner) -> list[Any]:
    """Create one Ray actor of `kind` per rank; `start` has to be awaited on all of them together."""
    env = cpu_environment(options.threads) | {"DS_ACCELERATOR": "cpu"} if options.gpus == 0 else {}
    make: Any = ray.remote(num_cpus=cpus, num_gpus=options.gpus, max_restarts=0)(kind)
    return [make.options(runtime_env={"env_vars": env}).remote(options, rank) for rank in range(options.ranks)]
