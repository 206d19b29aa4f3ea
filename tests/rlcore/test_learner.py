"""The real DeepSpeed learner: data parallel sizes and ZeRO stages give one answer, checkpoints and exports come back equal."""

import asyncio
from types import SimpleNamespace

import pytest
import torch

from rlcore.batch import Sample, build_rows, spread_rows, token_weights, whole_row
from rlcore.checkpoint import Checkpoints, RunState, load_checkpoint
from rlcore.config import LoraConfig
from rlcore.kl import KL
from rlcore.loop import combine
from rlcore.lora import add_adapter
from rlcore.loss import PolicyLoss, TrainedTokens, token_logprobs
from rlcore.model import load_model
from rlcore.types import Sequence
from tests.rlcore.conftest import learner_options, start_learners
from tests.rlcore.grid_learner import GridLearner

pytestmark = [pytest.mark.slow, pytest.mark.timeout(700)]

PROBE = [list(range(100, 140))]
LOSS = PolicyLoss()


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
    async with Checkpoints(folder / "checkpoints", actors, None, 0, 60.0) as checkpoints:
        await checkpoints.save(RunState(step=1))
    return str(folder / "checkpoints" / "step-000001")


async def loaded(actors, checkpoint: str) -> list[float]:
    """Load a checkpoint; log-probabilities of PROBE under it."""
    await load_checkpoint(checkpoint, actors, 60.0)
    return (await asyncio.gather(*(a.score.remote(PROBE) for a in actors)))[0][0]


def one_step(model, lr: float, loss: PolicyLoss) -> float:
    """The step of `steps` on a model in this process: AdamW without decay, gradients clipped at 1. Returns their norm before."""
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=lr, betas=(0.9, 0.95), weight_decay=0.0)
    samples = window()
    for row in build_rows(samples, token_weights(samples, "trajectory_mean"), 24):
        logprobs, entropy = token_logprobs(model, row, 1.0)
        loss(logprobs, TrainedTokens.of(row, logprobs.device), entropy)[0].backward()
    norm = torch.nn.utils.clip_grad_norm_(trained, 1.0)
    optimizer.step()
    return norm.item()


async def restarted(actors, stage: int, dtype: str = "float32", offloaded: tuple[str, ...] = ()):
    """The GridLearners with a fresh engine of a ZeRO stage; `offloaded` lies in the host's memory."""
    zero = {"stage": stage} | {f"offload_{part}": {"device": "cpu"} for part in offloaded}
    host, port = await actors[0].address.remote()
    await asyncio.gather(*(a.restart.remote(zero, host, port, dtype) for a in actors))
    return actors


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
        return SimpleNamespace(folder=folder, checkpoint=checkpoint, figures=figures, exported=exported, scores=scores, told=told)

    return loop.run(main())


def plain_gradient(model: str) -> torch.Tensor:
    """The window's gradient by one padded batch, full logits and autograd through the same policy loss."""
    lm, samples = load_model(model, "float32"), window()
    width = max(len(s.sequence) for s in samples)
    ids, mask = torch.zeros(len(samples), width, dtype=torch.long), torch.zeros(len(samples), width, dtype=torch.long)
    for i, s in enumerate(samples):
        ids[i, : len(s.sequence)], mask[i, : len(s.sequence)] = torch.tensor(s.sequence.token_ids), 1
    log_p = lm(input_ids=ids, attention_mask=mask).logits.log_softmax(-1)
    total = torch.zeros(())
    for i, (s, weight) in enumerate(zip(samples, token_weights(samples, "trajectory_mean"), strict=True)):
        (alone,) = build_rows([s], [weight], 1)
        start = s.sequence.prompt_length
        targets = torch.tensor(s.sequence.token_ids[start:])
        logprobs = log_p[i, start - 1 : len(s.sequence) - 1].gather(1, targets[:, None])[:, 0]
        total = total + LOSS(logprobs, TrainedTokens.of(alone, "cpu"))[0]
    total.backward()
    return torch.cat([p.grad.flatten() for p in lm.parameters()])


# Rows of one sequence, of some, and one of all, in which prompts are shared (the second rank then gets a filler). A rank's rows
# are its micro-batches and accumulated: five, three or two, and one.
BUDGETS = (1, 32, 1000)


@pytest.fixture(scope="module")
def grid(ray_cluster, tiny, loop):
    """GridLearners by their number of ranks."""
    from rlcore.learner import start_learner_actors

    made = {ranks: start_learner_actors(learner_options(tiny, ranks=ranks), 0.5, GridLearner) for ranks in (1, 2)}
    yield made
    for actors in made.values():
        loop.run(close(actors))


