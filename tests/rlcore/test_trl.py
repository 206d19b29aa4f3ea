"""A second opinion: TRL's published GRPO loss on the same completions, with a plain padded forward of a real model.

TRL's code is called as it stands, `GRPOTrainer._compute_loss`, on an object that has the attributes it reads.
"""

import math
import sys
from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch

from rlcore.batch import Sample, build_rows, token_weights
from rlcore.kl import KL
from rlcore.loss import PolicyLoss, TrainedTokens, token_logprobs
from rlcore.types import Sequence

pytestmark = pytest.mark.slow  # importing TRL takes seconds

PROMPTS = [[5, 6, 7], [5, 6, 7], [30, 31, 32, 33, 34]]
REPLIES = [[8, 9], [10, 11, 12, 13, 14, 15, 16], [40, 41, 42, 43]]
ADVANTAGES = [1.5, -0.75, -0.25]
LONGEST = 16


@pytest.fixture(scope="module")
def trainer():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "vllm", None)  # its loss does not need an engine, whose import takes many seconds more
        from trl.trainer.grpo_trainer import GRPOTrainer
    return GRPOTrainer


def padded(rows: list[list], left: bool, fill) -> torch.Tensor:
    width = max(map(len, rows))
    return torch.tensor([[fill] * (width - len(r)) + r if left else r + [fill] * (width - len(r)) for r in rows])


def full_logprobs(model, ids: torch.Tensor, mask: torch.Tensor, keep: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities and entropies of the last `keep` columns, from full logits of the padded batch."""
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    logits = model(input_ids=ids, attention_mask=mask, position_ids=positions).logits[:, -keep - 1 : -1]
    logp = torch.log_softmax(logits, -1)
    return logp.gather(-1, ids[:, -keep:, None])[..., 0], -(logp.exp() * logp).sum(-1)


def sampled_logprobs(model) -> list[list[float]]:
    """The sampler's: the model's own, shifted so that ratios lie on both sides of both bounds."""
    result = []
    for prompt, reply in zip(PROMPTS, REPLIES, strict=True):
        ids = torch.tensor([prompt + reply])
        with torch.no_grad():
            own, _ = full_logprobs(model, ids, torch.ones_like(ids), len(reply))
        result.append([min(-1e-3, float(lp) + 0.45 * math.sin(2.0 * j + len(reply))) for j, lp in enumerate(own[0])])
    return result


def theirs(trainer, model, sampled, loss_type: str, loss: PolicyLoss) -> torch.Tensor:
    completion_mask = padded([[1] * len(r) for r in REPLIES], False, 0)
    high = 1 + loss.clip_high if loss_type == "cispo" else loss.clip_high  # there an absolute bound, with none below
    config = SimpleNamespace(
        aux_loss_enabled=False, top_entropy_quantile=1.0, off_policy_mask_threshold=None, importance_sampling_level=loss.ratio,
        beta=loss.kl.coef, loss_type=loss_type, epsilon_low=loss.clip_low, epsilon_high=high, use_vllm=False,
        model=SimpleNamespace(training=True), current_gradient_accumulation_steps=1, max_completion_length=LONGEST,
        _entropy_bonus_enabled=False, _metrics={"train": defaultdict(list)},
        args=SimpleNamespace(delta=loss.dual_clip, use_bias_correction_kl=False, steps_per_generation=1),
        accelerator=SimpleNamespace(num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x),
        _get_per_token_logps_and_entropies=lambda m, ids, mask, keep, **_: (*full_logprobs(m, ids, mask, keep), None),
    )  # fmt: skip
    inputs = {
        "prompt_ids": padded(PROMPTS, True, 0),
        "prompt_mask": padded([[1] * len(p) for p in PROMPTS], True, 0),
        "completion_ids": padded(REPLIES, False, 0),
        "completion_mask": completion_mask,
        "advantages": torch.tensor(ADVANTAGES),
        "old_per_token_logps": padded(sampled, False, 0.0),
        "ref_per_token_logps": padded([[-4.0] * len(r) for r in REPLIES], False, 0.0),
        "num_items_in_batch": completion_mask.sum(),
    }
    return trainer._compute_loss(config, model, inputs)


def ours(model, sampled, aggregation: str, loss: PolicyLoss) -> float:
    """The summed loss of packed rows with shared prompts, its gradient accumulated in the model."""
    samples = []
    for number, (prompt, reply) in enumerate(zip(PROMPTS, REPLIES, strict=True)):
        s = Sequence()
        s.append_context(prompt)
        s.append_sampled(reply, sampled[number], [0] * len(reply), "stop")
        samples.append(Sample(s, ADVANTAGES[number], number))
    total = 0.0
    for row in build_rows(samples, token_weights(samples, aggregation, LONGEST), 16):
        logprobs, _ = token_logprobs(model, row, 1.0)
        value, _ = loss(logprobs, TrainedTokens.of(row, "cpu", torch.full_like(logprobs, -4.0).detach()))
        value.backward()
        total += float(value.detach())
    return total


def gradient(model) -> torch.Tensor:
    result = torch.cat([p.grad.flatten() for p in model.parameters()])
    model.zero_grad()
    return result


@pytest.mark.parametrize(
    ("loss_type", "aggregation", "change"),
    [
        ("grpo", "sequence_mean", {}),
        ("grpo", "trajectory_mean", {}),
        ("bnpo", "token_mean", {}),
        ("dapo", "token_mean", {}),
        ("dr_grpo", "constant", {}),
        ("grpo", "sequence_mean", {"ratio": "sequence", "clip_low": 0.02, "clip_high": 0.04}),
        ("dapo", "token_mean", {"ratio": "sequence"}),
        ("dr_grpo", "constant", {"dual_clip": 1.3}),
        ("grpo", "sequence_mean", {"kl": KL(0.1, "k3")}),
        ("cispo", "token_mean", {"surrogate": "cispo", "clip_low": 1.0, "clip_high": 0.28}),
    ],
)
def test_loss_and_gradient_agree(trainer, model, loss_type, aggregation, change):
    loss = PolicyLoss(**{"clip_low": 0.2, "clip_high": 0.28, "dual_clip": None, **change})
    sampled = sampled_logprobs(model)
    model.zero_grad()
    value = theirs(trainer, model, sampled, loss_type, loss)
    value.backward()
    wanted = gradient(model)
    assert ours(model, sampled, aggregation, loss) == pytest.approx(float(value.detach()), rel=1e-5, abs=1e-6)
    torch.testing.assert_close(gradient(model), wanted, rtol=1e-5, atol=1e-5 * float(wanted.abs().max()))
