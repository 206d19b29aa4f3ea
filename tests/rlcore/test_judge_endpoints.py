"""Which endpoint gets the next request, and which gets none for a while: on a virtual clock."""

from __future__ import annotations

import asyncio

import pytest

from rlcore.judge import JudgeFailed
from rlcore.judge_config import JudgeLimitsConfig
from tests.rlcore.judge_stub import GOOD, Stub, answers, ask, now, pool, virtual


def test_without_retry_after_an_endpoint_rests_longer_each_time(monkeypatch):
    """2, 4, 8 seconds and up to a tenth more, and 2 again after an answer."""
    busy = (0, 429, {}, "slow down")
    stub = Stub(monkeypatch, answers(busy, busy, busy, GOOD, busy, GOOD))

    async def main():
        judge = pool("a")
        await ask(judge, "first")
        await ask(judge, "second")

    virtual(main())
    rests = [after - before for before, after in zip(stub.arrived, stub.arrived[1:], strict=False)]
    expected = [2, 4, 8, 1, 2]  # 1: the answer
    assert all(least <= rest <= 1.1 * least + 1e-9 for least, rest in zip(expected, rests, strict=True)), rests


def test_requests_that_were_out_together_are_busy_once(monkeypatch):
    stub = Stub(monkeypatch, lambda _, number, __: (3 + number / 2, 429, {}, "slow down") if number < 3 else GOOD)

    async def main():
        judge = pool("a")
        await asyncio.gather(*(ask(judge, str(i)) for i in range(3)))

    virtual(main())
    assert len(stub.arrived) == 6 and 6 <= stub.arrived[3] <= 6.2  # 2 s after the last of them, at 4 s


def test_retry_after_rests_the_endpoint_for_everybody(monkeypatch):
    stub = Stub(monkeypatch, answers((0, 429, {"Retry-After": "7"}, "slow down"), GOOD))

    async def main():
        judge = pool("a")
        first = asyncio.create_task(ask(judge))
        await asyncio.sleep(0.1)
        await asyncio.gather(first, *(ask(judge, str(i)) for i in range(3)))

    virtual(main())
    assert len(stub.arrived) == 5 and stub.arrived[1] >= 7 and stub.arrived[-1] < 7.8


def test_another_endpoint_stands_in_at_once(monkeypatch):
    stub = Stub(monkeypatch, lambda host, *_: (0, 429, {"Retry-After": "50"}, "") if host == "a" else GOOD)

    async def main():
        judge = pool({"a": {}, "b": {"model": "other"}})
        replies = [await ask(judge, str(i)) for i in range(5)]
        return {r.model for r in replies}, now()

    models, ended = virtual(main())
    assert models == {"other"} and ended < 10 and stub.counts == {"a": 1, "b": 5}


def test_weights_share_the_requests(monkeypatch):
    stub = Stub(monkeypatch, answers(GOOD))

    async def main():
        judge = pool({"a": {"weight": 3.0}, "b": {}}, limits=JudgeLimitsConfig(8))
        await asyncio.gather(*(ask(judge, str(i)) for i in range(80)))  # with eight in flight
        for i in range(40):  # and one by one
            await ask(judge, f"again {i}")

    virtual(main())
    assert stub.counts == {"a": 90, "b": 30}


def test_the_breaker_opens_probes_and_closes(monkeypatch):
    """Three failures in a row open it; half a minute later one request goes out alone, fails, and half a minute later works."""
    stub = Stub(monkeypatch, lambda host, number, body: (5, 500, {}, "broken") if number < 4 else GOOD)

    async def main():
        judge = pool("a", breaker_failures=3, breaker_open_s=30, attempts=50)
        first = asyncio.create_task(ask(judge, "first"))
        await asyncio.sleep(20)
        while len(stub.arrived) < 3:  # noqa: ASYNC110 - the clock is virtual
            await asyncio.sleep(1)
        await asyncio.gather(first, *(ask(judge, str(i)) for i in range(10)))
        return await judge.stats()

    stats = virtual(main())
    opened = stub.arrived[2] + 5
    probes = [round(t - opened, 6) for t in stub.arrived[3:5]]
    assert probes[0] == 30 and probes[1] == 30 + 5 + 30  # nobody else in between, however many wait
    assert min(stub.arrived[5:]) >= stub.arrived[4] + 1  # the rest once the probe was answered
    assert stats["endpoint/a/opened"] == 2.0 and stats["failed"] == 0.0


@pytest.mark.parametrize("status", [401, 402, 403, 404])
def test_an_endpoint_that_refuses_fails_questions_at_once_after_a_refused_probe(monkeypatch, status):
    stub = Stub(monkeypatch, lambda host, *_: (0, status, {}, "no: sk-secret") if host == "a" else GOOD)
    keys: dict[str, str | None] = {"a": "sk-secret"}

    async def main():
        both = pool({"a": {}, "b": {}}, keys, breaker_failures=2, breaker_open_s=1000)
        assert [(await ask(both, str(i))).text for i in range(6)] == ["4"] * 6
        assert stub.counts["a"] == 2 and stub.counts["b"] == 6
        alone = pool("a", keys, breaker_failures=2, breaker_open_s=30)
        began, refused = now(), "http://a/.*answered " + str(status) + r": no: \*\*\*"
        first = await asyncio.gather(*(ask(alone, f"first {i}") for i in range(5)), return_exceptions=True)
        assert {type(f) for f in first} == {JudgeFailed} and 30 <= now() - began < 60  # until the probe was refused
        began, asked = now(), stub.counts["a"]
        with pytest.raises(JudgeFailed, match="every endpoint refuses: " + refused) as failed:
            await ask(alone, "second")
        assert now() == began and stub.counts["a"] == asked
        return str(failed.value)

    assert "sk-secret" not in virtual(main())


@pytest.mark.parametrize("status", [401, 403])
def test_a_request_that_is_refused_is_asked_again_and_fails_no_other(monkeypatch, status):
    stub = Stub(monkeypatch, lambda host, number, body: (0, status, {}, "a hiccup") if number == 3 else GOOD)

    async def main():
        judge = pool("a", breaker_failures=2)
        replies = [*await asyncio.gather(*(ask(judge, str(i)) for i in range(8))), await ask(judge, "later")]
        return [r.text for r in replies], now()

    texts, ended = virtual(main())
    assert texts == ["4"] * 9 and ended < 5 and len(stub.arrived) == 10


def test_a_question_that_is_always_refused_keeps_no_other_away(monkeypatch):
    """As a provider's filter does. It was asked six times in a row, and the breaker is for three failures."""
    stub = Stub(monkeypatch, lambda host, number, body: (0, 403, {}, "not that") if "bad" in str(body) else GOOD)

    async def main():
        judge = pool("a", breaker_failures=3, attempts=6)
        with pytest.raises(JudgeFailed, match="answered 403: not that"):
            await ask(judge, "bad")
        began = now()
        assert (await ask(judge, "good")).text == "4" and now() - began == 1
        return (await judge.stats())["endpoint/a/opened"]

    assert virtual(main()) == 0 and len(stub.arrived) == 7


def test_a_question_that_is_refused_fails_at_once_and_the_endpoint_stays(monkeypatch):
    stub = Stub(monkeypatch, answers((0, 400, {}, "too long"), GOOD))

    async def main():
        judge = pool("a", breaker_failures=1)
        with pytest.raises(JudgeFailed, match="answered 400: too long"):
            await ask(judge, "long")
        return (await ask(judge)).text, now()

    assert virtual(main()) == ("4", 1.0) and len(stub.arrived) == 2
