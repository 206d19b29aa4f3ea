"""A learner's state on disk, without DeepSpeed: what comes back, and what is refused. test_learner.py has the real ranks."""

import random
from types import SimpleNamespace

import pytest
import torch

from rlcore.learner_state import restore, snapshot, write


def engine(rank: int = 0, seed: int = 0, frozen: bool = False, halves: bool = False) -> SimpleNamespace:
    """What ZeRO 0 leaves of an engine in fp32, or with `halves` in bfloat16, where the optimizer has fp32 copies."""
    torch.manual_seed(seed)
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2)).to(torch.bfloat16 if halves else torch.float32)
    module[0].requires_grad_(not frozen)
    trained = [p for p in module.parameters() if p.requires_grad]
    copies = [p.detach().float().requires_grad_() for p in trained] if halves else trained
    basic = torch.optim.AdamW(copies, lr=0.1)
    wrapper = SimpleNamespace(fp16_groups=[trained], fp32_groups=[copies]) if halves else basic
    return SimpleNamespace(
        module=module, optimizer=wrapper, basic_optimizer=basic, zero_optimization_stage=lambda: 0, global_rank=rank,
        device=torch.device("cpu"), global_steps=0, skipped_steps=0, masters=copies,
        lr_scheduler=torch.optim.lr_scheduler.LambdaLR(basic, lambda step: 1 / (1 + step)),
    )  # fmt: skip


def step(e: SimpleNamespace) -> None:
    for n, p in enumerate(e.masters):
        p.grad = torch.linspace(-1.0, 2.0 + n, p.numel()).reshape(p.shape)
    e.basic_optimizer.step()
    e.lr_scheduler.step()
    e.global_steps += 1


@pytest.mark.parametrize("halves", [False, True])
def test_a_new_learner_goes_on_as_the_old_one(tmp_path, halves):
    old, new = engine(halves=halves), engine(seed=1, halves=halves)
    step(old)
    kept = snapshot(old)
    step(new)
    step(new)  # what it learned before is forgotten
    draws = random.random(), torch.rand(1)
    step(old)  # the snapshot is a copy
    write(tmp_path, 0, *kept)
    restore(new, tmp_path)
    assert (new.global_steps, new.lr_scheduler.last_epoch, new.basic_optimizer.param_groups[0]["lr"]) == (1, 1, 0.05)
    assert all(torch.equal(a, b.to(a.dtype)) for a, b in zip(new.module.parameters(), new.masters, strict=True))
    step(new)
    assert all(torch.equal(a, b) for a, b in zip(new.masters, old.masters, strict=True))
    assert (random.random(), torch.rand(1)) == draws


def test_a_snapshot_before_the_first_step_takes_the_moments_away(tmp_path):
    old, new = engine(), engine(seed=1)
    write(tmp_path, 0, *snapshot(old))
    step(new)
    restore(new, tmp_path)
    step(new)
    step(old)
    assert all(torch.equal(a, b) for a, b in zip(new.masters, old.masters, strict=True))


def test_a_rank_that_was_not_there_keeps_its_own_random_numbers(tmp_path):
    write(tmp_path, 0, *snapshot(engine()))
    assert "0.weight" not in str(snapshot(engine(rank=1))[0].keys())  # without ZeRO the first rank has everything
    second = engine(rank=1, seed=5)
    before = torch.get_rng_state()
    restore(second, tmp_path)
    assert torch.equal(torch.get_rng_state(), before)


def test_what_does_not_fit_is_refused(tmp_path):
    with pytest.raises(RuntimeError, match="holds no rank-"):
        restore(engine(), tmp_path)
    tensors, metadata = snapshot(engine(frozen=True))
    write(tmp_path, 0, tensors, metadata)
    with pytest.raises(RuntimeError, match=r"other trained parameters: \['0.bias', '0.weight'\] \(2 differ\)"):
        restore(engine(), tmp_path)
    cut = {name: t[:3] if name == "weight:0:1.weight" else t for name, t in tensors.items()}
    write(tmp_path, 0, cut, metadata)
    with pytest.raises(RuntimeError, match=r"3 of 8 elements of 1.weight \(weight\) from 0 on"):
        restore(engine(frozen=True), tmp_path)


def test_a_disk_that_does_not_take_it_is_an_oserror(tmp_path):
    (tmp_path / "rank-00000.safetensors").mkdir()
    with pytest.raises(OSError, match="rank-00000.safetensors"):
        write(tmp_path, 0, *snapshot(engine()))
