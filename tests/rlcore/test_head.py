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


def test_bfloat16_is_summed_in_float32():
    torch.manual_seed(0)
    head, hidden = torch.nn.Linear(16, 4000, bias=False), torch.randn(40, 16)
    targets = torch.arange(40)
    wanted = Head(head)(hidden, targets, 1.0, False)
    got = Head(head.to(torch.bfloat16))(hidden.to(torch.bfloat16), targets, 1.0, False)
    for x, y in zip(got, wanted, strict=True):
        assert x.dtype == torch.float32
        torch.testing.assert_close(x, y, rtol=0, atol=0.05)


def test_a_bias_is_refused():
    with pytest.raises(ValueError, match="bias"):
        Head(torch.nn.Linear(4, 9))
