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
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import torch

from rlcore.algo_config import AlgoConfig
from rlcore.batch import Row, Sample, build_rows, spread_rows, token_weights
from rlcore.buffer import Buffer, sweep
from rlcore.checkpoint import Checkpoints, RunState
from rlcore.correction import mismatch_figures
from rlcore.errors import ConfigError, RunFailed, deadline
from rlcore.files import write_atomic
from rlcore.loss import PolicyLoss, policy_loss
from rlcore.metrics import MetricsWriter, console, mean
from rlcore.queries import QueryCursor
from rlcore.rollout import Rollouts
from rlcore.runtime import Runtime
from rlcore.types import Group
from rlcore.window import Advantages, group_advantages, tied, training_samples, window_figures

T = TypeVar("T")


async def train(
    runtime: Runtime, cursor: QueryCursor, state: RunState, metrics: MetricsWriter, run_dir: Path, checkpoints: Checkpoints,
    evaluate: Callable[[int], Awaitable[float]] | None = None,
) -> None:  # fmt: skip
    """Run `algo.steps` optimizer steps from `state.step`. The engines must already hold the learner's weights.

    `evaluate` returns the held-out reward of what the engines serve.
    """
    algo = runtime.config.algo
    buffer = Buffer(algo.queries_per_step, algo.max_staleness, algo.groups_in_flight)
    rollouts = runtime.rollouts(algo.temperature, algo.max_tokens, runtime.config.seed)
    check_sampling(rollouts)
    first, nonfinite = True, 0
    counts: Counter[str] = Counter()  # of the rollouts since the last step
    totals: Counter[str] = Counter()
    wanted = (algo.steps - state.step) * algo.queries_per_step
    producing = produce(rollouts, algo, cursor, buffer, counts, wanted)
    producer = asyncio.create_task(_until_one_fails(producing, runtime.judges.watch()))
    try:
        while state.step < algo.steps:
            began = time.monotonic()
            try:
                groups = await _first(
                    buffer.take(algo.queries_per_step),
                    producer,
                    runtime.config.cluster.step_timeout_s,
                    lambda: str(buffer.waiting()),
                )
            except RunFailed:  # rollouts or judges; the learner is well, and at the step that `state` says
                await checkpoints.save(state)
                raise
            waited = time.monotonic() - began
            sweep(groups, runtime.version, algo.max_staleness)
            penalties, figures = await kl_penalties(runtime, groups) if algo.kl.in_reward else (None, {})
            advantages = group_advantages(groups, algo, penalties)
            record(run_dir / "trajectories.jsonl", state.step, groups, advantages)
            figures |= await learner_step(runtime, groups, advantages, first, run_dir / f"nonfinite-{state.step + 1:06d}.json")
            first = first and bool(figures["skipped"])
            nonfinite = nonfinite + 1 if figures.get("nonfinite") else 0
            if nonfinite >= algo.max_nonfinite_steps:
                raise RunFailed(f"{nonfinite} steps in a row had a gradient that is not finite; see {run_dir}/nonfinite-*.json")
            figures |= await runtime.push()
            await buffer.release(len(groups))
            state.step, state.version = state.step + 1, runtime.version
            for group in groups:
                cursor.finish(group.id)
            state.position, state.done = cursor.position, sorted(cursor.done)
            figures |= rollout_figures(groups, runtime.version - 1) | {"wait_s": waited, "step_s": time.monotonic() - began}
            figures["groups_replaced"] = float(counts.pop("tied", 0))  # other queries instead of ties
            totals.update(counts)
            counts.clear()
            figures |= {f"rollouts/{kind}": float(n) for kind, n in totals.items()}
            figures |= {f"reward_pool/{name}": value for name, value in runtime.rewards.stats().items()}
            figures |= await runtime.judges.figures()
            metrics.log(figures, "rl", state.step)
            _print_step(state.step, algo.steps, figures)
            checkpoints.check()
            if algo.checkpoint_every and state.step % algo.checkpoint_every == 0:
                await checkpoints.save(state)
            if evaluate is not None and algo.evaluate_every and state.step % algo.evaluate_every == 0:
                checkpoints.scored(state.step, await evaluate(state.step))
    finally:
        producer.cancel()
        await asyncio.gather(producer, return_exceptions=True)


async def produce(
    rollouts: Rollouts, algo: AlgoConfig, cursor: QueryCursor, buffer: Buffer, counts: Counter[str], wanted: int
) -> None:
    """Fill `wanted` slots of the buffer, then wait. A group with fewer than two usable trajectories is replaced by a new query.

    So is a group whose rewards tie, up to `algo.resample_tied` times for one slot (DAPO's dynamic sampling, arXiv 2503.14476,
    with a bound); after that the slot takes what there is. `counts` holds all rollouts ("all"), the failed ones by kind, and the
    tied groups replaced ("tied"), since the caller last cleared it: an outage late in a run is one, however long all went well.
    Raises RunFailed when too large a share of these rollouts failed.
    """

    async def fill(slot: int) -> None:
        tries = 0
        while True:
            group_id, query = cursor.draw()
            group = await rollouts.run_group(group_id, query, algo.group_size)
            counts.update(t.failure.kind for t in group.trajectories if t.failure is not None)
            counts["all"] += len(group.trajectories)
            lost = sum(n for kind, n in counts.items() if kind not in ("all", "tied"))
            if lost > algo.max_failed_share * max(counts["all"], 2 * algo.group_size):
                last = next(t.failure for t in reversed(group.trajectories) if t.failure is not None)
                raise RunFailed(
                    f"{lost} of {counts['all']} rollouts failed ({dict(counts)}); the last: {last.kind}: {last.message}"
                )
            if sum(t.usable for t in group.trajectories) >= 2:
                if tries == algo.resample_tied or not tied(group, algo):
                    await buffer.put(slot, group)
                    return
                tries += 1
                counts["tied"] += 1
            cursor.finish(group_id)  # given up

    try:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(wanted):
                tasks.create_task(fill(await buffer.admit()))
    except BaseExceptionGroup as group:  # the first cause is what the user has to read
        raise group.exceptions[0] from None
    await asyncio.Event().wait()


