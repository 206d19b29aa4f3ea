"""The real DeepSpeed learner: data parallel sizes and ZeRO stages give one answer, checkpoints and exports come back equal."""

import asyncio

import pytest

from rlcore.batch import Sample, build_rows, spread_rows, token_weights
from rlcore.loss import PolicyLoss
from rlcore.types import Sequence
from tests.rlcore.conftest import learner_options, start_learners

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

PROBE = [list(range(100, 140))]


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


async def close(actors) -> None:
    import ray

    for a in actors:
        ray.kill(a)


@pytest.fixture(scope="module")
def reference(ray_cluster, tiny, loop):
    """One rank, ZeRO 0: figures of three steps, and scores after them."""

    async def main():
        actors = await start_learners(learner_options(tiny))
        figures = await steps(actors, 3)
        scores = await actors[0].score.remote(PROBE)
        await close(actors)
        return figures, scores

    return loop.run(main())


# budget 64 packs everything into one row, so that the second rank gets a filler
@pytest.mark.parametrize(("ranks", "stage", "budget"), [(1, 0, 24), (2, 0, 64), (2, 2, 32), (2, 3, 24), (2, 3, 64)])
def test_ranks_stages_and_micro_batches_do_not_change_the_result(reference, tiny, loop, ranks, stage, budget):
    async def main():
        actors = await start_learners(learner_options(tiny, ranks=ranks, stage=stage))
        figures = await steps(actors, 3, budget)
        scores = await asyncio.gather(*(a.score.remote(PROBE) for a in actors))
        await close(actors)
        return figures, scores[0]

    figures, scores = loop.run(main())
    for got, wanted in zip(figures, reference[0], strict=True):
        assert got == pytest.approx(wanted, rel=1e-4, abs=1e-6)
    assert scores[0] == pytest.approx(reference[1][0], abs=2e-4)


def test_a_checkpoint_restores_model_optimizer_and_schedule_and_an_export_reloads(reference, tiny, loop, tmp_path):
    async def main():
        first = await start_learners(learner_options(tiny))
        before = await steps(first, 1)
        await first[0].save.remote(str(tmp_path / "checkpoint"))
        await first[0].export.remote(str(tmp_path / "export"), tiny)
        exported_scores = await first[0].score.remote(PROBE)
        await close(first)
        second = await start_learners(learner_options(tiny))
        await second[0].load.remote(str(tmp_path / "checkpoint"))
        after = await steps(second, 2)
        await close(second)
        third = await start_learners(learner_options(str(tmp_path / "export")))
        reloaded_scores = await third[0].score.remote(PROBE)
        await close(third)
        return before + after, exported_scores, reloaded_scores

    figures, exported, reloaded = loop.run(main())
    for got, wanted in zip(figures, reference[0], strict=True):
        assert got == pytest.approx(wanted, rel=1e-6)
    assert reloaded == exported
    assert not (tmp_path / "export.tmp").exists()


def test_a_gradient_that_is_not_finite_ends_the_step(ray_cluster, tiny, loop):
    async def main():
        actors = await start_learners(learner_options(tiny))
        samples = window()
        rows = build_rows(samples, [float("nan")] * len(samples), 64)
        try:
            await actors[0].train_step.remote(rows, PolicyLoss())
        finally:
            await close(actors)

    with pytest.raises(FloatingPointError, match="gradient norm is nan"):
        loop.run(main())
