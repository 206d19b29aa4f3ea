"""The real DeepSpeed learner: data parallel sizes and ZeRO stages give one answer, checkpoints and exports come back equal."""

import asyncio
from types import SimpleNamespace

import pytest
import torch

from rlcore.batch import Sample, build_rows, spread_rows, token_weights, whole_row
from rlcore.checkpoint import Checkpoints, RunState, load_checkpoint
from rlcore.kl import KL
from rlcore.loop import combine
from rlcore.loss import PolicyLoss
from rlcore.types import Sequence
from tests.rlcore.conftest import learner_options, start_learners

pytestmark = [pytest.mark.slow, pytest.mark.timeout(700)]

PROBE = [list(range(100, 140))]
LOSS = PolicyLoss()
BUDGETS = {0: 24, 2: 32, 3: 64}  # by ZeRO stage; 64 packs everything into one row, so that the second rank gets a filler


def window() -> list[Sample]:
    """Ragged replies of two groups, five trajectories."""
    samples = []
    for i, (prompt, length) in enumerate([(20, 3), (20, 11), (20, 1), (9, 7), (9, 2)]):
        s = Sequence()
        s.append_context(list(range(300, 300 + prompt)))
        s.append_sampled(list(range(40 + i, 40 + i + length)), [-7.0] * length, [0] * length, "stop")
        samples.append(Sample(s, (-1.0) ** i * (1 + i / 3), i))
    return samples


async def steps(actors, count: int, budget: int = 64) -> list[dict[str, float]]:
    samples = window()
    shares = spread_rows(build_rows(samples, token_weights(samples, "trajectory_mean"), budget), len(actors))
    figures = []
    for _ in range(count):
        results = await asyncio.gather(*(a.train_step.remote(rows, PolicyLoss()) for a, rows in zip(actors, shares, strict=True)))
        figures.append({"loss": sum(r["loss"] for r in results), "grad_norm": results[0]["grad_norm"], "lr": results[0]["lr"]})
    return figures


async def saved(actors, folder) -> str:
    """The folder of a checkpoint of these ranks."""
    async with Checkpoints(folder, actors, None, 0, 60.0) as checkpoints:
        await checkpoints.save(RunState(step=1))
    return str(folder / "checkpoints" / "step-000001")


async def loaded(actors, checkpoint: str) -> list[float]:
    """Load a checkpoint; log-probabilities of PROBE under it."""
    await load_checkpoint(checkpoint, actors, 60.0)
    return (await asyncio.gather(*(a.score.remote(PROBE) for a in actors)))[0][0]


async def close(actors) -> None:
    import ray

    for a in actors:
        ray.kill(a)


@pytest.fixture(scope="module")
def reference(ray_cluster, tiny, loop, tmp_path_factory):
    """One rank, ZeRO 0: figures of three steps, scores after them, and a checkpoint and an export made after the first."""
    folder = tmp_path_factory.mktemp("learner")

    async def main():
        actors = await start_learners(learner_options(tiny))
        figures = await steps(actors, 1)
        checkpoint = await saved(actors, folder)
        told = await actors[0].export.remote(str(folder / "export"), tiny)
        exported = await actors[0].score.remote(PROBE)
        figures += await steps(actors, 2)
        scores = await actors[0].score.remote(PROBE)
        await close(actors)
        return SimpleNamespace(
            folder=folder, checkpoint=checkpoint, figures=figures, exported=exported, scores=scores, told=told, pairs={}
        )

    return loop.run(main())


@pytest.fixture(scope="module")
def another(reference, tiny, loop):
    """A learner in a new process, as it is before a checkpoint is loaded."""
    actors = loop.run(start_learners(learner_options(tiny, seed=1)))
    yield actors
    loop.run(close(actors))


async def two_ranks(reference, tiny, stage: int):
    """Two ranks, once for each stage: three steps, a checkpoint after the first; the others again from it and from one rank's."""
    if stage not in reference.pairs:
        budget = BUDGETS[stage]
        actors = await start_learners(learner_options(tiny, ranks=2, stage=stage))
        figures = await steps(actors, 1, budget)
        checkpoint = await saved(actors, reference.folder / f"2x{stage}")
        at_save = (await actors[0].score.remote(PROBE))[0]
        figures += await steps(actors, 2, budget)
        scores = (await actors[0].score.remote(PROBE))[0]
        again = await loaded(actors, checkpoint), await steps(actors, 2, budget)
        from_one = await loaded(actors, reference.checkpoint), await steps(actors, 2, budget)
        await close(actors)
        reference.pairs[stage] = SimpleNamespace(
            checkpoint=checkpoint, budget=budget, figures=figures, scores=scores, at_save=at_save, again=again, from_one=from_one
        )
    return reference.pairs[stage]


@pytest.fixture(scope="module", params=[0, 2, 3], ids=["zero0", "zero2", "zero3"])
def two(reference, tiny, loop, request):
    return loop.run(two_ranks(reference, tiny, request.param))


def test_ranks_stages_and_micro_batches_do_not_change_the_result(reference, two):
    for got, wanted in zip(two.figures, reference.figures, strict=True):
        assert got == pytest.approx(wanted, rel=1e-4, abs=1e-6)
    assert two.scores == pytest.approx(reference.scores[0], abs=2e-4)


def test_two_ranks_resume_as_two_bit_for_bit(two):
    assert two.again == (two.at_save, two.figures[1:])