def check_sampling(rollouts: Rollouts) -> None:
    """The engine reports log-probabilities of what it sampled from; cut to the likeliest tokens, that is another distribution."""
    if rollouts.sampling.top_p != 1.0:
        raise ConfigError(f"training needs top_p=1, got {rollouts.sampling.top_p}: the cut distribution would bias the ratio")


async def kl_penalties(runtime: Runtime, groups: list[Group]) -> tuple[list[list[float]], dict[str, float]]:
    """What KL takes off each trajectory's reward, by group: coef x the sum over its sampled tokens; and the mean KL of a token.

    The policy's side are the sampler's log-probabilities: the estimate is of the policy that chose the tokens.
    """
    algo = runtime.config.algo
    trajectories = [t for g in groups for t in g.trajectories]
    samples = [Sample(s, 0.0, number) for number, t in enumerate(trajectories) if t.usable for s in t.sequences]
    shares = spread_rows(build_rows(samples, [0.0] * len(samples), algo.row_tokens), len(runtime.learners))
    async with deadline("scoring with the reference", runtime.config.cluster.step_timeout_s, "cluster.step_timeout_s"):
        scores = await asyncio.gather(
            *(learner.score_reference.remote(rows) for learner, rows in zip(runtime.learners, shares, strict=True))
        )
    pairs = [pair for rows, values in zip(shares, scores, strict=True) for pair in zip(rows, values, strict=True)]
    totals = [0.0] * len(trajectories)
    for row, reference in pairs:
        if not row.filler:
            estimates, _ = algo.kl.estimate(torch.tensor(row.rollout_logprobs), torch.tensor(reference))
            for number, estimate in zip(row.samples, estimates.tolist(), strict=True):
                totals[samples[number].trajectory] += estimate
    tokens = sum(t.sampled_tokens for t in trajectories if t.usable)
    left = iter(algo.kl.coef * total for total in totals)
    return [[next(left) for _ in g.trajectories] for g in groups], {"kl": sum(totals) / max(1, tokens)}


async def learner_step(
    runtime: Runtime, groups: list[Group], advantages: Advantages, first: bool, dump: Path
) -> dict[str, float]:
    """One optimizer step on the groups; skipped, and counted, when nothing is left to train on.

    When its gradient is not finite, the rows and the figures are written to `dump`.
    """
    algo = runtime.config.algo
    samples = training_samples(groups, advantages, algo)
    figures = window_figures(groups, advantages, algo) | {"skipped": float(not samples)}
    if not samples:
        return figures
    rows = build_rows(samples, token_weights(samples, algo.aggregation, algo.constant_length), algo.row_tokens)
    figures |= await optimizer_step(runtime, rows, policy_loss(algo), first)
    if figures["nonfinite"]:
        write_atomic(dump, json.dumps({"figures": {k: str(v) for k, v in figures.items()}, "rows": [asdict(r) for r in rows]}))
        console.print(
            f"the gradient is not finite ({figures['grad_norm']}): no step taken, its rows are in {dump}", style="yellow"
        )
    return figures


async def optimizer_step(runtime: Runtime, rows: list[Row], loss: PolicyLoss | None, first: bool = False) -> dict[str, float]:
    """Share the rows among the ranks and take one step; without a policy loss, one of SFT. `first`: check it is on policy."""
    shares = spread_rows(rows, len(runtime.learners))
    async with deadline("the optimizer step", runtime.config.cluster.step_timeout_s, "cluster.step_timeout_s"):
        results = await asyncio.gather(
            *(learner.train_step.remote(share, loss, first) for learner, share in zip(runtime.learners, shares, strict=True))
        )
    return combine(results)


def combine(results: list[dict[str, float]]) -> dict[str, float]:
    """Figures of all ranks -> one set: `*_sum` are added and divided by the trained tokens, the loss and its parts are sums."""
    total = {k: sum(r.get(k, 0.0) for r in results) for k in {k for r in results for k in r}}
    tokens = max(total["tokens"], 1.0)
    figures = {k.removesuffix("_sum"): v / tokens for k, v in total.items() if k.endswith("_sum")}
    if "importance" in figures:
        figures = mismatch_figures(figures)
    return figures | {name: total[name] for name in ("loss", "policy_loss", "kl_loss") if name in total} | {
        "trained_tokens": total["tokens"], "row_tokens": total["row_tokens"], "grad_norm": results[0]["grad_norm"],
        "lr": results[0]["lr"], "nonfinite": results[0]["nonfinite"], "train_s": max(r["train_s"] for r in results),
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


def record(path: Path, step: int, groups: list[Group], advantages: Advantages) -> None:
    """Append every trajectory of a step, with its advantage, to the run's JSONL."""
    with open(path, "a", encoding="utf-8") as file:
        for group, values in zip(groups, advantages, strict=True):
            for trajectory, advantage in zip(group.trajectories, values, strict=True):
                row = {"step": step, "advantage": advantage, **trajectory.to_json()}
                file.write(json.dumps(row, ensure_ascii=False) + "\n")


async def _until_one_fails(*endless: Awaitable[None]) -> None:
    """Run them all, and end with the first error."""
    tasks = [asyncio.ensure_future(one) for one in endless]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


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
