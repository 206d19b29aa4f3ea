"""Which parameters are trained, and which model it is."""

import json
import os
from types import SimpleNamespace

import pytest
import torch
from transformers import GenerationConfig

from rlcore.model import SAMPLE_BYTES, end_token_ids, load_model, train_last_layers, weights_fingerprint

IDS = torch.tensor([[5, 6, 7, 8, 9]])


def gradients(model) -> dict[str, torch.Tensor]:
    model.zero_grad()
    model(IDS, labels=IDS).loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def test_the_last_layers_get_the_gradients_they_get_when_all_are_trained(model):
    full = gradients(model)
    train_last_layers(model, 1)
    upper = gradients(model)
    train_last_layers(model, None)  # changes nothing
    assert set(upper) == {n for n in full if n.startswith("model.layers.1.")} | {"model.norm.weight"}
    assert all(torch.equal(gradient, full[name]) for name, gradient in upper.items())
    model.requires_grad_(True)


@pytest.mark.parametrize("count", [0, 3])
def test_a_count_the_model_does_not_have_is_refused(model, count):
    with pytest.raises(ValueError, match=f"train_layers={count} must be between 1 and the model's 2"):
        train_last_layers(model, count)


def test_a_turn_ends_with_all_that_tokenizer_and_generation_config_name(tmp_path, monkeypatch):
    """Also those of a model on a hub, which is no folder."""
    tokenizer, read = SimpleNamespace(eos_token_id=7), GenerationConfig.from_pretrained
    assert end_token_ids(str(tmp_path), tokenizer) == (7,)
    GenerationConfig(eos_token_id=[7, 9]).save_pretrained(tmp_path)
    monkeypatch.setattr(GenerationConfig, "from_pretrained", lambda name: read({"hub/model": tmp_path}[name]))
    assert end_token_ids("hub/model", tokenizer) == (7, 9)
    assert end_token_ids("hub/model", SimpleNamespace(eos_token_id=None)) == (7, 9)
    (tmp_path / "generation_config.json").unlink()
    with pytest.raises(ValueError, match="names an end token"):
        end_token_ids("hub/model", SimpleNamespace(eos_token_id=None))


def test_code_of_a_hub_written_for_transformers_4_is_loaded(tmp_path, monkeypatch, model):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    folder = tmp_path / "older"
    model.save_pretrained(folder)
    (folder / "modeling_older.py").write_text(
        "from transformers import LlamaForCausalLM\n"
        "from transformers.utils.import_utils import is_torch_fx_available\n"
        "class Older(LlamaForCausalLM):\n    traced = is_torch_fx_available()\n"
    )
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"auto_map": {"AutoModelForCausalLM": "modeling_older.Older"}}))
    loaded = load_model(str(folder), "float32", trust_remote_code=True)
    assert type(loaded).__name__ == "Older" and loaded.traced
    assert torch.equal(loaded(IDS).logits, model(IDS).logits)


def test_the_fingerprint_is_of_configuration_and_content(tmp_path):
    def written(name: str, content: bytes) -> str:
        (tmp_path / name).write_bytes(content)
        return weights_fingerprint(str(tmp_path))

    large = bytes(3 * SAMPLE_BYTES)
    assert written("model.safetensors", large) == "" == weights_fingerprint("some/model")  # no config.json: no model
    first = written("config.json", b"{}")
    os.utime(tmp_path / "model.safetensors", (1, 1))
    assert first == written("notes.txt", b"x") and len(first) == 16
    changed = [
        written("model.safetensors", large[:-1] + b"x"),
        written("model.safetensors", large[: SAMPLE_BYTES + 9] + b"x" + large[SAMPLE_BYTES + 10 :]),
        written("model.safetensors", large + b"\0"),
        written("model-2.safetensors", b"x"),
        written("config.json", b"{ }"),
    ]
    assert len({first, *changed}) == 6
