from __future__ import annotations

import asyncio
import json
from collections import Counter

import pytest

from envs.warp.actions import Context, parse_reply
from envs.warp.limits import Limits
from envs.warp.samples import balance, collect, read_samples, write_samples
from envs.warp.teacher import Teacher, compose
from rlcore.errors import DataFailure, InfrastructureFailure
from rlcore.types import Query
from tests.envs.warp.conftest import COMPACT


@pytest.fixture
def samples(query, retriever):
    found, problems = asyncio.run(collect([query], retriever, COMPACT))
    assert problems == {}
    return found


def _only(samples, action):
    return next(s for s in samples if s["action"] == action)


def test_one_sample_an_action_in_order(samples):
    assert [s["id"] for s in samples[:4]] == ["q0001/1-search", "q0001/2-initialize", "q0001/3-search", "q0001/4-write"]
    assert Counter(s["action"] for s in samples) == {"search": 6, "initialize": 1, "write": 5, "expand": 1, "terminate": 1}
    assert {s["state"] for s in samples if s["action"] in ("expand", "terminate")} == {"extend"}
    assert len({s["id"] for s in samples}) == len({s["state_hash"] for s in samples}) == 14


def test_a_sample_has_what_the_contract_says(samples):
    write = _only(samples, "write")
    assert set(write) == {
        *("id", "query_id", "split", "language", "state", "action", "question", "cursor", "messages", "output"),
        *("allowed_keys", "expandable", "reference", "state_hash"),
    }
    assert (write["query_id"], write["split"], write["language"], write["cursor"]) == ("q0001", "train", "en", "section-1")
    assert [m["role"] for m in write["messages"]] == ["system", "user"]
    assert write["allowed_keys"] == ["textid1", "textid3", "textid4", "textid2"] and write["expandable"] == []
    assert all(f"{key}: " in write["messages"][1]["content"] for key in write["allowed_keys"])
    expand = _only(samples, "expand")
    assert expand["allowed_keys"] == [] and expand["expandable"] == ["section-1", "section-2", "section-3"]
    assert expand["cursor"] is None


def test_references(samples):
    outline, section = [s for s in samples if s["action"] == "search"][:2]
    assert outline["reference"] == {"golden_doc_ids": ["peru-overview", "norway-overview", "chad-overview"]}
    assert section["reference"] == {"golden_doc_ids": ["peru-overview"]}
    assert _only(samples, "initialize")["reference"] == {
        "titles": ["Peru", "Norway", "Chad"],
        "required": ["Peru", "Norway", "Chad"],
    }
    assert _only(samples, "write")["reference"] == {"citations": ["textid1"]}
    assert _only(samples, "expand")["reference"] == {"decision": "expand", "position": "section-2"}
    assert _only(samples, "terminate")["reference"] == {"decision": "terminate", "position": None}


def test_the_teachers_replies_are_valid_in_their_sample_and_short(samples):
    for s in samples:
        context = Context(s["state"], s["language"], tuple(s["allowed_keys"]), tuple(s["expandable"]))
        reply = parse_reply(s["output"], context, Limits.of(COMPACT))
        assert reply.error is None and reply.kind == s["action"]
        assert 1 <= len(reply.thought.split()) <= 12
        assert len(s["output"].split()) < 90


def test_the_teacher_writes_the_golden_passages(samples):
    norway = [s for s in samples if s["action"] == "write"][1]
    assert norway["reference"]["citations"] == ["textid2", "textid5"]
    assert norway["output"].endswith(
        "<action>Norway is a kingdom in northern Europe with a long coast \\cite{textid2}. The capital of Norway is Oslo "
        "\\cite{textid2}. The economy of Norway depends on oil, gas and fish \\cite{textid5}.</action>"
    )


def test_without_the_golden_passage_the_teacher_uses_what_is_shown(query, retriever):
    retriever.documents = [d for d in retriever.documents if d.id != "chad-overview"]
    samples, _ = asyncio.run(collect([query], retriever, COMPACT))
    chad = [s for s in samples if s["cursor"] == "section-3" and s["action"] == "write"]
    assert len(chad) == 1 and chad[0]["reference"]["citations"] == chad[0]["allowed_keys"][:1]


def test_two_topics_to_deepen_give_two_expansions_then_stop(query, retriever):
    peru = query.data["topics"][0]
    peru["deepen"], peru["subtopics"] = (
        True,
        [
            {"title": "Andes", "plan": "The mountains.", "keywords": ["Andes mountain"], "doc_ids": ["peru-andes"]},
            {"title": "Economy", "plan": "What Peru sells.", "keywords": ["economy Peru copper"], "doc_ids": ["peru-economy"]},
        ],
    )
    samples, problems = asyncio.run(collect([query], retriever, COMPACT))
    decisions = [s["reference"] for s in samples if s["state"] == "extend"]
    assert problems == {} and [d["position"] for d in decisions] == ["section-1", "section-2", None]


def test_a_bad_query_is_reported_and_stops_no_other(query, retriever):
    few = Query("few", {**query.data, "topics": query.data["topics"][:2]})
    broken = Query("broken", {**query.data, "topics": [{"title": "Peru"}]})
    queries = [Query("none", {"question": "What?"}), few, query, broken, Query("empty", {})]
    samples, problems = asyncio.run(collect(queries, retriever, COMPACT, concurrency=2))
    assert {s["query_id"] for s in samples} == {"q0001"}
    assert set(problems) == {"none", "few", "broken", "empty"}
    assert problems["few"].startswith("ValueError: the teacher's reply in state initialize is invalid (too_few_sections)")
    assert problems["none"] == "DataFailure: query none has no topics to play from"


