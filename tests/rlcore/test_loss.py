"""Losses against hand loops on a tiny random Llama (2 layers, 64 tokens), in fp32."""

import math

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.modeling_outputs import CausalLMOutput

from rlcore.batch import Sample, build_rows, spread_rows, token_weights, whole_row
from rlcore.correction import Correction
from rlcore.kl import KL
from rlcore.learner import check_on_policy
from rlcore.loss import PolicyLoss, TrainedTokens, sft_loss, token_logprobs
from rlcore.types import Sequence

LOSS = PolicyLoss()


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


def gradient(model, samples: list[Sample], weights: list[float], max_tokens: int, loss: PolicyLoss = LOSS) -> torch.Tensor:
    model.zero_grad()
    for row in build_rows(samples, weights, max_tokens):
        logprobs, entropy = token_logprobs(model, row, 1.0, loss.entropy_coef > 0)
        reference = torch.full_like(logprobs, -4.0) if loss.kl.in_loss else None
        value, _ = loss(logprobs, TrainedTokens.of(row, "cpu", reference), entropy)
        value.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


SEQUENCE_LEVEL = PolicyLoss(clip_low=0.9, clip_high=9.0, ratio="sequence", correction=Correction("geometric_mask", 0.3, 3.0))
WITH_EXTRAS = PolicyLoss(old_logprobs="recomputed", correction=Correction("truncate"), kl=KL(0.1, "k2"), entropy_coef=0.1)


@pytest.mark.parametrize(
    ("aggregation", "loss"),
    [
        ("token_mean", PolicyLoss()),
        ("trajectory_mean", PolicyLoss()),
        ("constant", PolicyLoss()),
        ("sequence_mean", SEQUENCE_LEVEL),
        ("token_mean", WITH_EXTRAS),
    ],
)
def test_the_gradient_does_not_depend_on_how_the_window_is_cut(model, aggregation, loss):
    prompts = ([5, 6, 7], [30, 31, 32, 33])
    sequences = [make(prompts[i % 2], [(7 * i + j) % 60 for j in range(1 + 2 * i)], rollout=-4.0) for i in range(6)]
    samples = [Sample(s, (-1.0) ** i * (0.5 + i), i) for i, s in enumerate(sequences)]
    weights = token_weights(samples, aggregation, 16)
    whole = gradient(model, samples, weights, 1000, loss)
    assert whole.norm() > 1e-2
    for budget in (40, 16, 1):
        difference = gradient(model, samples, weights, budget, loss) - whole
        assert difference.norm() < 1e-5 * whole.norm()


def test_poison_in_every_masked_slot_and_a_sequence_without_a_sampled_token_change_nothing(model):
    def conversation(poison: float) -> Sequence:
        s = make([5, 6, 7], [8, 9])
        s.append_context([10, 11])
        s.append_sampled([12], [-3.0], [0], "stop")
        s.rollout_logprobs = [lp if m else poison for lp, m in zip(s.rollout_logprobs, s.loss_mask, strict=True)]
        return s

    clean = [Sample(conversation(0.0), 1.0, 0)]
    silent = Sequence()
    silent.append_context([1, 2, 3])
    poisoned = [Sample(conversation(math.nan), 1.0, 0), Sample(silent, math.nan, 1)]
    wanted = gradient(model, clean, token_weights(clean, "trajectory_mean"), 100)
    got = gradient(model, poisoned, token_weights(poisoned, "trajectory_mean"), 1)
    assert torch.equal(got, wanted) and torch.isfinite(wanted).all()


def test_a_filler_row_has_a_gradient_of_exact_zeros(model):
    model.zero_grad()
    ((filler,),) = [share for share in spread_rows([whole_row([5, 6, 7])], 2) if share[0].filler]
    value, _ = PolicyLoss()(token_logprobs(model, filler, 1.0)[0], TrainedTokens.of(filler, "cpu"))
    value.backward()
    assert float(value.detach()) == 0.0 and all((p.grad == 0).all() for p in model.parameters())


def test_scored_again_without_a_gradient_a_row_has_the_same_log_probabilities(model):
    """Ratio 1 and KL 0 before the first update, to 1e-6 in fp32."""
    (row,) = build_rows([Sample(make([5, 6], [7, 8, 9]), 1.0, 0)], [1.0], 100)
    with torch.no_grad():
        before, _ = token_logprobs(model, row, 0.7)
    logprobs, _ = token_logprobs(model, row, 0.7)
    assert torch.exp(logprobs - before).sub(1).abs().max() < 1e-6
    assert KL(1.0, "k3").estimate(logprobs, before)[0].abs().max() < 1e-6
    check_on_policy(logprobs.detach(), before, "float32")
    with pytest.raises(RuntimeError, match="must be 1, but log-probabilities differ by 0.001.*float32 allows 1e-05"):
        check_on_policy(logprobs.detach() + 1e-3, before, "float32")


def test_a_longer_micro_batch_split_is_not_a_mean_of_means(model):
    """Micro-batches of 11 and 2 tokens: the loss is the mean over 13 tokens."""
    a, b = make([1], list(range(2, 13))), make([2], [40, 41])
    samples = [Sample(a, 1.0, 0), Sample(b, 1.0, 1)]
    total = 0.0
    for row in build_rows(samples, token_weights(samples, "token_mean"), 1):
        with torch.no_grad():
            total += float(sft_loss(token_logprobs(model, row, 1.0)[0], torch.tensor(row.weights)))
    assert total == pytest.approx(-(sum(by_hand(model, a)) + sum(by_hand(model, b))) / 13, abs=1e-5)


def test_the_entropys_gradient_is_that_of_full_logits(model):
    sequence = make([5, 6, 7], [8, 9])
    (row,) = build_rows([Sample(sequence, 1.0, 0)], [1.0], max_tokens=100)

    def gradient_of(entropy):
        model.zero_grad()
        entropy.sum().backward()
        return torch.cat([p.grad.flatten() for p in model.parameters()])

    logp = torch.log_softmax(model(torch.tensor([sequence.token_ids])).logits[0, 2:4] / 0.6, -1)
    wanted = gradient_of(-(logp.exp() * logp).sum(-1))
    torch.testing.assert_close(gradient_of(token_logprobs(model, row, 0.6, True)[1]), wanted, rtol=1e-4, atol=1e-6)
    assert not token_logprobs(model, row, 0.6)[1].requires_grad


def test_chunked_head_with_recomputation_equals_one_piece(model, monkeypatch):
    samples = [Sample(make([3, 4], list(range(5, 45)), -4.0), 1.0, 0)]
    weights = token_weights(samples, "token_mean")
    whole = gradient(model, samples, weights, 1000)
    monkeypatch.setattr("rlcore.head.LOGIT_CHUNK", 7)
    torch.testing.assert_close(gradient(model, samples, weights, 1000), whole, rtol=1e-5, atol=1e-7)
