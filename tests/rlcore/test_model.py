"""Which parameters are trained."""

import pytest
import torch

from rlcore.model import train_last_layers

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
