"""Limits on a virtual clock: minutes of 60 seconds that take no time, and an endpoint that counts."""

from __future__ import annotations

import asyncio
import random

import pytest

from rlcore.judge import JudgeFailed
from rlcore.judge_config import JudgeLimitsConfig
from rlcore.judge_limits import Gate
from tests.rlcore.judge_stub import Stub, completion, pool, question, virtual


async def spend(gate: Gate, tokens: int, seconds: float, used: int | None = None) -> float:
    """One request; returns when it started."""
    permit = await gate.enter(tokens)
    started = asyncio.get_running_loop().time()
    await asyncio.sleep(seconds)
    permit.tokens = tokens if used is None else used
    gate.leave(permit)
    return started


async def all_of(*requests) -> list[float]:
    return [round(t, 6) for t in await asyncio.gather(*requests)]


def test_requests_per_minute_count_from_the_answer_or_a_little_after_the_start():
    async def main():
        quick = Gate(10, 2, None)
        assert await all_of(*(spend(quick, 1, 0.5) for _ in range(5))) == [0, 0, 60.5, 60.5, 121]
        slow = Gate(10, 2, None)  # its requests take longer than a minute; the third is sent 1.04 minutes after the first
        began = asyncio.get_running_loop().time()
        assert await all_of(*(spend(slow, 1, 100) for _ in range(3))) == [began, began, began + 62.4]

    virtual(main())


def test_concurrent_requests_in_the_order_they_came():
    async def main():
        gate = Gate(2, None, None)
        assert await all_of(*(spend(gate, 1, s) for s in (5, 2, 1, 1, 1))) == [0, 0, 2, 3, 4]
        assert gate.in_flight == 0

    virtual(main())


def test_tokens_are_estimated_and_then_settled():
    async def main():
        gate = Gate(10, None, 100)
        # 60 of 100 are held until 40 of them turn out unused at 1 s; then 20 + 70 fit, and the last 20 when the 20 have left
        assert await all_of(spend(gate, 60, 1, used=20), spend(gate, 70, 1), spend(gate, 20, 1)) == [0, 1, 61]
        with pytest.raises(JudgeFailed, match="about 101 tokens never fits into 100 tokens per minute"):
            await spend(gate, 101, 0)

    virtual(main())


def test_a_waiter_that_is_cancelled_and_a_place_that_was_not_used_cost_nothing():
    async def main():
        gate = Gate(1, 2, 100)
        permit = await gate.enter(100)
        waiting = [asyncio.create_task(spend(gate, 60, 1)) for _ in range(3)]
        await asyncio.sleep(1)
        waiting[0].cancel()
        permit.sent = False
        gate.leave(permit)
        # admitted in this very turn, and cancelled before it could start
        waiting[1].cancel()
        assert round(await waiting[2], 6) == 1.0
        assert gate.in_flight == 0
        await asyncio.gather(*waiting, return_exceptions=True)

    virtual(main())


def test_the_limits_hold_for_four_workers_and_2000_calls(monkeypatch):
    """The endpoint counts: never more than 16 at the same time, never more than 600 in any 60 seconds, and 95 % of that."""
    draws = random.Random(0)
    stub = Stub(monkeypatch, lambda *_: (draws.uniform(0.1, 0.7), 200, {}, completion()))

    async def main():
        judge = pool("a", limits=JudgeLimitsConfig(16, 600))
        workers = (asyncio.gather(*(judge.ask(question(f"{w} {i}"), component="c") for i in range(500))) for w in range(4))
        return await asyncio.gather(*workers)

    assert sum(len(replies) for replies in virtual(main())) == 2000
    assert (stub.most, stub.most_in(60.0)) == (16, 600)
    # the first 1,800 fill three minutes: the 1,801st could come at 180 s at the earliest
    used = 180.0 / sorted(stub.arrived)[1800]
    print(f"limits: {stub.most} concurrent, {stub.most_in(60.0)} in the fullest minute, {used:.1%} of the rate used")
    assert 0.95 <= used <= 1.0


def test_tokens_per_minute_hold_by_what_the_server_counts(monkeypatch):
    stub = Stub(monkeypatch, lambda *_: (0.2, 200, {}, completion(prompt=40, reply=160)))

    async def main():
        judge = pool("a", limits=JudgeLimitsConfig(16, None, 20_000), max_tokens=200)
        await asyncio.gather(*(judge.ask(question(f"{i:0100}"), component="c") for i in range(300)))

    virtual(main())
    assert stub.most_in(60.0) <= 100  # 200 tokens each
    assert 120.0 / sorted(stub.arrived)[200] >= 0.95


def test_slow_judges_do_not_stall_the_others(monkeypatch):
    """Four minutes on average with a tail of 30, 64 trajectories at a time, 16 of which may ask."""
    draws = random.Random(1)
    # 96 % take 3.29 minutes on average (spread evenly around it), 4 % between 12 and 30
    stub = Stub(
        monkeypatch,
        lambda *_: (60 * (draws.uniform(12, 30) if draws.random() < 0.04 else draws.uniform(1, 5.58)), 200, {}, completion()),
    )
    ended: list[float] = []
    left = iter(range(640))

    async def main():
        judge = pool("a", limits=JudgeLimitsConfig(16), timeout_s=2400, budget_s=36000)

        async def trajectory():  # the next one starts as soon as this one is scored
            for i in left:
                await judge.ask(question(str(i)), component="c")
                ended.append(asyncio.get_running_loop().time())

        await asyncio.gather(*(trajectory() for _ in range(64)))

    virtual(main())
    last_start = max(stub.arrived)  # until here there was always one more to ask
    share = sum(min(last_start, start + s) - start for start, s in zip(stub.arrived, stub.seconds, strict=True)) / (
        16 * last_start
    )
    mean_min, tail_min = sum(stub.seconds) / 640 / 60, max(stub.seconds) / 60
    print(f"slow judges: mean {mean_min:.1f} min, longest {tail_min:.0f} min, {share:.1%} of the 16 places used")
    assert 3.5 < mean_min < 4.5 and tail_min > 25 and stub.most == 16
    assert share >= 0.95
    assert sum(t < 600 for t in ended) > 16  # what is scored goes on while the long ones still run
