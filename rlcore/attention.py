"""Attention of a packed row: every reply sees its prompt and itself, and what nobody sees is not computed.

    row      [prompt | reply 1 | reply 2][prompt | reply]
    blocks    prompt -> prompt;  reply 1 -> prompt, reply 1;  reply 2 -> prompt, reply 2;  (prompt, reply) -> itself

One call of torch's fused attention for each block: a mask over the whole row would cost the square of its length, however short
its sequences are. A model whose attention cannot be replaced through `transformers`' attention interface gets that mask.
"""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from rlcore.batch import PROMPT, Row

PACKED = "rlcore_packed"  # the name under which `transformers` knows `packed_attention`


class Block(NamedTuple):
    """`length` tokens that see each other causally and, unless `prompt` is None, all tokens of the block of that number."""

    length: int
    prompt: int | None


def blocks_of(row: Row) -> list[Block]:
    """The row's blocks, in order. A lone reply is one block with its prompt."""
    blocks: list[Block] = []
    for _, family in groupby(zip(row.segments, row.branches, strict=True), key=itemgetter(0)):
        parts = [(branch, len(list(tokens))) for branch, tokens in groupby(family, key=itemgetter(1))]
        if parts[0][0] == PROMPT and len(parts) == 2:
            parts = [(PROMPT, parts[0][1] + parts[1][1])]
        prompt = len(blocks) if parts[0][0] == PROMPT else None
        blocks += [Block(length, None if branch == PROMPT else prompt) for branch, length in parts]
    return blocks


class Layout:
    """A row's blocks with the additive masks [length, prompt + length] of those that see a prompt, built once for all layers."""

    def __init__(self, row: Row, dtype: torch.dtype, device: Any) -> None:
        self.blocks = blocks_of(row)
        self.masks: list[Tensor | None] = []
        for length, prompt in self.blocks:
            if prompt is None:
                self.masks.append(None)
            else:
                width = self.blocks[prompt].length
                hidden = torch.full((length, length), -torch.inf, dtype=dtype, device=device).triu(1)
                self.masks.append(torch.cat([hidden.new_zeros(length, width), hidden], dim=1))


def packed_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
    scaling: float | None = None, layout: Layout | None = None, **kwargs: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """[1, heads, T, d] queries, [1, key-value heads, T, d] keys and values -> [1, T, heads, d].

    Without a layout (the model is used as any other) it is `transformers`' own. Raises ValueError for a layer whose window is
    shorter than a sequence.
    """
    if layout is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
    lengths = [block.length for block in layout.blocks]
    queries, keys, values = (x.split(lengths, dim=2) for x in (query, key, value))
    window, parts = kwargs.get("sliding_window"), []
    for i, (length, prompt) in enumerate(layout.blocks):
        k, v = keys[i], values[i]
        if prompt is not None:
            # No fused kernel of CUDA takes a mask and fewer key-value heads than heads: each head gets its own copy.
            repeats = query.shape[1] // key.shape[1]
            k, v = (torch.cat([x[prompt], x[i]], dim=2).repeat_interleave(repeats, dim=1) for x in (keys, values))
        if window is not None and k.shape[2] > window:
            raise ValueError(f"a sequence of {k.shape[2]} tokens is longer than the model's attention window of {window}")
        parts.append(
            scaled_dot_product_attention(
                queries[i],
                k,
                v,
                layout.masks[i],
                is_causal=prompt is None and length > 1,
                scale=scaling,
                enable_gqa=prompt is None,
            )
        )
    return torch.cat(parts, dim=2).transpose(1, 2), None


AttentionInterface.register(PACKED, packed_attention)
AttentionMaskInterface.register(PACKED, sdpa_mask)


def attention_mask(segments: Tensor, branches: Tensor) -> Tensor:
    """[1, 1, T, T] bool: True where query token i may attend to key token j (earlier, same segment, prompt or own branch)."""
    i = torch.arange(len(segments), device=segments.device)
    earlier = i[:, None] >= i[None, :]
    same = segments[:, None] == segments[None, :]
    visible = (branches[None, :] == PROMPT) | (branches[:, None] == branches[None, :])
    return (earlier & same & visible)[None, None]


def attention_arguments(model: Any, row: Row, device: Any) -> dict[str, Any]:
    """What tells the model's attention who sees whom in the row."""
    if model.config._attn_implementation == PACKED:
        # `transformers` makes a causal mask of its own unless it is given one with four dimensions; nobody reads this one.
        return {"attention_mask": torch.empty(1, 1, 1, 1, device=device), "layout": Layout(row, model.dtype, device)}
    segments, branches = torch.tensor(row.segments, device=device), torch.tensor(row.branches, device=device)
    return {"attention_mask": attention_mask(segments, branches)}
