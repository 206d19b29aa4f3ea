"""The one loop: asynchronous, with synchronous training as `max_staleness: 0`.

producer: admit a slot -> draw a query -> roll out and score its group -> put      waits for a slot; freed by release
learner:  take the oldest groups -> advantages -> rows -> step -> push -> release  waits for groups; filled by put
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from rlcore.advantage import GRPO
from rlcore.batch import Sample, build_rows, spread_rows, token_weights
from rlcore.buffer import Buffer, sweep
from rlcore.checkpoint import RunState, save_checkpoint
from rlcore.config import AlgoConfig
from rlcore.errors import RunFailed, deadline
from rlcore.loss import PolicyLoss
from rlcore.metrics import MetricsWriter, console, mean
from rlcore.queries import QueryCursor
from rlcore.rollout import Rollouts
from rlcore.runtime import Runtime
from rlcore.types import Group

T = TypeVar("T")


async def train(
    runtime: Runtime, cursor: QueryCursor, state: RunState, metrics: MetricsWriter, run_dir: Path,
    evaluate: Callable[[int], Awaitable[None]] | None = None,
) -> None:  # fmt: skip
    """Run `algo.steps` optimizer steps from `state.step`. The engines must already hold the learner's weights."""
    algo = runtime.config.algo
    buffer = Buffer(algo.queries_per_step, algo.max_staleness)
    rollouts = runtime.rollouts(algo.temperature, algo.max_tokens, runtime.config.seed)
    failures: Counter[str] = Counter()
    wanted = (algo.steps - state.step) * algo.queries_per_step
    producer = asyncio.create_task(produce(rollouts, algo, cursor, buffer, failures, wanted))
    try:
        while state.step < algo.steps:
            began = time.monotonic()
            groups = await _first(
                buffer.take(algo.queries_per_step), producer, runtime.config.cluster.step_timeout_s, lambda: str(buffer.waiting())
            )
            waited = time.monotonic() - began
            sweep(groups, runtime.version, algo.max_staleness)
            advantages = group_advantages(groups, algo)
            record(run_dir / "trajectories.jsonl", state.step, groups, advantages)
            figures = await learner_step(runtime, groups, advantages)
            figures |= await runtime.push()
            await buffer.release(len(groups))
            state.step, state.version = state.step + 1, runtime.version
            for group in groups:
                cursor.finish(group.id)
            state.position, state.done = cursor.position, sorted(cursor.done)
            figures |= rollout_figures(groups, runtime.version - 1) | {"wait_s": waited, "step_s": time.monotonic() - began}
            figures |= {f"rollouts/{kind}": float(n) for kind, n in failures.items()}
            figures |= {f"reward_pool/{name}": value for name, value in runtime.rewards.stats().items()}
            figures |= await runtime.judges.figures()
            metrics.log(figures, "rl", state.step)
            _print_step(state.step, algo.steps, figures)
            if algo.checkpoint_every and state.step % algo.checkpoint_every == 0:
                state.wandb_id = metrics.wandb_id
                await save_checkpoint(run_dir, runtime.learners, state, runtime.config.cluster.start_timeout_s)
            if evaluate is not None and algo.evaluate_every and state.step % algo.evaluate_every == 0:
                await evaluate(state.step)
    finally:
        producer.cancel()
        await asyncio.gather(producer, return_exceptions=True)


async def produce(
    rollouts: Rollouts, algo: AlgoConfig, cursor: QueryCursor, buffer: Buffer, counts: Counter[str], wanted: int
) -> None:
    """Fill `wanted` slots of the buffer, then wait. A group with fewer than two usable trajectories is replaced by a new query.

    `counts` holds all rollouts ("all") and the failed ones by kind. Raises RunFailed when too large a share of them failed.
    """

    async def fill(slot: int) -> None:
        while True:
            group_id, query = cursor.draw()
            group = await rollouts.run_group(group_id, query, algo.group_size)
            counts.update(t.failure.kind for t in group.trajectories if t.failure is not None)
            counts["all"] += len(group.trajectories)
            lost = sum(n for kind, n in counts.items() if kind != "all")
            if lost > algo.max_failed_share * max(counts["all"], 2 * algo.group_size):
                last = next(t.failure for t in reversed(group.trajectories) if t.failure is not None)
                raise RunFailed(
                    f"{lost} of {counts['all']} rollouts failed ({dict(counts)}); the last: {last.kind}: {last.message}"
                )
            if sum(t.usable for t in group.trajectories) >= 2:
                await buffer.put(slot, group)
                return
            cursor.finish(group_id)  # given up

    try:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(wanted):
                tasks.create_task(fill(await buffer.admit()))
    except BaseExceptionGroup as group:  # the first cause is what the user has to read
        raise group.exceptions[0] from None
    await asyncio.Event().wait()


def group_advantages(groups: list[Group], algo: AlgoConfig) -> list[list[float | None]]:
    """One advantage per trajectory, statistics over the usable ones of its group; None for those that cannot train."""
    grpo = GRPO(algo.std)
    result: list[list[float | None]] = []
    for group in groups:
        usable = [i for i, t in enumerate(group.trajectories) if t.usable]
        rewards = [group.trajectories[i].reward.value for i in usable]  # type: ignore[union-attr]
        values = dict(zip(usable, grpo([r for r in rewards if r is not None]), strict=True))
        result.append([values.get(i) for i in range(len(group.trajectories))])
    return result