def test_a_failing_search_is_reported(query):
    class Down:
        async def search(self, queries, k):
            raise InfrastructureFailure("down")

    assert asyncio.run(collect([query], Down())) == ([], {"q0001": "InfrastructureFailure: down"})


def test_concurrency_is_bounded(query, retriever):
    class Counting:
        now = most = 0

        async def search(self, queries, k):
            self.now += 1
            self.most = max(self.most, self.now)
            await asyncio.sleep(0)
            self.now -= 1
            return await retriever.search(queries, k)

    counting = Counting()
    queries = [Query(f"q{i}", query.data) for i in range(6)]
    samples, _ = asyncio.run(collect(queries, counting, COMPACT, concurrency=3))
    assert counting.most == 3
    assert [s["query_id"] for s in samples] == [f"q{i}" for i in range(6) for _ in range(14)]


def test_too_few_steps_for_the_teacher_is_an_error(query, retriever):
    _, problems = asyncio.run(collect([query], retriever, {**COMPACT, "max_steps": 6}))
    assert problems == {"q0001": "ValueError: the report is not complete after limits.max_steps=6"}


def test_no_topics():
    with pytest.raises(DataFailure, match="query q9 has no topics"):
        Teacher(Query("q9", {"topics": []}))


def test_balance(samples):
    counts = {"search": 2, "write": 3, "expand": 1}
    chosen = balance(samples, counts, seed=1)
    assert Counter(s["action"] for s in chosen) == counts
    assert chosen == balance(samples, counts, seed=1) == [s for s in samples if s in chosen]
    assert len({tuple(s["id"] for s in balance(samples, counts, seed)) for seed in range(20)}) > 5


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ({"expand": 2}, "counts.expand=2, but there are 1 samples of it"),
        ({"write": -1}, "counts.write=-1"),
        ({"extend": 1}, "counts.extend is not an action"),
    ],
)
def test_balance_refuses(samples, counts, message):
    with pytest.raises(ValueError, match=message):
        balance(samples, counts, seed=0)


def test_files_round_trip(samples, tmp_path):
    path = tmp_path / "deep" / "train.jsonl"
    samples[0]["question"] = "奥斯陆\u2028?"
    write_samples(path, samples)
    assert read_samples(path) == samples
    assert len(path.read_bytes().split(b"\n")) == 15 and "奥斯陆" in path.read_text(encoding="utf-8")
    write_samples(path, samples[:1])
    assert len(read_samples(path)) == 1 and [p.name for p in path.parent.iterdir()] == ["train.jsonl"]


def test_a_failed_write_leaves_the_old_file(samples, tmp_path):
    path = tmp_path / "train.jsonl"
    write_samples(path, samples[:1])
    with pytest.raises(TypeError):
        write_samples(path, [samples[1], {"id": object()}])
    assert read_samples(path) == samples[:1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("messages"), r"train.jsonl:2 lacks messages"),
        (lambda s: s.update(allowed_keys="textid1"), r"train.jsonl:2: allowed_keys has the wrong type"),
        (lambda s: s.update(state="done"), r"train.jsonl:2: state must be one of search"),
        (lambda s: s.update(action="nop"), r"train.jsonl:2: action must be one of initialize"),
    ],
)
def test_reading_names_the_line_and_the_field(samples, tmp_path, change, message):
    change(samples[1])
    write_samples(tmp_path / "train.jsonl", samples)
    with pytest.raises(ValueError, match=message):
        read_samples(tmp_path / "train.jsonl")


def test_reading_names_a_broken_line(samples, tmp_path):
    path = tmp_path / "train.jsonl"
    path.write_text(json.dumps(samples[0]) + "\n{\n")
    with pytest.raises(ValueError, match=r"train.jsonl:2 is not JSON"):
        read_samples(path)
    path.write_text("[]\n")
    with pytest.raises(ValueError, match=r"train.jsonl:1 is not an object"):
        read_samples(path)


@pytest.mark.parametrize(
    ("passages", "text"),
    [
        ([("k1", "One is first. Two is second.")], "One is first \\cite{k1}. Two is second \\cite{k1}."),
        # First sentences of both before the second ones; three at most; the passages' order is kept.
        ([("k1", "A. B. C."), ("k2", "Dd. Ee.")], "A. B. C \\cite{k1}. Dd \\cite{k2}. Ee \\cite{k2}."),
        ([("k1", "Aa. Bb. Cc."), ("k2", "Dd. Ee.")], "Aa \\cite{k1}. Bb \\cite{k1}. Dd \\cite{k2}."),
        (
            [("k1", "St. Gallen lies near Mt. Säntis. It is old.")],
            "St. Gallen lies near Mt. Säntis \\cite{k1}. It is old \\cite{k1}.",
        ),
        ([("k1", "It has 1.5 million people! Is it big?")], "It has 1.5 million people \\cite{k1}. Is it big \\cite{k1}."),
        ([("k1", "C# is a language. \\LaTeX is not. Fine.")], "Fine \\cite{k1}."),
        ([("k1", "x " * 59 + "end. Two words. One more. Again.")], "x " * 59 + "end \\cite{k1}."),
    ],
)
def test_compose(passages, text):
    assert compose(passages) == text
