"""The judge pool on a virtual clock, against endpoints that do what a script says."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rlcore.errors import ConfigError
from rlcore.judge import JudgeFailed, JudgeReply
from rlcore.judge_cache import JudgeCache, content_key
from rlcore.judge_config import JudgeLimitsConfig
from rlcore.judge_pool import JudgePool, estimated_tokens
from tests.rlcore.judge_stub import Stub, completion, pool, question, virtual

GOOD = (1.0, 200, {}, completion())


def answers(*replies: Any):
    """The replies in turn, the last one for ever."""
    return lambda host, number, body: replies[min(number, len(replies) - 1)]


async def ask(judge: JudgePool, text: str = "2 + 2?", **options: Any) -> JudgeReply:
    return await judge.ask(question(text), component="c", **options)


def now() -> float:
    return asyncio.get_running_loop().time()


def test_a_question_and_what_is_counted(monkeypatch):
    stub = Stub(monkeypatch, answers((2.0, 200, {}, completion("4", "length", prompt=100, reply=50))))
    schema = {"type": "object"}

    async def main():
        prices = {"prompt_price": 2.0, "completion_price": 8.0}
        judge = pool({"a": prices}, max_tokens=64, extra={"top_k": 1, "max_tokens": None})
        replies = [await ask(judge, schema=schema), await ask(judge, "other", max_tokens=5)]
        await judge.unusable("c", "no JSON")
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
def test_an_endpoint_that_refuses_is_not_asked_again_until_its_probe(monkeypatch, status):
    stub = Stub(monkeypatch, lambda host, *_: (0, status, {}, "no: sk-secret") if host == "a" else GOOD)

    async def main():
        both = pool({"a": {}, "b": {}}, keys={"a": "sk-secret"}, breaker_open_s=1000)
        assert [(await ask(both, str(i))).text for i in range(4)] == ["4"] * 4
        alone = pool("a", keys={"a": "sk-secret"}, breaker_open_s=1000)
        for text in ("1", "2"):
            with pytest.raises(JudgeFailed, match=f"every endpoint refuses: .*answered {status}: no: \\*\\*\\*") as failed:
                await ask(alone, text)
        return str(failed.value)

    assert "sk-secret" not in virtual(main())
    assert stub.counts == {"a": 2, "b": 4}


def test_a_question_that_is_refused_fails_at_once_and_the_endpoint_stays(monkeypatch):
    stub = Stub(monkeypatch, answers((0, 400, {}, "too long"), GOOD))

    async def main():
        judge = pool("a", breaker_failures=1)
        with pytest.raises(JudgeFailed, match="answered 400: too long"):
            await ask(judge, "long")
        return (await ask(judge)).text, now()

    assert virtual(main()) == ("4", 1.0) and len(stub.arrived) == 2


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


def test_what_was_answered_is_never_asked_again_after_a_restart_either(monkeypatch, tmp_path):
    stub = Stub(monkeypatch, answers(GOOD))
    cache = str(tmp_path / "cache")
    virtual(ask(pool("a", cache=cache)))

    async def restarted():
        judge = pool({"b": {}}, cache=cache)  # the same model at another address
        reply = await ask(judge)
        return reply, await judge.stats()

    reply, stats = virtual(restarted())
    assert reply == JudgeReply("4", "stop", "judge", cached=True) and len(stub.arrived) == 1
    assert (stats["cached"], stats["answered"], stats["scored"]) == (1.0, 0.0, 1.0)
    for changes, options in [({}, {"attempt": 1}), ({}, {"schema": {"type": "object"}}), ({}, {"max_tokens": 7}),
                             ({"temperature": 0.5}, {}), ({"extra": {"top_k": 1}}, {})]:  # fmt: skip
        assert not virtual(ask(pool("a", cache=cache, **changes), **options)).cached
    assert not virtual(ask(pool({"a": {"model": "other"}}, cache=cache))).cached
    assert len(stub.arrived) == 7


def test_the_key_is_the_content_and_not_its_order():
    assert content_key(a={"x": 1, "y": "四\ud800"}, b=2) == content_key(b=2, a={"y": "四\ud800", "x": 1})
    assert content_key(a=1) != content_key(a="1")


def test_the_cache_is_bounded_and_its_faults_are_misses(tmp_path: Path):
    cache = JudgeCache(str(tmp_path), 1)
    for i in range(300):
        cache.put(str(i), JudgeReply("x" * 20_000, "stop", "judge", cached=False))
    assert cache.get("299") is not None and cache.get("0") is None
    assert sum(f.stat().st_size for f in tmp_path.rglob("*") if f.is_file()) < 2.5 * 2**20
    cache._cache.set("object", {"not": "text"})  # pickled by the library
    assert cache.get("object") is None and cache.faults == 1
    cache._cache.set("text", "no JSON")
    assert cache.get("text") is None and cache.faults == 2
    cache.close()
    nowhere = JudgeCache(None, 1)
    nowhere.put("a", JudgeReply("x", "stop", "judge", cached=False))
    assert nowhere.get("a") is None and nowhere.faults == 0


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
                text = (await ask(judge, str(i), attempt=attempt)).text
                if text.isdigit():
                    outcomes["right" if int(text) == 1 + i % 5 else "wrong"] += 1
                    return
                await judge.unusable("c", "not a number")
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
