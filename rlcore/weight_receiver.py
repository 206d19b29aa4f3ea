"""The engine's side of a weight push: a vLLM weight-transfer backend named "rlcore" over one broadcast group.

vLLM imports this module in each of its worker processes (as `worker_extension_cls`), which registers the backend there.
It exists because the built-in backends need CUDA. Two repairs are made on the way, both checked by tests:
a push that leaves some layer without weights is an error, and the tied output head is re-packed on the CPU, where it
would silently go on multiplying by its old packed copy.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader import get_model_loader
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info
from vllm.transformers_utils.config import get_config

from rlcore.weights import BroadcastGroup, TensorInfo, receive_buckets

# Of a model's config, what its export says of itself, and how to load it.
MAY_DIFFER = {"_name_or_path", "dtype", "torch_dtype", "transformers_version", "use_cache"}


@dataclasses.dataclass
class InitInfo(WeightTransferInitInfo):
    """Where to join. `rank_offset` is the rank of this engine's first worker; rank 0 is the learner."""

    host: str
    port: int
    rank_offset: int
    world_size: int
    timeout_s: float


@dataclasses.dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    """The tensors in the order they are broadcast, each as the fields of a TensorInfo; or a model's folder to read instead."""

    tensors: list[dict[str, Any]]
    folder: str | None = None


class RlcoreTransferEngine(WeightTransferEngine[InitInfo, UpdateInfo]):
    """Receives bucketed broadcasts from the learner (gloo on the CPU, NCCL on GPUs) and reloads the model layer by layer."""

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo
    group: BroadcastGroup | None = None

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        rank = init_info.rank_offset + self.parallel_config.rank
        self.group = BroadcastGroup(init_info.host, init_info.port, rank, init_info.world_size, self.device, init_info.timeout_s)

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        # The base class ends with torch.accelerator.synchronize(), which a CPU-only build cannot do.
        self.receive_weights(self.parse_update_info(update_info))
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: UpdateInfo) -> None:
        if update_info.folder is not None:
            self.model.load_weights(self._stored_weights(update_info.folder))
            return
        assert self.group is not None, "join_transfer comes before the first push"
        for bucket in receive_buckets(self.group, [TensorInfo(**t) for t in update_info.tensors]):
            self.model.load_weights(bucket)

    def _stored_weights(self, folder: str) -> Any:
        """(name, tensor) as vLLM's own loader reads them. Raises RuntimeError when the folder's config is of another model."""
        config = get_config(folder, trust_remote_code=self.model_config.trust_remote_code).to_dict()
        running = self.model_config.hf_config.to_dict()
        differing = sorted(k for k in config.keys() & running.keys() - MAY_DIFFER if config[k] != running[k])
        if differing:
            told = ", ".join(f"{k} {config[k]!r}, not {running[k]!r}" for k in differing)
            raise RuntimeError(f"{folder} is another model than the one that runs: {told}")
        stored = copy.copy(self.model_config)
        stored.model, stored.model_weights, stored.revision = folder, "", None
        return get_model_loader(self.vllm_config.load_config).get_all_weights(stored, self.model)

    def finish_weight_update(self) -> None:
        head = self._tied_head()
        missing = [name for name, layer in self.model.named_modules() if layer is not head and _got_nothing(layer)]
        if missing:
            raise RuntimeError(f"the push left these layers without weights: {missing[:8]} ({len(missing)} in all)")
        finalize_layerwise_reload(self.model, self.model_config)
        if head is not None and self.device.type == "cpu":
            head.quant_method.process_weights_after_loading(head)

    def _tied_head(self) -> Any:
        """The output head when it shares the embedding's weights, which are then sent once, under the embedding's name."""
        tied = getattr(self.model_config.hf_config, "tie_word_embeddings", False)
        return getattr(self.model, "lm_head", None) if tied else None

    def shutdown(self) -> None:
        self.group = None


def _got_nothing(layer: torch.nn.Module) -> bool:
    """True for a layer that owns parameters and received none of them in this push."""
    info = get_layerwise_info(layer)
    owns = any(True for _ in layer.parameters(recurse=False))
    return owns and info.can_load() and bool(info.load_numel_total) and info.load_numel == 0


class WeightReceiverExtension:
    """Nothing is added to vLLM's workers; importing this module in them is what registers the backend."""


WeightTransferEngineFactory.register_engine("rlcore", RlcoreTransferEngine)
