"""The last step of a training: weights -> a Hugging Face folder that is known to reload."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from rlcore.model import load_model, load_tokenizer


def write_export(model: Any, state: dict[str, Any], folder: Path, tokenizer_from: str, trust_remote_code: bool) -> str:
    """Write `state` (tensors by parameter name) as a Hugging Face folder beside `folder`, reload it, and rename it into place.

    The tokenizer and the generation config are those of `tokenizer_from`. Returns dtype and number of tensors, in words. Raises
    RuntimeError when a reloaded parameter differs, or the files hold other keys than `state`: a tied tensor has one.
    """
    dtype = str(model.dtype).removeprefix("torch.")
    temporary = folder.with_name(folder.name + ".tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    model.save_pretrained(temporary, state_dict=dict(state))
    load_tokenizer(tokenizer_from, trust_remote_code).save_pretrained(temporary)
    source = Path(tokenizer_from) / "generation_config.json"
    if source.is_file():
        shutil.copy(source, temporary / source.name)
    keys = [key for file in temporary.glob("*.safetensors") for key in safe_open(file, "pt").keys()]  # noqa: SIM118 - no dict
    if sorted(keys) != sorted(state):
        raise RuntimeError(f"export to {folder} has other tensors than the model: {sorted(set(keys) ^ set(state))[:5]}")
    stated = json.loads((temporary / "config.json").read_text()).get("dtype")
    if stated != dtype:
        raise RuntimeError(f"export to {folder}: its config.json states dtype {stated}, the weights are {dtype}")
    again = load_model(str(temporary), dtype, trust_remote_code)
    if again.config.tie_word_embeddings and again.get_output_embeddings().weight is not again.get_input_embeddings().weight:
        raise RuntimeError(f"export to {folder}: the output head is tied to the embedding, but both have weights of their own")
    reloaded = dict(again.named_parameters())
    wrong = [n for n, t in state.items() if n not in reloaded or not torch.equal(reloaded[n].detach(), t)]
    if wrong or len(reloaded) != len(state):
        raise RuntimeError(
            f"export to {folder} does not reload to the same weights: {wrong[:5]} ({len(reloaded)} vs {len(state)} tensors)"
        )
    shutil.rmtree(folder, ignore_errors=True)
    temporary.rename(folder)
    return f"{dtype}, {len(state)} tensors"
