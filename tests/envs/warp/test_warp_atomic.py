from __future__ import annotations

import asyncio
import json

import pytest

from envs.warp.atomic import AtomicAction
from envs.warp.limits import Limits
from envs.warp.play import play
from envs.warp.teacher import ScriptedTeacher
from rlcore.errors import DataFailure, InfrastructureFailure
from rlcore.types import Query
from tests.envs.warp.conftest import COMPACT


@pytest.fixture
def sample_of(query, retriever):
    samples = asyncio.run(play(query, ScriptedTeacher(query), retriever, Limits.of(COMPACT))).samples
    return lambda action, nth=0: [s for s in samples if s["action"] == action][nth]


@pytest.fixture
def run(retriever, scripted):
    """run(sample, reply) -> (outcome, what the policy was asked)"""

    def _run(sample, reply, limits=COMPACT):
        policy = scripted([reply])
        outcome = asyncio.run(AtomicAction(retriever, limits).run(Query(sample["id"], sample), policy))
        return outcome, policy.asked

    return _run


@pytest.mark.parametrize("action", ["search", "initialize", "write", "expand", "terminate"])
def test_the_teachers_reply_is_valid(sample_of, run, action):
    sample = json.loads(json.dumps(sample_of(action)))
    outcome, asked = run(sample, sample["output"])
    assert outcome.data["valid"] is True and outcome.data["error"] is None and outcome.data["has_thought"] is True
    assert outcome.data["state"] == sample["state"] and outcome.metrics["valid"] == 1.0 and not outcome.truncated
    tokens = {"search": 96, "initialize": 320, "write": 224, "extend": 224}[sample["state"]]
    assert asked == [{"messages": sample["messages"], "max_tokens": tokens, "span": sample["state"]}]


def test_search_retrieves_to_the_cursors_budget(sample_of, run):
    reply = '<action>{"name":"search","keywords":["Oslo Norway","Chad"]}</action>'
    data = run(sample_of("search"), reply)[0].data
    assert data["retrieved"] == ["norway-overview", "norway-oslo", "chad-overview", "chad-economy"]
    assert (data["has_thought"], data["action"]["keywords"], data["cited"]) == (False, ["Oslo Norway", "Chad"], [])
    limits = {**COMPACT, "section_passages": 2}
    assert run(sample_of("search", 1), reply, limits)[0].data["retrieved"] == ["norway-overview", "chad-overview"]


def test_an_invalid_search_retrieves_nothing(sample_of, run, retriever):
    sample = sample_of("search")
    retriever.calls.clear()
    keywords = json.dumps(list("abcdef"))
    outcome = run(sample, f'<thought>t</thought><action>{{"name":"search","keywords":{keywords}}}</action>')[0]
    assert outcome.data == {
        "state": "search",
        "valid": False,
        "error": "too_many_keywords",
        "has_thought": True,
        "action": None,
        "retrieved": [],
        "cited": [],
        "invented": [],
    }
    assert retriever.calls == [] and outcome.metrics["valid"] == 0.0


def test_write_reports_cited_and_invented(sample_of, run):
    sample = sample_of("write")
    text = "Peru is a country on the west coast of South America \\cite{textid9, textid3}. Lima is big \\cite{textid1}."
    outcome = run(sample, f"<action>{text}</action>")[0]
    assert outcome.data["valid"] is True and outcome.data["action"] == {"name": "write", "content": text}
    assert outcome.data["cited"] == ["textid9", "textid3", "textid1"] and outcome.data["invented"] == ["textid9"]
    assert (outcome.metrics["cited"], outcome.metrics["invented"]) == (3, 1)


def test_positions_come_from_the_sample(sample_of, run):
    last, reply = sample_of("terminate"), sample_of("expand")["output"]
    assert run(last, reply)[0].data["error"] == "bad_position"  # section-2 has subsections by then
    assert run(last, reply.replace("section-2", "section-2.1"))[0].data["action"]["position"] == "section-2.1"


def test_a_cut_reply_is_invalid_and_truncated(sample_of, run, cut):
    sample = sample_of("terminate")
    outcome = run(sample, cut(sample["output"], "length"))[0]
    assert (outcome.data["valid"], outcome.data["error"], outcome.truncated) == (False, "length", True)


def test_language_is_the_samples(sample_of, run):
    sample = {**sample_of("write"), "language": "zh"}
    assert run(sample, sample["output"])[0].data["error"] == "wrong_language"


@pytest.mark.parametrize("data", [{}, {"state": "write"}])
def test_not_a_sample(retriever, scripted, data):
    with pytest.raises(DataFailure, match="query q9 is not an action sample"):
        asyncio.run(AtomicAction(retriever).run(Query("q9", data), scripted([""])))


def test_an_unknown_state_is_bad_data(sample_of, run):
    with pytest.raises(DataFailure, match="not an action sample"):
        run({**sample_of("write"), "state": "done"}, "")


def test_a_failing_search_propagates(sample_of, scripted):
    class Down:
        async def search(self, queries, k):
            raise InfrastructureFailure("down")

    sample = sample_of("search")
    with pytest.raises(InfrastructureFailure):
        asyncio.run(AtomicAction(Down()).run(Query("q", sample), scripted([sample["output"]])))