def test_one_rank_resumes_as_two(reference, two):
    scores, figures = two.from_one
    assert scores == pytest.approx(reference.exported[0], abs=1e-6)
    for got, wanted in zip(figures, reference.figures[1:], strict=True):
        assert got == pytest.approx(wanted, rel=1e-5, abs=1e-6)


def test_two_ranks_resume_as_one(two, another, loop):
    async def main():
        return await loaded(another, two.checkpoint), await steps(another, 2, two.budget)

    scores, figures = loop.run(main())
    assert scores == pytest.approx(two.at_save, abs=1e-6)
    for got, wanted in zip(figures, two.figures[1:], strict=True):
        assert got == pytest.approx(wanted, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize(("budget", "rel"), [(64, 1e-6), (24, 1e-4)])
def test_a_checkpoint_restores_model_optimizer_and_schedule(reference, another, loop, budget, rel):
    async def main():
        await loaded(another, reference.checkpoint)
        return await steps(another, 2, budget)

    for got, wanted in zip(loop.run(main()), reference.figures[1:], strict=True):
        assert got == pytest.approx(wanted, rel=rel, abs=1e-9 if rel < 1e-5 else 1e-6)


def test_an_export_reloads_as_the_model_it_was(reference):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(reference.folder / "export", dtype=torch.float32)
    with torch.no_grad():
        logits = model(torch.tensor(PROBE)).logits[0, :-1]
    scores = logits.log_softmax(-1).gather(-1, torch.tensor(PROBE[0][1:])[:, None])[:, 0]
    assert scores.tolist() == pytest.approx(reference.exported[0], abs=1e-5)
    assert reference.told == f"float32, {len(list(model.parameters()))} tensors"
    assert not (reference.folder / "export.tmp").exists()


@pytest.fixture(scope="module")
def sharded(ray_cluster, tiny, loop):
    """Two ranks, ZeRO 2, with the model itself as a frozen reference, before the first step."""
    actors = loop.run(start_learners(learner_options(tiny, ranks=2, stage=2, reference=tiny)))
    yield actors
    loop.run(close(actors))


async def on_every_rank(actors, weight: float | None = None, loss: PolicyLoss = LOSS, first: bool = False):
    samples = window()
    weights = token_weights(samples, "trajectory_mean") if weight is None else [weight] * len(samples)
    shares = spread_rows(build_rows(samples, weights, 24), len(actors))
    return combine(
        await asyncio.gather(*(a.train_step.remote(rows, loss, first) for a, rows in zip(actors, shares, strict=True)))
    )


def test_a_gradient_that_is_not_finite_changes_nothing_and_the_next_step_is_sound(reference, another, loop):
    async def main():
        await loaded(another, reference.checkpoint)
        before = await another[0].score.remote(PROBE)
        bad = await on_every_rank(another, float("nan"))
        return bad, await another[0].score.remote(PROBE) == before, await on_every_rank(another)

    bad, unchanged, sound = loop.run(main())
    assert bad["nonfinite"] == 1 and unchanged and sound["nonfinite"] == 0
    wanted = reference.figures[1]  # the step that follows the checkpoint, with its learning rate
    assert {k: sound[k] for k in wanted} == pytest.approx(wanted, rel=1e-4, abs=1e-6)


def test_sharded_ranks_start_on_policy_at_their_reference_and_skip_what_is_not_finite(reference, sharded, loop):
    """At distance zero k3 has no gradient: the first step is the reference's without a KL term."""
    with_kl = PolicyLoss(kl=KL(0.1, "k3"))

    async def main():
        (held,) = await sharded[1].score_reference.remote([whole_row(PROBE[0])])
        assert [held] == await sharded[1].score.remote(PROBE)
        first = await on_every_rank(sharded, loss=with_kl, first=True)
        before = await asyncio.gather(*(a.score.remote(PROBE) for a in sharded))
        bad = await on_every_rank(sharded, float("nan"), with_kl)
        unchanged = await asyncio.gather(*(a.score.remote(PROBE) for a in sharded)) == before
        return first, bad, unchanged, await on_every_rank(sharded, loss=with_kl)

    first, bad, unchanged, second = loop.run(main())
    wanted = reference.figures[0]
    assert {k: first[k] for k in wanted} == pytest.approx(wanted, rel=1e-4, abs=1e-6)
    assert first["kl"] == pytest.approx(0.0, abs=1e-6) and first["kl_loss"] == pytest.approx(0.0, abs=1e-6)
    assert bad["nonfinite"] == 1 and unchanged
    assert second["lr"] == pytest.approx(reference.figures[1]["lr"]) and second["kl"] > 1e-6
    assert second["policy_loss"] == pytest.approx(reference.figures[1]["loss"], rel=1e-4, abs=1e-6)
    assert second["loss"] == pytest.approx(second["policy_loss"] + second["kl_loss"], abs=1e-6)


def test_a_sharded_checkpoint_continues_bit_for_bit_in_new_processes(reference, tiny, sharded, loop):
    async def main():
        wanted = await two_ranks(reference, tiny, 2)
        return await loaded(sharded, wanted.checkpoint), await steps(sharded, 2, wanted.budget), wanted

    scores, figures, wanted = loop.run(main())
    assert scores == wanted.at_save and figures == wanted.figures[1:]
