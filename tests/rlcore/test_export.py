"""What an export holds, and when it is refused."""

import json
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from rlcore import export
from rlcore.export import write_export


def small(tied: bool, dtype: torch.dtype = torch.float32) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
        tie_word_embeddings=tied,
    )  # fmt: skip
    return LlamaForCausalLM(config).to(dtype)


@pytest.fixture(autouse=True)
def no_tokenizer(monkeypatch):
    monkeypatch.setattr(export, "load_tokenizer", lambda path, trust: SimpleNamespace(save_pretrained=lambda folder: None))


def exported(model, folder, **changes) -> str:
    state = {name: p.detach().clone() for name, p in model.named_parameters()} | changes
    return write_export(model, state, folder, str(folder), False)


@pytest.mark.parametrize(("tied", "dtype"), [(True, torch.float32), (False, torch.bfloat16)])
def test_a_tied_tensor_has_one_key_and_the_dtype_is_stated(tmp_path, tied, dtype):
    model, folder = small(tied, dtype), tmp_path / "export"
    name = str(dtype).removeprefix("torch.")
    assert exported(model, folder) == f"{name}, {11 if tied else 12} tensors"
    tensors = load_file(folder / "model.safetensors")
    assert ("lm_head.weight" in tensors) != tied and "model.embed_tokens.weight" in tensors
    assert {t.dtype for t in tensors.values()} == {dtype} and json.loads((folder / "config.json").read_text())["dtype"] == name
    assert [p.name for p in tmp_path.iterdir()] == ["export"]
    again = LlamaForCausalLM.from_pretrained(folder, dtype=dtype)
    ids = torch.tensor([[1, 2, 3]])
    with torch.no_grad():
        assert torch.equal(again(ids).logits, model(ids).logits)


def test_one_that_does_not_reload_as_the_model_is_refused(tmp_path, monkeypatch):
    model, folder = small(True), tmp_path / "export"
    with pytest.raises(RuntimeError, match="tied to the embedding, but both have weights"):
        exported(model, folder, **{"lm_head.weight": torch.zeros(16, 8)})
    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match=r"other tensors than the model: \['lm_head.weight'\]"):
        patch.setattr(model, "save_pretrained", lambda path, state_dict: small(False).save_pretrained(path))
        exported(model, folder)
    monkeypatch.setattr(export, "load_model", lambda path, dtype, trust: small(True))
    with pytest.raises(RuntimeError, match="does not reload to the same weights: .*model.embed_tokens.weight"):
        exported(model, folder)
    assert not folder.exists()
