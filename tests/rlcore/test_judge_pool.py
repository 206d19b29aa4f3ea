"""The judge pool on a virtual clock, against endpoints that do what a script says."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from typing import Any

import pytest

from rlcore.errors import ConfigError
from rlcore.judge import JudgeFailed, JudgeReply
from rlcore.judge_config import JudgeLimitsConfig
from rlcore.judge_pool import JudgePool, estimated_tokens
from tests.rlcore.judge_stub import GOOD, Stub, answers, ask, completion, now, pool, question, virtual


def test_a_question_and_what_is_counted(monkeypatch):
    stub = Stub(monkeypatch, answers((2.0, 200, {}, completion("4", "length", prompt=100, reply=50))))
    schema = {"type": "object"}

    async def main():
        prices = {"prompt_price": 2.0, "completion_price": 8.0}
        judge = pool({"a": prices}, max_tokens=64, extra={"top_k": 1, "max_tokens": None})
        replies = [await ask(judge, schema=schema), await ask(judge, "other", max_tokens=5)]
        await judge.unusable("c", "no JSON", replies[0])
        return replies, await judge.stats()

    replies, stats = virtual(main())
    assert replies == [JudgeReply("4", "length", "judge", cached=False)] * 2
    form = {"type": "json_schema", "json_schema": {"name": "verdict", "strict": True, "schema": schema}}
    common = {"model": "judge", "messages": question("2 + 2?"), "temperature": 0.0, "top_k": 1}
    assert stub.bodies == [common | {"response_format": form}, common | {"messages": question("other")}]
    expected = {"asked": 2, "answered": 2, "scored": 1, "unusable": 1, "failed": 0}
    expected |= {"prompt_tokens": 200, "completion_tokens": 100}
    assert {name: stats[name] for name in expected} == expected == {name: stats[f"c/{name}"] for name in expected}
    assert stats["cost"] == pytest.approx((200 * 2 + 100 * 8) / 1e6)
    assert (stats["latency_p50_s"], stats["wait_p99_s"], stats["endpoint/a/requests"]) == (2.0, 0.0, 2.0)


def test_an_endpoint_without_structured_output_gets_no_schema(monkeypatch):
    stub = Stub(monkeypatch, answers(GOOD))
    virtual(ask(pool({"a": {"structured": False}}), schema={"type": "object"}))
    assert "response_format" not in stub.bodies[0]


def test_tokens_are_estimated_from_bytes():
    body = {"messages": [{"role": "user", "content": "a" * 300}, {"role": "user", "content": "四" * 10}]}
    assert estimated_tokens(body, None, 50) == 100 + 8 + 10 + 8 + 50
    assert estimated_tokens(body, {"a": 1}, 50) == 176 + len('{"a": 1}') // 3 + 8


@pytest.mark.parametrize(
    "first", [(0, 500, {}, "x"), (0, 0, {}, ""), (0, 200, {}, "garbage"), (999, 200, {}, ""), (0, 429, {}, "")]
)
def test_what_passes_is_asked_again(monkeypatch, first):
    stub = Stub(monkeypatch, answers(first, GOOD))

    async def main():
        judge = pool("a", timeout_s=100)
        return (await ask(judge)).text, (await judge.stats())["retries"]

    assert virtual(main()) == ("4", 1.0)
    assert len(stub.arrived) == 2


def test_the_budget_of_attempts_and_of_time(monkeypatch):
    Stub(monkeypatch, answers((0, 500, {}, "broken")))
    with pytest.raises(JudgeFailed, match="http://a/v1/chat/completions answered 500: broken"):
        virtual(ask(pool("a", attempts=3)))
    stub = Stub(monkeypatch, answers((0, 500, {}, "broken")))
    with pytest.raises(JudgeFailed, match="no answer within 20 s; last: .* answered 500"):
        virtual(ask(pool("a", attempts=1000, budget_s=20)))
    assert len(stub.arrived) >= 3 and max(stub.arrived) <= 20


def test_the_budget_runs_from_the_first_place_and_the_queue_has_its_own(monkeypatch):
    """One at a time, 30 s each, with 40 s: the second is answered at 60 s, the third would only be sent then."""
    stub = Stub(monkeypatch, answers((30, 200, {}, completion())))

    async def main():
        judge = pool("a", limits=JudgeLimitsConfig(1), timeout_s=35, budget_s=40)
        *replies, failed = await asyncio.gather(*(ask(judge, str(i)) for i in range(3)), return_exceptions=True)
        return [r.text for r in replies], str(failed)

    assert virtual(main()) == (["4", "4"], "no answer within 40 s; last: no request was possible")
    assert stub.arrived == [0, 30]


def test_a_request_that_the_budget_cuts_off_is_named(monkeypatch):
    Stub(monkeypatch, lambda host, number, body: (0, 500, {}, "broken") if number == 0 else (99, 200, {}, ""))
    with pytest.raises(JudgeFailed, match="no answer within 40 s; last: http://a/v1: cut off before the answer"):
        virtual(ask(pool("a", timeout_s=90, budget_s=40)))


def test_a_question_that_is_no_json_fails_and_reaches_no_endpoint(monkeypatch):
    stub = Stub(monkeypatch, answers(GOOD))

    async def main():
        judge = pool("a", breaker_failures=1)
        with pytest.raises(JudgeFailed, match="the question cannot be written as JSON: .*surrogates not allowed"):
            await ask(judge, "half of a pair: \ud83d")
        await ask(judge)
        return await judge.stats()

    stats = virtual(main())
    assert (stats["asked"], stats["failed"], stats["endpoint/a/failed"]) == (2.0, 1.0, 0.0) and len(stub.arrived) == 1


def test_the_same_question_at_the_same_time_is_asked_once(monkeypatch):
    stub = Stub(monkeypatch, answers(GOOD))

    async def main():
        judge = pool("a")
        first, *others = [asyncio.create_task(ask(judge)) for _ in range(4)]
        await asyncio.sleep(0.5)
        first.cancel()  # whoever gives up does not take the others' answer along
        return await asyncio.gather(*others), await judge.stats()

    replies, stats = virtual(main())
    assert len(stub.arrived) == 1 and {r.text for r in replies} == {"4"}
    assert (stats["asked"], stats["shared"], stats["answered"]) == (4.0, 3.0, 0.0)


def test_a_failure_is_shared_and_then_asked_anew(monkeypatch):
    stub = Stub(monkeypatch, answers((1, 400, {}, "no"), GOOD))

    async def main():
        judge = pool("a")
        failures = await asyncio.gather(ask(judge), ask(judge), return_exceptions=True)
        assert [type(f) for f in failures] == [JudgeFailed] * 2
        return (await ask(judge)).text, (await judge.stats())["failed"]

    assert virtual(main()) == ("4", 2.0) and len(stub.arrived) == 2


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ((0, 401, {}, "bad key"), "answered 401: bad key"),
        ((0, 0, {}, ""), "ConnectError"),
        ((0, 400, {}, "no schema"), "answered 400"),
    ],
)
def test_the_check_at_the_start_names_the_endpoint_and_the_reason(monkeypatch, answer, why):
    stub = Stub(monkeypatch, lambda host, *_: answer if host == "b" else GOOD)
    with pytest.raises(ConfigError, match=rf"endpoint b \(judge\): .*{why}"):
        virtual(pool({"a": {}, "b": {}}, attempts=2).check())
    assert stub.bodies[0]["response_format"]["type"] == "json_schema"
    assert stub.counts["b"] == (2 if answer[1] == 0 else 1)


def test_the_check_waits_as_long_as_an_endpoint_asks(monkeypatch):
    stub = Stub(monkeypatch, answers((0, 429, {"Retry-After": "50"}, "slow down"), GOOD))
    virtual(pool("a", attempts=2).check())
    assert len(stub.arrived) == 2 and 50 <= stub.arrived[1] <= 55
    Stub(monkeypatch, answers((0, 429, {"Retry-After": "50"}, "slow down"), GOOD))
    with pytest.raises(ConfigError, match=r"endpoint a \(judge\): no answer within 40 s"):
        virtual(pool("a", budget_s=40).check())


def test_faults_never_become_scores(monkeypatch):
    """2,000 trajectories; 10 % 429 with Retry-After, 5 % 500, 2 % hangs, 3 % garbage, one of two endpoints dead for 2 minutes."""
    draws = random.Random(0)

    def script(host: str, number: int, body: dict[str, Any]) -> tuple[float, int, dict[str, str], Any]:
        if host == "a" and 60 <= now() < 180:
            return 0, 0, {}, ""
        draw = draws.random()
        if draw < 0.10:
            return 0.05, 429, {"Retry-After": "1"}, "slow down"
        if draw < 0.15:
            return 0.05, 500, {}, "broken"
        if draw < 0.17:
            return 1e6, 200, {}, ""
        if draw < 0.185:
            return 0.5, 200, {}, "<html>"
        if draw < 0.20:
            return 0.5, 200, {}, completion("Excellent!")
        return draws.uniform(0.5, 3), 200, {}, completion(str(1 + int(body["messages"][0]["content"]) % 5))

    stub = Stub(monkeypatch, script)
    outcomes: Counter[str] = Counter()

    async def trajectory(judge: JudgePool, i: int) -> None:
        """What a reward does: ask, once more when it cannot use the reply, then give up."""
        try:
            for attempt in (0, 1):
                reply = await ask(judge, str(i), attempt=attempt)
                if reply.text.isdigit():
                    outcomes["right" if int(reply.text) == 1 + i % 5 else "wrong"] += 1
                    return
                await judge.unusable("c", "not a number", reply)
            outcomes["unavailable: unusable"] += 1
        except JudgeFailed as failed:
            assert "http://" in str(failed)
            outcomes["unavailable: failed"] += 1

    async def main():
        judge = pool({"a": {}, "b": {}}, limits=JudgeLimitsConfig(32), timeout_s=30, attempts=6, budget_s=3000)
        await asyncio.gather(*(trajectory(judge, i) for i in range(2000)))
        return await judge.stats()

    stats = virtual(main())
    print(f"faults: {dict(outcomes)}, {len(stub.arrived)} requests, breaker of a opened {stats['endpoint/a/opened']:.0f} times")
    assert outcomes.total() == 2000 and outcomes["wrong"] == 0 and outcomes["right"] >= 1980
    assert stats["scored"] == outcomes["right"] and stats["failed"] == outcomes["unavailable: failed"]
    assert stats["unusable"] > 10 and stats["retries"] > 300 and stats["endpoint/a/opened"] >= 2 and stub.most <= 32
    assert json.dumps(stats)