def training_samples(groups: list[Group], advantages: list[list[float | None]], algo: AlgoConfig) -> list[Sample]:
    """What enters the loss: usable trajectories; `tied_groups: drop` and `truncated: mask` leave some out."""
    samples: list[Sample] = []
    number = 0
    for group, values in zip(groups, advantages, strict=True):
        if algo.tied_groups == "drop" and not any(values):
            continue
        for trajectory, advantage in zip(group.trajectories, values, strict=True):
            if advantage is None or (algo.truncated == "mask" and trajectory.status == "truncated"):
                continue
            samples += [Sample(sequence, advantage, number) for sequence in trajectory.sequences]
            number += 1
    return samples


async def learner_step(runtime: Runtime, groups: list[Group], advantages: list[list[float | None]]) -> dict[str, float]:
    """One optimizer step on the groups; skipped, and counted, when no group carries a signal."""
    algo = runtime.config.algo
    samples = training_samples(groups, advantages, algo)
    signal = [any(values) for values in advantages]
    figures = {"tied_share": 1.0 - sum(signal) / len(groups), "skipped": float(not samples)}
    if not samples:
        return figures
    weights = token_weights(samples, algo.aggregation, algo.constant_length)
    loss = PolicyLoss(algo.clip_low, algo.clip_high, algo.dual_clip)
    return figures | await optimizer_step(runtime, samples, weights, algo.row_tokens, loss)


async def optimizer_step(
    runtime: Runtime, samples: list[Sample], weights: list[float], row_tokens: int, loss: PolicyLoss | None
) -> dict[str, float]:
    """Pack the samples into rows, share them among the ranks and take one step; without a policy loss it is one of SFT."""
    shares = spread_rows(build_rows(samples, weights, row_tokens), len(runtime.learners))
    async with deadline("the optimizer step", runtime.config.cluster.step_timeout_s, "cluster.step_timeout_s"):
        results = await asyncio.gather(
            *(learner.train_step.remote(rows, loss) for learner, rows in zip(runtime.learners, shares, strict=True))
        )
    return combine(results)


def combine(results: list[dict[str, float]]) -> dict[str, float]:
    """Figures of all ranks -> one set: sums are added and divided by the trained tokens, the loss is a sum already."""
    total = {k: sum(r.get(k, 0.0) for r in results) for k in {k for r in results for k in r}}
    tokens = max(total["tokens"], 1.0)
    figures = {k.removesuffix("_sum"): v / tokens for k, v in total.items() if k.endswith("_sum")}
    return figures | {
        "loss": total["loss"], "trained_tokens": total["tokens"], "row_tokens": total["row_tokens"],
        "grad_norm": results[0]["grad_norm"], "lr": results[0]["lr"], "train_s": max(r["train_s"] for r in results),
    }  # fmt: skip


def rollout_figures(groups: list[Group], version: int) -> dict[str, float]:
    """Rewards by component, lengths, truncation and staleness of one step's trajectories."""
    trajectories = [t for g in groups for t in g.trajectories]
    usable = [t for t in trajectories if t.usable]
    rewards = [t.reward for t in usable if t.reward is not None]
    components: dict[str, list[float]] = {}
    for reward in rewards:
        for name, value in reward.components.items():
            components.setdefault(name, []).append(value)
    environment: dict[str, list[float]] = {}
    for t in usable:
        for name, value in t.outcome.metrics.items():
            environment.setdefault(name, []).append(value)
    oldest = [version - v for g in groups if (v := g.oldest_version) is not None]
    return {
        "reward": mean(r.value for r in rewards if r.value is not None),
        "unusable": float(len(trajectories) - len(usable)),
        "truncated": mean(float(t.status == "truncated") for t in usable),
        "reply_tokens": mean(float(t.sampled_tokens) for t in usable),
        "staleness_max": float(max(oldest, default=0)),
        "model_call_s": mean(s for t in usable for s in t.timings.get("model", [])),
        **{f"reward/{k}": mean(v) for k, v in components.items()},
        **{f"env/{k}": mean(v) for k, v in environment.items()},
    }


def record(path: Path, step: int, groups: list[Group], advantages: list[list[float | None]]) -> None:
    """Append every trajectory of a step, with its advantage, to the run's JSONL."""
    with open(path, "a", encoding="utf-8") as file:
        for group, values in zip(groups, advantages, strict=True):
            for trajectory, advantage in zip(group.trajectories, values, strict=True):
                row = {"step": step, "advantage": advantage, **trajectory.to_json()}
                file.write(json.dumps(row, ensure_ascii=False) + "\n")


async def _first(wanted: Awaitable[T], background: asyncio.Task[Any], timeout_s: float, describe: Callable[[], str]) -> T:
    """Await `wanted`; end with the background task's error as soon as it dies, or after `timeout_s` with who waits on what."""
    task: asyncio.Future[T] = asyncio.ensure_future(wanted)
    done, _ = await asyncio.wait({task, background}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    if task in done:
        return task.result()
    task.cancel()
    if background in done:
        await background
        raise RunFailed("the rollout producer ended by itself")
    raise RunFailed(f"no full batch within {timeout_s:.0f} s; groups: {describe()}")


def _print_step(step: int, steps: int, f: dict[str, float]) -> None:
    console.print(
        f"rl {step:>4}/{steps}  reward {f['reward']:.3f}  tied {f['tied_share']:.2f}  loss {f.get('loss', 0):+.4f}  "
        f"grad {f.get('grad_norm', 0):.2f}  entropy {f.get('entropy', 0):.2f}  parity {f['parity']:.1e}  "
        f"wait {f['wait_s']:.0f}s train {f.get('train_s', 0):.0f}s push {f['push_s']:.1f}+{f['probe_s']:.1f}s"
    )
