"""LoRA: what is trained, what leaves the learner, and what is left when the adapter is off."""

import copy
import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from rlcore.batch import Sample, build_rows, token_weights
from rlcore.checkpoint import first_state, read_state
from rlcore.cluster import memory_estimate
from rlcore.config import LoraConfig, check_files
from rlcore.errors import ConfigError
from rlcore.files import write_atomic
from rlcore.lora import adapter_off, adapter_parameters, add_adapter, base_parameters, merged
from rlcore.loss import sft_loss, token_logprobs
from rlcore.types import Sequence
from tests.rlcore.test_config import composed

LORA = LoraConfig(rank=4, alpha=6.0, targets=["q_proj", "down_proj"])  # a factor of 1.5


@pytest.fixture(scope="module")
def base():
    """A random Llama with biases in its attention."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=128, tie_word_embeddings=True, attention_bias=True, attn_implementation="sdpa",
    )  # fmt: skip
    return LlamaForCausalLM(config)


@pytest.fixture
def adapted(base):
    model = copy.deepcopy(base)
    add_adapter(model, LORA, None, seed=7)
    return model


def row():
    samples = [Sample(Sequence.demonstrated([5, 6, 7], reply), 1.0, n) for n, reply in enumerate([[20, 21, 22], [30, 31]])]
    (packed,) = build_rows(samples, token_weights(samples, "token_mean"), 64)
    return packed


def logprobs(model) -> torch.Tensor:
    with torch.no_grad():
        return token_logprobs(model, row(), 1.0)[0]


def backward(model) -> None:
    packed = row()
    sft_loss(token_logprobs(model, packed, 1.0)[0], torch.tensor(packed.weights)).backward()


def train(model, steps: int = 3) -> None:
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)
    for _ in range(steps):
        backward(model)
        optimizer.step()
        optimizer.zero_grad()


def test_a_new_adapter_changes_nothing_and_depends_on_its_seed_only(base, adapted):
    assert torch.equal(logprobs(adapted), logprobs(base))
    again = copy.deepcopy(base)
    torch.manual_seed(99)
    before = torch.get_rng_state()
    add_adapter(again, LORA, None, seed=7)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(p, q) for p, q in zip(again.parameters(), adapted.parameters(), strict=True))


def test_an_adapters_first_gradient_is_the_full_gradient_through_its_factors(base, adapted):
    """W + s B A with B = 0: dL/dB = s dL/dW A', dL/dA = 0."""
    full = copy.deepcopy(base)
    backward(full)
    backward(adapted)
    for name, parameter, layer in base_parameters(adapted):
        assert parameter.grad is None
        if layer is not None:
            a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
            assert torch.allclose(b.grad, 1.5 * full.get_parameter(name).grad @ a.detach().T, atol=1e-7)
            assert not a.grad.any()


def test_training_changes_the_adapter_only_and_without_it_the_model_is_the_base(base, adapted):
    trained = {name for name, p in adapted.named_parameters() if p.requires_grad}
    assert len(trained) == 2 * 2 * 2 and all(".lora_" in name for name in trained)  # A and B, two targets, two layers
    train(adapted)
    assert (logprobs(adapted) - logprobs(base)).abs().max() > 0.01
    with adapter_off(adapted):
        assert torch.equal(logprobs(adapted), logprobs(base))
    assert (logprobs(adapted) - logprobs(base)).abs().max() > 0.01
    assert all(torch.equal(p, base.get_parameter(name)) for name, p, _ in base_parameters(adapted))


def test_what_leaves_is_the_base_with_the_product_added_as_peft_merges_it(base, adapted):
    from peft import LoraConfig as PeftConfig
    from peft import get_peft_model

    train(adapted)
    left = {name: merged(parameter, layer) for name, parameter, layer in base_parameters(adapted)}
    wanted = get_peft_model(copy.deepcopy(base), PeftConfig(r=4, lora_alpha=6, target_modules=["q_proj", "down_proj"]))
    wanted.base_model.model.load_state_dict(adapted.state_dict())
    wanted = wanted.merge_and_unload()
    assert [(n, t.shape, t.dtype) for n, t in left.items()] == [(n, p.shape, p.dtype) for n, p in base.named_parameters()]
    changed = {n for n, t in left.items() if not torch.equal(t, base.get_parameter(n))}
    assert changed == {f"model.layers.{i}.{m}.weight" for i in (0, 1) for m in ("self_attn.q_proj", "mlp.down_proj")}
    for name, parameter in wanted.named_parameters():
        assert torch.allclose(left[name], parameter, atol=1e-6)
    plain = copy.deepcopy(base)
    plain.load_state_dict(left, strict=False)  # the head is the embedding
    assert torch.allclose(logprobs(plain), logprobs(adapted), atol=1e-5)


