"""Losses against hand loops on a tiny random Llama (2 layers, 64 tokens), in fp32."""

import math

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.modeling_outputs import CausalLMOutput

from rlcore.batch import Sample, build_rows, token_weights
from rlcore.loss import PolicyLoss, attention_mask, sft_loss, token_logprobs
from rlcore.types import Sequence


def make(prompt: list[int], reply: list[int], rollout: float = -1.0) -> Sequence:
    s = Sequence()
    s.append_context(prompt)
    s.append_sampled(reply, [rollout] * len(reply), [0] * len(reply), "stop")
    return s


def by_hand(model, sequence: Sequence, temperature: float = 1.0) -> list[float]:
    """log p of each sampled token, one plain forward of this sequence alone, softmax written out."""
    with torch.no_grad():
        logits = model(torch.tensor([sequence.token_ids])).logits[0].double() / temperature
    result = []
    for t, (token, mask) in enumerate(zip(sequence.token_ids, sequence.loss_mask, strict=True)):
        if mask:
            result.append(float(logits[t - 1, token]) - math.log(float(logits[t - 1].exp().sum())))
    return result


def test_the_mask_lets_a_token_see_its_prompt_and_its_own_branch_only():
    #            segment 0: prompt prompt | branch 0 | branch 1 ;  segment 1: prompt
    segments, branches = torch.tensor([0, 0, 0, 0, 1]), torch.tensor([-1, -1, 0, 1, -1])
    expected = [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 0, 1, 0], [0, 0, 0, 0, 1]]
    assert attention_mask(segments, branches)[0, 0].int().tolist() == expected


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_packed_shared_rows_give_each_token_what_it_gets_alone(model, temperature):
    sequences = [make([5, 6, 7], [8, 9]), make([5, 6, 7], [10, 11, 12]), make([20, 21], [22]), make([5, 6, 7], [13])]
    samples = [Sample(s, 1.0, i) for i, s in enumerate(sequences)]
    (row,) = build_rows(samples, [1.0] * 4, max_tokens=100)
    with torch.no_grad():
        logprobs, entropy = token_logprobs(model, row, temperature)
    alone = [lp for s in sequences for lp in by_hand(model, s, temperature)]
    wanted = dict(zip([8, 9, 10, 11, 12, 22, 13], alone, strict=True))
    assert dict(zip(row.targets, logprobs.tolist(), strict=True)) == pytest.approx(wanted, abs=1e-5)
    assert (entropy > 0).all() and (entropy < math.log(64) + 1e-5).all()


class Scaled(LlamaForCausalLM):
    """Scales its hidden states on the way to the head, as MiniCPM does."""

    def forward(self, input_ids):
        hidden = self.model(input_ids).last_hidden_state
        return CausalLMOutput(logits=self.lm_head(hidden / (self.config.hidden_size / self.config.dim_model_base)))


def test_a_family_that_scales_hidden_states_before_the_head_is_scored_as_itself(model):
    scaled = Scaled(LlamaConfig(**{**model.config.to_dict(), "dim_model_base": 8}))
    sequence = make([5, 6, 7], [8, 9])
    (row,) = build_rows([Sample(sequence, 1.0, 0)], [1.0], max_tokens=100)
    with torch.no_grad():
        logprobs, _ = token_logprobs(scaled, row, 1.0)
    assert logprobs.tolist() == pytest.approx(by_hand(scaled, sequence), abs=1e-5)


def gradient(model, samples: list[Sample], weights: list[float], max_tokens: int) -> torch.Tensor:
    model.zero_grad()
    loss = PolicyLoss()
    for row in build_rows(samples, weights, max_tokens):
        logprobs, _ = token_logprobs(model, row, 1.0)
        value, _ = loss(logprobs, torch.tensor(row.rollout_logprobs), torch.tensor(row.advantages), torch.tensor(row.weights))
        value.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


