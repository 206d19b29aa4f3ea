"""What a judge has answered, on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlcore.errors import ConfigError
from rlcore.judge import JudgeReply
from rlcore.judge_cache import JudgeCache, content_key
from rlcore.judge_config import JudgeConfig, JudgeEndpointConfig, LocalJudgeConfig
from rlcore.judge_pool import JudgePool
from tests.rlcore.judge_stub import GOOD, Stub, answers, ask, completion, pool, virtual


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
    for other in ({"model": "other"}, {"structured": False}):
        assert not virtual(ask(pool({"a": other}, cache=cache))).cached
    assert len(stub.arrived) == 8


def test_a_judge_of_ours_with_other_weights_or_arguments_is_another(monkeypatch, tmp_path):
    stub = Stub(monkeypatch, answers(GOOD))
    endpoints = {"local-0": JudgeEndpointConfig("http://a/v1", "m")}

    def cached(weights: str = "w", dtype: str = "float32", length: int = 64, args: list[str] | None = None) -> bool:
        local = LocalJudgeConfig("m", dtype, length, args=args or [])
        judge = JudgePool(JudgeConfig(local=local, cache=str(tmp_path)), endpoints, {}, weights=weights)
        return virtual(ask(judge)).cached

    assert [cached(), cached(), cached("v"), cached(dtype="bfloat16"), cached(length=65), cached(args=["-x"])] == [
        False, True, False, False, False, False
    ]  # fmt: skip
    assert len(stub.arrived) == 5


@pytest.mark.parametrize("reply", [completion("4", finish="length"), completion("")])
def test_a_reply_that_is_empty_or_was_cut_off_is_not_kept(monkeypatch, tmp_path, reply):
    stub = Stub(monkeypatch, answers((0, 200, {}, reply)))

    async def main():
        judge = pool("a", cache=str(tmp_path))
        return [(await ask(judge)).cached for _ in range(2)]

    assert virtual(main()) == [False, False] and len(stub.arrived) == 2


def test_a_reply_that_could_not_be_used_is_asked_for_again_by_the_next_run(monkeypatch, tmp_path):
    """The server is repaired under the same name between the second run and the third."""
    prose, repaired = (0, 200, {}, completion("I would say four.")), []
    Stub(monkeypatch, lambda host, number, body: GOOD if repaired else prose)

    async def run() -> list[tuple[str, bool]]:
        judge, seen = pool("a", cache=str(tmp_path)), []
        for attempt in (0, 1):
            reply = await ask(judge, attempt=attempt)
            seen.append((reply.text, reply.cached))
            if reply.text == "4":
                break
            await judge.unusable("c", "no number", reply)
        return seen

    assert virtual(run()) == virtual(run()) == [("I would say four.", False)] * 2
    repaired.append(True)
    assert virtual(run()) == [("4", False)]
    assert virtual(run()) == [("4", True)]
    prose_from_disk = JudgeReply("I would say four.", "stop", "judge", cached=False)
    cache = JudgeCache(str(tmp_path), 1)
    cache.put("old", prose_from_disk)  # as every run before kept it
    cache.drop(cache.get("old").key)
    assert cache.get("old") is None and cache.faults == 0
    cache.drop("never there")
    JudgeCache(None, 1).drop("old")
    cache.close()


@pytest.mark.parametrize("damage", ["database", "folder"])
def test_a_damaged_cache_is_said_at_the_start_and_a_miss_after_a_restart(monkeypatch, tmp_path, damage):
    Stub(monkeypatch, answers(GOOD))
    folder = tmp_path / "cache"
    if damage == "database":
        folder.mkdir()
        (folder / "cache.db").write_text("no database " * 1000)
    else:
        folder.write_text("no folder")

    async def main():
        judge = pool("a", cache=str(folder))
        with pytest.raises(ConfigError, match=f"cache={folder}: .*; name another folder"):
            await judge.check()
        replies = [await ask(judge) for _ in range(2)]  # nobody checks a restarted actor
        return [r.cached for r in replies], (await judge.stats())["cache_faults"]

    assert virtual(main()) == ([False, False], 2.0)


def test_the_key_is_the_content_and_not_its_order():
    assert content_key(a={"x": 1, "y": "四"}, b=2) == content_key(b=2, a={"y": "四", "x": 1})
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