def test_a_model_without_adapter_is_sent_as_it_is(base):
    sent = [(name, merged(p, layer)) for name, p, layer in base_parameters(base)]
    assert [name for name, _ in sent] == [name for name, _ in base.named_parameters()]
    assert all(t.data_ptr() == base.get_parameter(name).data_ptr() for name, t in sent)


def test_the_sum_is_made_in_fp32_and_rounded_once(base):
    model = copy.deepcopy(base).to(torch.bfloat16)
    add_adapter(model, LORA, None, seed=7)
    (name, weight, layer) = next(entry for entry in base_parameters(model) if entry[2] is not None)
    a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    assert a.dtype == b.dtype == torch.bfloat16
    b.data.fill_(0.125)
    exact = weight.double() + 1.5 * b.double() @ a.double()
    assert torch.equal(merged(weight, layer), exact.to(torch.bfloat16)) and name == "model.layers.0.self_attn.q_proj.weight"


def test_only_the_last_layers_get_an_adapter(base):
    model = copy.deepcopy(base)
    add_adapter(model, LORA, 1, seed=0)
    assert {n.split(".lora_")[0] for n, p in model.named_parameters() if p.requires_grad} == {
        "model.layers.1.self_attn.q_proj",
        "model.layers.1.mlp.down_proj",
    }
    with pytest.raises(ValueError, match="model.train_layers=3 must be between 1 and the model's 2"):
        add_adapter(copy.deepcopy(base), LORA, 3, seed=0)


@pytest.mark.parametrize("target", ["q_prj", "lm_head", "embed_tokens", "input_layernorm"])
def test_a_target_that_is_no_linear_layer_of_the_decoder_is_refused(base, tiny, target):
    message = rf"model.lora.targets=\['q_proj', '{target}'\]: the decoder has no linear layer '{target}'; it has down_proj, gate_"
    lora = replace(LORA, targets=["q_proj", target])
    with pytest.raises(ConfigError, match=message):
        add_adapter(copy.deepcopy(base), lora, None, seed=0)
    with pytest.raises(ConfigError, match=message):  # of a local model, before anything starts
        check_files(composed("model=tiny", "env=vowels", f"model.lora={{rank: 4, alpha: 8, targets: [q_proj, {target}]}}"))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ("{rank: 0, alpha: 8, targets: [q_proj]}", "model.lora.rank=0 must be at least 1"),
        ("{rank: 4, alpha: 0, targets: [q_proj]}", "model.lora.alpha=0 must be above 0"),
        ("{rank: 4, alpha: 8, targets: []}", r"model.lora.targets=\[\] must name linear layers of the decoder"),
        ("{rank: 4, alpha: 8}", "missing values: model.lora.targets"),
        ("{rank: 4, alpha: 8, targets: [q_proj], dropout: 0.1}", "unknown key 'model.lora.dropout'"),
    ],
)
def test_bad_values_are_refused_before_anything_starts(values, message):
    with pytest.raises(ConfigError, match=message):
        composed("model=tiny", f"model.lora={values}")


def test_the_memory_plan_counts_gradients_and_moments_of_the_adapter_only(tiny):
    """tiny: 4 layers of width 256, MLP 768. q_proj 256 -> 256 and down_proj 768 -> 256 at rank 4: 4 x 512 and 4 x 1024."""
    assert adapter_parameters(tiny, LORA) == 4 * (4 * 512 + 4 * 1024)
    lora = "model.lora={rank: 4, alpha: 6, targets: [q_proj, down_proj]}"
    size = sum(p.stat().st_size for p in Path(tiny).glob("*.safetensors"))
    adapter = 4 * 6144 * 12  # gradients and two moments in fp32
    for overrides, wanted in [([], 4 * size), ([lora], size + adapter), ([lora, "algo.kl.coef=0.1"], size + adapter)]:
        (line,) = memory_estimate(composed("model=tiny", "env=vowels", f"model.path={tiny}", *overrides))
        assert f"learner rank {wanted / 2**30:.2f} GiB" in line


def test_a_checkpoint_of_an_adapter_fits_the_model_it_was_trained_on(tmp_path):
    lora = "model.lora={rank: 4, alpha: 6, targets: [q_proj]}"
    config = composed("model=tiny", lora)
    write_atomic(tmp_path / "run.json", json.dumps(asdict(first_state(config, config.model.path, []))))
    read_state(str(tmp_path), composed("model=tiny", lora), [])
    for other, name in [(["model.lora.rank=8"], "model.lora"), (["model.path=elsewhere"], "weights of model.path")]:
        with pytest.raises(ConfigError, match=f"is of a run with {name}="):
            read_state(str(tmp_path), composed("model=tiny", lora, *other), [])
