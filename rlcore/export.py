"""The last step of a training: weights -> a Hugging Face folder that is known to reload."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch

from rlcore.model import load_model, load_tokenizer


def write_export(model: Any, state: dict[str, Any], folder: Path, tokenizer_from: str, trust_remote_code: bool) -> None:
    """Write `state` (tensors by parameter name) as a Hugging Face folder beside `folder`, reload it, and rename it into place.

    The tokenizer and the generation config are those of `tokenizer_from`. Raises RuntimeError when a reloaded parameter differs.
    """
    temporary = folder.with_name(folder.name + ".tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    model.save_pretrained(temporary, state_dict=dict(state))
    load_tokenizer(tokenizer_from, trust_remote_code).save_pretrained(temporary)
    source = Path(tokenizer_from) / "generation_config.json"
    if source.is_file():
        shutil.copy(source, temporary / source.name)
    reloaded = dict(load_model(str(temporary), str(model.dtype).removeprefix("torch."), trust_remote_code).named_parameters())
    wrong = [n for n, t in state.items() if n not in reloaded or not torch.equal(reloaded[n].detach(), t)]
    if wrong or len(reloaded) != len(state):
        raise RuntimeError(
            f"export to {folder} does not reload to the same weights: {wrong[:5]} ({len(reloaded)} vs {len(state)} tensors)"
        )
    shutil.rmtree(folder, ignore_errors=True)
    temporary.rename(folder)
