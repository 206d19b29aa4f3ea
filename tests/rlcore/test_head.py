"""The head's log-probabilities, entropies and written-out gradients against autograd on full logits."""

import pytest
import torch

from rlcore.head import Head


def by_autograd(hidden, weight, targets, temperature):
    """[N] log-probabilities and entropies from [N, V] logits in one piece."""
    log_p = torch.log_softmax(hidden @ weight.t() / temperature, dim=-1)
    return log_p.gather(1, targets[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)


def values_and_gradients(function, parts: str):
    """Both outputs, and the gradients of a weighted sum of those that `parts` names."""
    torch.manual_seed(3)
    hidden, weight = torch.randn(45, 8, requires_grad=True), torch.randn(50, 8, requires_grad=True)
    targets, scales = torch.randint(50, (45,)), torch.randn(2, 45)
    logprobs, entropy = function(hidden, weight, targets, 0.6)
    total = (scales[0] * logprobs).sum() * ("p" in parts) + ((scales[1] * entropy).sum() if "h" in parts else 0.0)
    total.backward()
    return logprobs.detach(), entropy.detach(), hidden.grad, weight.grad


@pytest.mark.parametrize("chunk", [1, 16, 44, 45, 1000])
@pytest.mark.parametrize("parts", ["p", "h", "ph"])
def test_values_and_gradients_are_those_of_full_logits(monkeypatch, chunk, parts):
    monkeypatch.setattr("rlcore.head.LOGIT_CHUNK", chunk)

    def ours(hidden, weight, targets, temperature):
        head = torch.nn.Linear(8, 50, bias=False)
        head.weight = torch.nn.Parameter(weight.detach())
        result = Head(head)(hidden, targets, temperature, "h" in parts)
        head.weight.register_hook(lambda g: setattr(weight, "grad", g))
        return result

    for got, wanted in zip(values_and_gradients(ours, parts), values_and_gradients(by_autograd, parts), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


def test_a_token_without_a_weight_has_a_gradient_of_exact_zeros_and_a_fixed_head_has_none():
    head = torch.nn.Linear(4, 9, bias=False).requires_grad_(False)
    hidden = torch.randn(3, 4, requires_grad=True)
    logprobs, entropy = Head(head)(hidden, torch.tensor([1, 2, 3]), 1.0, False)
    assert not entropy.requires_grad
    (logprobs * torch.tensor([1.0, 0.0, 2.0])).sum().backward()
    assert (hidden.grad[1] == 0).all() and (hidden.grad[0] != 0).any() and head.weight.grad is None


def test_logits_in_bfloat16_have_a_softmax_in_float32():
    """A log-probability of -8 itself rounded to bfloat16 would be off by up to 0.03."""
    torch.manual_seed(0)
    head, hidden = torch.nn.Linear(16, 4000, bias=False).bfloat16(), torch.randn(40, 16).bfloat16()
    targets = torch.arange(40)
    log_p = torch.log_softmax((hidden @ head.weight.t()).float(), dim=-1)
    logprobs, entropy = Head(head)(hidden, targets, 1.0, False)
    assert logprobs.dtype == entropy.dtype == torch.float32
    torch.testing.assert_close(logprobs, log_p[range(40), targets], rtol=0, atol=1e-5)
    torch.testing.assert_close(entropy, -(log_p.exp() * log_p).sum(-1), rtol=0, atol=1e-4)


@pytest.mark.parametrize("chunk", [1, 2000])
def test_the_gradient_of_a_bfloat16_head_is_summed_over_chunks_in_float32(monkeypatch, chunk):
    """1,000 tokens with the same gradient of 1/2: in bfloat16 their sum would stop at 128, where a half is lost in rounding."""
    monkeypatch.setattr("rlcore.head.LOGIT_CHUNK", chunk)
    head = torch.nn.Linear(1, 2, bias=False).bfloat16()
    torch.nn.init.zeros_(head.weight)
    logprobs, _ = Head(head)(torch.ones(1000, 1).bfloat16(), torch.zeros(1000, dtype=torch.long), 1.0, False)
    logprobs.sum().backward()
    assert head.weight.grad.tolist() == [[500.0], [-500.0]]


def test_a_bias_is_refused():
    with pytest.raises(ValueError, match="bias"):
        Head(torch.nn.Linear(4, 9))