@pytest.mark.parametrize("ranks", [1, 2])
def test_ranks_stages_and_micro_batches_do_not_change_the_gradient_or_the_steps(reference, grid, tiny, loop, ranks):
    samples = window()
    weights = token_weights(samples, "trajectory_mean")
    wanted = plain_gradient(tiny)
    assert wanted.norm() > 1e-2

    async def main():
        for stage in (0, 2, 3):
            actors = await restarted(grid[ranks], stage)
            for budget in BUDGETS:
                shares = spread_rows(build_rows(samples, weights, budget), ranks)
                found = await asyncio.gather(*(a.gradients.remote(rows, LOSS) for a, rows in zip(actors, shares, strict=True)))
                for gradient in found:
                    assert (gradient - wanted).norm() < 1e-5 * wanted.norm(), (stage, budget)
            for got, figures in zip(await steps(await restarted(actors, stage), 3, 24), reference.figures, strict=True):
                assert got == pytest.approx(figures, rel=1e-4, abs=1e-6), stage
            scores = await asyncio.gather(*(a.score.remote(PROBE) for a in actors))
            assert scores[0][0] == pytest.approx(reference.scores[0], abs=2e-4), stage

    loop.run(main())


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_a_run_resumes_bit_for_bit_and_by_another_number_of_ranks(grid, loop, tmp_path, stage):
    async def first(ranks: int):
        actors = await restarted(grid[ranks], stage)
        await steps(actors, 1)
        checkpoint = await saved(actors, tmp_path / str(ranks))
        scores = (await asyncio.gather(*(a.score.remote(PROBE) for a in actors)))[0][0]
        return checkpoint, scores, await steps(actors, 2, 24)

    async def resumed(actors, checkpoint: str):
        return await loaded(actors, checkpoint), await steps(actors, 2, 24)

    async def main():
        runs = {ranks: await first(ranks) for ranks in (1, 2)}
        for ranks, (checkpoint, scores, figures) in runs.items():
            assert await resumed(await restarted(grid[ranks], stage), checkpoint) == (scores, figures)
            there, again = await resumed(grid[3 - ranks], checkpoint)
            assert there == pytest.approx(scores, abs=1e-6)
            for got, wanted in zip(again, figures, strict=True):
                assert got == pytest.approx(wanted, rel=1e-5, abs=1e-6), (ranks, stage)

    loop.run(main())


@pytest.mark.parametrize(("stage", "offloaded"), [(2, ("optimizer",)), (3, ("optimizer",)), (3, ("optimizer", "param"))])
def test_what_lies_in_host_memory_takes_the_same_steps_and_resumes_bit_for_bit(reference, grid, loop, tmp_path, stage, offloaded):
    async def main():
        actors = await restarted(grid[2], stage, offloaded=offloaded)
        first = await steps(actors, 1, 24)
        checkpoint = await saved(actors, tmp_path)
        scores = (await asyncio.gather(*(a.score.remote(PROBE) for a in actors)))[0][0]
        rest = await steps(actors, 2, 24)
        for got, figures in zip(first + rest, reference.figures, strict=True):
            assert got == pytest.approx(figures, rel=1e-4, abs=1e-6)
        await restarted(actors, stage, offloaded=offloaded)
        assert await loaded(actors, checkpoint) == scores
        assert await steps(actors, 2, 24) == rest

    loop.run(main())


@pytest.mark.parametrize("stage", [2, 3])
def test_in_bfloat16_ranks_do_not_change_the_gradient_and_a_run_resumes_bit_for_bit(grid, tiny, loop, tmp_path, stage):
    """One rank and two sum the gradients that each sequence has in bfloat16, in fp32."""
    samples, lm = window(), load_model(tiny, "bfloat16")
    weights = token_weights(samples, "trajectory_mean")
    exact = torch.zeros(sum(p.numel() for p in lm.parameters()))
    for row in build_rows(samples, weights, 1):
        lm.zero_grad()
        LOSS(token_logprobs(lm, row, 1.0)[0], TrainedTokens.of(row, "cpu"))[0].backward()
        exact += torch.cat([p.grad.float().flatten() for p in lm.parameters()])

    async def main():
        gradients = {}
        for ranks in (1, 2):
            actors = await restarted(grid[ranks], stage, "bfloat16")
            shares = spread_rows(build_rows(samples, weights, 1), ranks)
            found = await asyncio.gather(*(a.gradients.remote(rows, LOSS) for a, rows in zip(actors, shares, strict=True)))
            gradients[ranks] = found[0]
        assert (gradients[1] - exact).norm() < 1e-3 * exact.norm()
        assert (gradients[2] - gradients[1]).norm() < 1e-5 * exact.norm()
        actors = await restarted(grid[2], stage, "bfloat16")
        await on_every_rank(actors, first=True)
        checkpoint = await saved(actors, tmp_path)
        scores = (await asyncio.gather(*(a.score.remote(PROBE) for a in actors)))[0][0]
        bad = await on_every_rank(actors, float("nan"))
        assert bad["nonfinite"] == 1
        assert (await asyncio.gather(*(a.score.remote(PROBE) for a in actors)))[0][0] == scores
        figures = await steps(actors, 2, 24)
        assert await loaded(await restarted(actors, stage, "bfloat16"), checkpoint) == scores
        assert await steps(actors, 2, 24) == figures

    loop.run(main())


