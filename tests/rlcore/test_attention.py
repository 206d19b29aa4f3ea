"""Attention of packed rows, block by block, against one mask over the whole row."""

import pytest
import torch

from rlcore.attention import PACKED, Block, Layout, attention_mask, blocks_of, packed_attention
from rlcore.batch import Row, Sample, build_rows, token_weights, whole_row
from rlcore.loss import token_logprobs
from rlcore.types import Sequence


def test_the_mask_lets_a_token_see_its_prompt_and_its_own_branch_only():
    #            segment 0: prompt prompt | branch 0 | branch 1 ;  segment 1: prompt
    segments, branches = torch.tensor([0, 0, 0, 0, 1]), torch.tensor([-1, -1, 0, 1, -1])
    expected = [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 0, 1, 0], [0, 0, 0, 0, 1]]
    assert attention_mask(segments, branches)[0, 0].int().tolist() == expected


@pytest.mark.parametrize(
    ("segments", "branches", "wanted"),
    [
        ([0, 0, 0, 0, 0], [-1, -1, 0, 1, 1], [Block(2, None), Block(1, 0), Block(2, 0)]),
        ([0, 0, 0], [-1, 0, 0], [Block(3, None)]),  # a lone reply: one causal block
        ([0, 0, 1, 1, 1], [-1, 0, -1, 0, 1], [Block(2, None), Block(1, None), Block(1, 1), Block(1, 1)]),
        ([0, 0], [-1, -1], [Block(2, None)]),
    ],
)  # fmt: skip
def test_a_rows_blocks(segments, branches, wanted):
    assert blocks_of(Row(segments=segments, branches=branches, token_ids=[0] * len(segments))) == wanted


def test_a_scored_sequence_is_one_block():
    assert blocks_of(whole_row([1, 2, 3])) == [Block(3, None)]


def row() -> Row:
    """Two prompts, of three replies and one; a prompt of a single token with two."""
    parts = [([5, 6, 7], [8, 9]), ([5, 6, 7], [10, 11, 12]), ([20, 21], [22]), ([5, 6, 7], [13]), ([30], [31, 32]), ([30], [33])]
    samples = [Sample(Sequence.demonstrated(*part), 1.0, i) for i, part in enumerate(parts)]
    (packed,) = build_rows(samples, token_weights(samples, "token_mean"), 100)
    return packed


def test_blocks_and_the_whole_mask_give_the_same_values_and_gradients(model):
    results = {}
    for name in ("sdpa", PACKED):
        model.config._attn_implementation = name
        model.zero_grad()
        logprobs, _ = token_logprobs(model, row(), 0.8)
        (logprobs * torch.arange(len(logprobs))).sum().backward()
        results[name] = [logprobs.detach(), *(p.grad.clone() for p in model.parameters())]
    for got, wanted in zip(results[PACKED], results["sdpa"], strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


def test_used_as_any_other_model_it_takes_the_masks_any_other_takes(model):
    ids, mask = torch.tensor([[5, 6, 7, 8], [9, 10, 0, 0]]), torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    with torch.no_grad():
        wanted = model(ids, attention_mask=mask).logits
        model.config._attn_implementation = PACKED
        got = model(ids, attention_mask=mask).logits
    torch.testing.assert_close(got[mask.bool()], wanted[mask.bool()], rtol=0, atol=1e-6)


def test_no_block_has_both_a_mask_and_grouped_heads(monkeypatch):
    """CUDA has no fused kernel for the two together: scores of the whole block would exist in fp32."""
    calls = []

    def spy(query, key, value, mask, enable_gqa=False, **kwargs):
        calls.append((mask is not None, enable_gqa, key.shape[1]))
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, mask, enable_gqa=enable_gqa, **kwargs)

    monkeypatch.setattr("rlcore.attention.scaled_dot_product_attention", spy)
    layout, tokens = Layout(row(), torch.float32, "cpu"), len(row())
    query, key = torch.randn(1, 4, tokens, 8), torch.randn(1, 2, tokens, 8)
    packed_attention(None, query, key, key, None, layout=layout)
    assert sorted(set(calls)) == [(False, True, 2), (True, False, 4)]


def test_a_sequence_beyond_a_sliding_window_is_refused():
    layout, heads = Layout(whole_row([1, 2, 3]), torch.float32, "cpu"), torch.randn(1, 2, 3, 4)
    packed_attention(None, heads, heads, heads, None, layout=layout, sliding_window=3)
    with pytest.raises(ValueError, match="3 tokens is longer than the model's attention window of 2"):
        packed_attention(None, heads, heads, heads, None, layout=layout, sliding_window=2)


def test_layers_computed_again_in_backward_give_the_same_gradients(model):
    model.config._attn_implementation = PACKED
    gradients = []
    for checkpointed in (False, True):
        model.zero_grad()
        model.train()
        if checkpointed:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        token_logprobs(model, row(), 1.0)[0].sum().backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    model.gradient_checkpointing_disable()
    for got, wanted in zip(*gradients, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)
