"""LoRA (arXiv 2106.09685): a frozen model, and beside chosen linear layers a trained product of two thin matrices.

    y = W x + s B A x      s = alpha / rank;  W [out, in] frozen;  A [rank, in] random, B [out, rank] zero at the start

The layers are `peft`'s, put into the loaded model itself, so it keeps its class and its attributes. What leaves the learner (a
push, an export) is W + s B A under the names and shapes of the model without adapter: engines and readers of exports know nothing
of it. A and B have the model's dtype: DeepSpeed casts a bfloat16 module as a whole, and with ZeRO optimizes fp32 copies of them.
The sum is rounded to that dtype too: in bfloat16 what is far below a weight's own resolution does not reach the sampler.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

from rlcore.config import LoraConfig
from rlcore.errors import ConfigError
from rlcore.model import last_layers, linear_shapes, train_last_layers

ADAPTER = "default"  # the name of the only adapter
WRAPPED = ".base_layer.weight"  # what peft calls W inside its own layer, which has the name of the layer it replaced


def choose_trained(model: Any, train_layers: int | None, lora: LoraConfig | None, seed: int) -> None:
    """Freeze what is not trained: see `train_last_layers`, and with `lora` `add_adapter`."""
    if lora is None:
        train_last_layers(model, train_layers)
    else:
        add_adapter(model, lora, train_layers, seed)


def add_adapter(model: Any, lora: LoraConfig, train_layers: int | None, seed: int) -> None:
    """Freeze the model and put an adapter beside its target layers, or those of the last `train_layers` decoder layers only.

    A depends on `seed` only: every rank starts with the same one. Raises ConfigError for a target that no linear layer of the
    decoder is called: an embedding and a head, which may be one tensor, take no adapter.
    """
    import torch
    from peft import LoraConfig as PeftConfig
    from peft import inject_adapter_in_model

    modules = model.model.layers.named_modules()
    names = {name.rpartition(".")[2] for name, module in modules if isinstance(module, torch.nn.Linear)}
    check_targets(lora, names)
    chosen = list(last_layers(model, train_layers)) if train_layers is not None else None
    options = PeftConfig(r=lora.rank, lora_alpha=lora.alpha, target_modules=lora.targets, layers_to_transform=chosen)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        inject_adapter_in_model(options, model, ADAPTER)


def check_targets(lora: LoraConfig, names: set[str]) -> None:
    """Raises ConfigError unless every target is among the names of the decoder's linear layers."""
    for target in lora.targets:
        if target not in names:
            known = ", ".join(sorted(names))
            raise ConfigError(f"model.lora.targets={lora.targets}: the decoder has no linear layer {target!r}; it has {known}")


def adapter_parameters(path: str, lora: LoraConfig) -> int:
    """How many parameters an adapter beside all layers of a local model has."""
    return sum(lora.rank * (outputs + inputs) for name, outputs, inputs in linear_shapes(path) if name in lora.targets)


def base_parameters(model: Any) -> Iterator[tuple[str, Any, Any]]:
    """(name, parameter, LoRA layer or None) of every parameter of the model without adapter, in its order, by its name there.

    The layer is the one whose product is to be added to the parameter. A model that never had an adapter yields its own.
    """
    for name, parameter in model.named_parameters():
        if ".lora_" not in name:
            layer = model.get_submodule(name.removesuffix(WRAPPED)) if name.endswith(WRAPPED) else None
            yield name.replace(".base_layer.", "."), parameter, layer


def factors(layer: Any) -> list[Any]:
    """The parameters A and B of a LoRA layer; none of None."""
    return [layer.lora_A[ADAPTER].weight, layer.lora_B[ADAPTER].weight] if layer is not None else []


def merged(parameter: Any, layer: Any) -> Any:
    """W + s B A, computed in fp32, as a new tensor in W's dtype; the parameter's own where there is no layer."""
    if layer is None:
        return parameter.data
    a, b = (f.data.float() for f in factors(layer))
    return (parameter.data.float() + layer.scaling[ADAPTER] * (b @ a)).to(parameter.dtype)


def adapter_off(model: Any) -> AbstractContextManager[None]:
    """Inside, the model computes what it computed before the adapter came, whatever has been learnt since.

    s is 0 there. The layers still run: ZeRO 3 fetches parameters in a recorded order, which has to stay the same.
    """
    from peft.helpers import rescale_adapter_scale

    return rescale_adapter_scale(model, 0.0)
