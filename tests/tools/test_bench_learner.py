import os
import random

import pytest

from rlcore.types import Sequence
from tools.bench_learner import load, packed_backward, padded_backward, process, ragged, rows_backward, rows_of


@pytest.fixture(scope="module")
def model():
    return load("data/models/tiny", threads=1)


def gradients(model, backward):
    model.zero_grad()
    backward()
    return [p.grad.clone() for p in model.parameters()]


def largest_difference(one, other):
    """Of the gradients, relative to the largest entry of each parameter's."""
    return max(((a - b).abs().max() / a.abs().max()).item() for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("row_tokens", [64, 4096])
@pytest.mark.parametrize("micro_batch", [1, 4])
def test_packed_rows_and_the_padded_loop_compute_the_same_gradient(model, row_tokens, micro_batch):
    sequences = ragged(random.Random(0), 4)
    ours = gradients(model, lambda: packed_backward(model, sequences, row_tokens))
    plain = gradients(model, lambda: padded_backward(model, sequences, micro_batch))
    assert largest_difference(ours, plain) < 1e-5


def test_a_side_starts_with_its_own_environment():
    with process({"RLCORE_BENCH_SIDE": "ours"}) as ours, process({}) as plain:
        assert [p.submit(os.getenv, "RLCORE_BENCH_SIDE").result() for p in (ours, plain)] == ["ours", None]
    assert "RLCORE_BENCH_SIDE" not in os.environ


def test_a_shared_prompt_is_stored_once_and_computes_the_same_gradient(model):
    rng = random.Random(1)
    prompt = [rng.randrange(100, 400) for _ in range(30)]
    group = [Sequence.demonstrated(prompt, [rng.randrange(100, 400) for _ in range(9)]) for _ in range(3)]
    together = rows_of(group, 4096)
    assert [len(row) for row in together] == [30 + 3 * 9]
    alone = [row for s in group for row in rows_of([s], 4096)]
    assert [len(row) for row in alone] == [39] * 3
    for row in alone:
        row.weights = [w / 3 for w in row.weights]
    one, other = (gradients(model, lambda rows=rows: rows_backward(model, rows)) for rows in (together, alone))
    assert largest_difference(one, other) < 1e-5
