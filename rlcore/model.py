"""Loading a causal language model and its tokenizer for the learner and the driver."""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path
from typing import Any


def load_tokenizer(path: str, trust_remote_code: bool = False) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code)


def load_model(path: str, dtype: str, trust_remote_code: bool = False) -> Any:
    """The model in training precision, with the attention of packed rows where its class lets it be replaced, else SDPA."""
    import torch
    from transformers import AutoModelForCausalLM

    from rlcore.attention import PACKED

    if trust_remote_code:
        _provide_what_older_code_imports()
    model = AutoModelForCausalLM.from_pretrained(
        path, dtype=getattr(torch, dtype), attn_implementation="sdpa", trust_remote_code=trust_remote_code
    )
    if model._supports_attention_backend:
        model.config._attn_implementation = PACKED
    return model


def _provide_what_older_code_imports() -> None:
    """Code in hub repositories, MiniCPM4.1's too, imports a question that transformers 5 no longer answers: it is always yes."""
    from transformers.utils import import_utils

    if not hasattr(import_utils, "is_torch_fx_available"):
        import_utils.is_torch_fx_available = lambda: True  # type: ignore[attr-defined]


def train_last_layers(model: Any, count: int | None) -> None:
    """Leave only the last `count` decoder layers and the final norm trainable; None trains everything.

    Gradients are then neither computed nor kept below the first trainable layer, and the embedding (with it a tied head) is
    fixed: half of the layers cost about two thirds of a full step. Raises ValueError when the model has fewer layers.
    """
    if count is None:
        return
    chosen = last_layers(model, count)
    model.requires_grad_(False)
    for part in (*(model.model.layers[i] for i in chosen), model.model.norm):
        part.requires_grad_(True)


def last_layers(model: Any, count: int) -> range:
    """Indices of the last `count` decoder layers. Raises ValueError when the model has fewer."""
    layers = len(model.model.layers)
    if not 1 <= count <= layers:
        raise ValueError(f"model.train_layers={count} must be between 1 and the model's {layers} layers")
    return range(layers - count, layers)


def end_token_ids(path: str, tokenizer: Any) -> tuple[int, ...]:
    """Every id that ends a turn: the tokenizer's EOS and all that the model's generation config, in a folder or hub, declares."""
    from transformers import GenerationConfig

    ids = {tokenizer.eos_token_id} if tokenizer.eos_token_id is not None else set()
    with contextlib.suppress(OSError):  # a model need not have one
        declared = GenerationConfig.from_pretrained(path).eos_token_id
        ids |= set(declared) if isinstance(declared, list) else ({declared} if declared is not None else set())
    if not ids:
        raise ValueError(f"neither the tokenizer nor the generation config of {path!r} names an end token")
    return tuple(sorted(ids))


def parameter_bytes(path: str) -> int | None:
    """Bytes of the safetensors files in a local folder, None for a hub name."""
    files = list(Path(path).glob("*.safetensors"))
    return sum(f.stat().st_size for f in files) or None


def linear_shapes(path: str) -> list[tuple[str, int, int]]:
    """(module's own name, outputs, inputs) of every matrix in the decoder layers of a local folder; none of a hub name."""
    from safetensors import safe_open

    shapes = []
    for file in sorted(Path(path).glob("*.safetensors")):
        with safe_open(file, framework="np") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - it is no mapping
                parts, shape = name.split("."), tensors.get_slice(name).get_shape()
                if "layers" in parts and parts[-1] == "weight" and len(shape) == 2:
                    shapes.append((parts[-2], *shape))
    return shapes


SAMPLES, SAMPLE_BYTES = 64, 64 * 1024


def weights_fingerprint(model: str) -> str:
    """Of the model in a folder: 16 digits of a SHA-256 over its config.json and its weights, "" for a model elsewhere.

    Of each file of weights it takes the size and samples of the content, evenly spread: training changes all of it, and reading
    everything would take minutes for a large model. Names and times do not count, so a copy has the fingerprint of its original.
    """
    folder = Path(model)
    if not (folder / "config.json").is_file():
        return ""
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    for path in sorted(folder.glob("*.safetensors")):
        size = path.stat().st_size
        digest.update(f"|{size}|".encode())
        with open(path, "rb") as file:
            for start in sorted({max(0, size - SAMPLE_BYTES) * i // (SAMPLES - 1) for i in range(SAMPLES)}):
                file.seek(start)
                digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()[:16]