@pytest.fixture(scope="module")
def another(reference, tiny, loop):
    """A learner in a new process, as it is before a checkpoint is loaded."""
    actors = loop.run(start_learners(learner_options(tiny, seed=1)))
    yield actors
    loop.run(close(actors))


@pytest.mark.parametrize(("budget", "rel"), [(64, 1e-6), (24, 1e-4)])
def test_a_checkpoint_restores_model_optimizer_and_schedule(reference, another, loop, budget, rel):
    async def main():
        await loaded(another, reference.checkpoint)
        return await steps(another, 2, budget)

    for got, wanted in zip(loop.run(main()), reference.figures[1:], strict=True):
        assert got == pytest.approx(wanted, rel=rel, abs=1e-9 if rel < 1e-5 else 1e-6)


def own_scores(model) -> list[float]:
    """transformers' log-probabilities of the probe's tokens, from full logits."""
    with torch.no_grad():
        logits = model(torch.tensor(PROBE)).logits[0, :-1]
    return logits.log_softmax(-1).gather(-1, torch.tensor(PROBE[0][1:])[:, None])[:, 0].tolist()


def test_an_export_reloads_as_the_model_it_was(reference):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(reference.folder / "export", dtype=torch.float32)
    assert own_scores(model) == pytest.approx(reference.exported[0], abs=1e-5)
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


def test_a_sharded_adapter_learns_is_exported_merged_resumes_and_keeps_its_reference(tiny, ray_cluster, loop, tmp_path):
    """Two ranks, ZeRO 3. The first step is that of one process that holds everything: k3 has no gradient at distance zero."""
    from rlcore.learner import start_learner_actors

    lora, with_kl = LoraConfig(8, 16.0, ["q_proj", "v_proj", "down_proj"]), PolicyLoss(kl=KL(0.1, "k3"))

    async def main():
        actors = start_learner_actors(learner_options(tiny, ranks=2, lora=lora, reference=tiny), 0.5, GridLearner)

        async def on_all(method: str, *arguments):
            return (await asyncio.gather(*(getattr(a, method).remote(*arguments) for a in actors)))[0]

        await restarted(actors, 3)
        start = await on_all("score", PROBE)
        first = await on_every_rank(actors, loss=with_kl, first=True)
        checkpoint = await saved(actors, tmp_path)
        await on_all("export", str(tmp_path / "export"), tiny)
        scores = await on_all("score", PROBE)
        second = await on_every_rank(actors, loss=with_kl)
        assert await on_all("score_reference", [whole_row(PROBE[0])]) == start
        await restarted(actors, 3)
        assert await loaded(actors, checkpoint) == scores[0]
        again = await on_every_rank(actors, loss=with_kl)
        await close(actors)
        return first, second, again, scores[0]

    first, second, again, scores = loop.run(main())
    in_one_process, exported = load_model(tiny, "float32"), load_model(str(tmp_path / "export"), "float32")
    add_adapter(in_one_process, lora, None, seed=0)
    assert first["grad_norm"] == pytest.approx(one_step(in_one_process, 1e-3, LOSS), rel=1e-4)
    assert own_scores(exported) == pytest.approx(scores, abs=1e-5)
    assert own_scores(in_one_process) == pytest.approx(scores, abs=2e-4)
    assert first["kl"] == pytest.approx(0.0, abs=1e-6) and second["kl"] > 1e-4
    names = ("loss", "kl_loss", "grad_norm", "lr")
    assert {k: again[k] for k in names} == pytest.approx({k: second[k] for k in names}, rel=1e-6, abs=1e-9)
    held = sum(p.stat().st_size for p in (tmp_path / "checkpoints").rglob("*") if p.is_file())
    assert held < 5e6  # the model alone has 15e6 bytes