@pytest.mark.parametrize("aggregation", ["token_mean", "trajectory_mean", "constant"])
def test_the_gradient_does_not_depend_on_how_the_window_is_cut(model, aggregation):
    prompts = ([5, 6, 7], [30, 31, 32, 33])
    sequences = [make(prompts[i % 2], [(7 * i + j) % 60 for j in range(1 + 2 * i)], rollout=-4.0) for i in range(6)]
    samples = [Sample(s, (-1.0) ** i * (0.5 + i), i) for i, s in enumerate(sequences)]
    weights = token_weights(samples, aggregation, 16)
    whole = gradient(model, samples, weights, 1000)
    for budget in (40, 16, 1):
        torch.testing.assert_close(gradient(model, samples, weights, budget), whole, rtol=1e-5, atol=1e-7)


def test_a_longer_micro_batch_split_is_not_a_mean_of_means(model):
    """Micro-batches of 11 and 2 tokens: the loss is the mean over 13 tokens."""
    a, b = make([1], list(range(2, 13))), make([2], [40, 41])
    samples = [Sample(a, 1.0, 0), Sample(b, 1.0, 1)]
    total = 0.0
    for row in build_rows(samples, token_weights(samples, "token_mean"), 1):
        with torch.no_grad():
            total += float(sft_loss(token_logprobs(model, row, 1.0)[0], torch.tensor(row.weights)))
    assert total == pytest.approx(-(sum(by_hand(model, a)) + sum(by_hand(model, b))) / 13, abs=1e-5)


def test_clipping_by_hand():
    #              ratio 1.5, A>0 -> 1.28 ; ratio 1.5, A<0 -> -1.5 ; ratio 0.5, A<0 -> -0.8 ; ratio 20, A<0 -> dual clip -10
    logprobs = torch.tensor([math.log(1.5), math.log(1.5), math.log(0.5), math.log(20.0)], requires_grad=True)
    advantages = torch.tensor([1.0, -1.0, -1.0, -1.0])
    value, removed = PolicyLoss(0.2, 0.28, 10.0)(logprobs, torch.zeros(4), advantages, torch.ones(4))
    assert float(value) == pytest.approx(-(1.28 - 1.5 - 0.8 - 10.0), abs=1e-5)
    assert removed.tolist() == [True, False, True, True]
    value.backward()
    assert logprobs.grad.tolist() == pytest.approx([0.0, 1.5, 0.0, 0.0], abs=1e-5)


def test_the_first_step_has_ratio_one_and_pushes_towards_positive_advantages():
    logprobs = torch.tensor([-1.0, -2.0], requires_grad=True)
    value, removed = PolicyLoss()(logprobs, logprobs.detach().clone(), torch.tensor([2.0, -3.0]), torch.tensor([0.5, 0.5]))
    value.backward()
    assert float(value) == pytest.approx(0.5) and not removed.any()
    assert logprobs.grad.tolist() == pytest.approx([-1.0, 1.5])


@pytest.mark.parametrize("log_ratio", [100.0, -100.0])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_an_enormous_ratio_stays_finite_in_value_and_gradient(log_ratio, advantage):
    logprobs = torch.tensor([log_ratio], requires_grad=True)
    value, _ = PolicyLoss()(logprobs, torch.zeros(1), torch.tensor([advantage]), torch.ones(1))
    value.backward()
    assert math.isfinite(float(value)) and math.isfinite(float(logprobs.grad))


def test_chunked_head_with_recomputation_equals_one_piece(model, monkeypatch):
    samples = [Sample(make([3, 4], list(range(5, 45)), -4.0), 1.0, 0)]
    weights = token_weights(samples, "token_mean")
    whole = gradient(model, samples, weights, 1000)
    monkeypatch.setattr("rlcore.loss.LOGIT_CHUNK", 7)
    torch.testing.assert_close(gradient(model, samples, weights, 1000), whole, rtol=1e-5, atol=1e-7)
