from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from envs.warp.actions import Context, parse_reply
from envs.warp.limits import Limits
from envs.warp.play import play
from envs.warp.teacher import ScriptedTeacher
from rlcore.errors import DataFailure, InfrastructureFailure
from rlcore.types import scored, unavailable
from tests.envs.warp.conftest import COMPACT


def scripted_play(query, retriever, force=False, limits=None, **options):
    checked = Limits.of({**COMPACT, **(limits or {})})
    return asyncio.run(play(query, ScriptedTeacher(query, force), retriever, checked, **options))


@pytest.fixture
def samples(query, retriever):
    return scripted_play(query, retriever).samples


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
        *("passages", "allowed_keys", "expandable", "reference", "state_hash"),
    }
    assert (write["query_id"], write["split"], write["language"], write["cursor"]) == ("q0001", "train", "en", "section-1")
    assert [m["role"] for m in write["messages"]] == ["system", "user"]
    assert write["allowed_keys"] == ["textid1", "textid3", "textid4", "textid2"] and write["expandable"] == []
    assert all(f"{key}: " in write["messages"][1]["content"] for key in write["allowed_keys"])
    assert [p["key"] for p in write["passages"]] == write["allowed_keys"] and "Peru" in write["passages"][0]["text"]
    assert _only(samples, "initialize")["passages"] and not _only(samples, "search")["passages"]
    expand = _only(samples, "expand")
    assert expand["passages"] == expand["allowed_keys"] == [] and expand["expandable"] == ["section-1", "section-2", "section-3"]
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
    samples = scripted_play(query, retriever).samples
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
    decisions = [s["reference"] for s in scripted_play(query, retriever).samples if s["state"] == "extend"]
    assert [d["position"] for d in decisions] == ["section-1", "section-2", None]


def test_a_draft_is_what_is_written_when_nothing_planned_is_left(query, retriever):
    played = scripted_play(query, retriever)
    assert [(d.actions, d.sections, d.score) for d in played.drafts] == [(8, [3], None), (13, [3, 2], None)]
    assert "Oslo" in played.drafts[1].report and "### 2.1 Oslo" not in played.drafts[0].report
    assert played.drafts[1].report.count("### 2.") == 2


def test_every_draft_is_scored_as_the_report_it_is(query, retriever):
    seen = []

    async def score(trajectory):
        data = trajectory.outcome.data
        seen.append((trajectory.query.id, data["complete"], len(data["steps"]), data["steps"][-1]["action"]))
        return scored(len(data["report_markdown"]))

    drafts = scripted_play(query, retriever, score=score).drafts
    assert [d.score for d in drafts] == [len(d.report) for d in drafts]
    assert seen == [("q0001", True, 8, "write"), ("q0001", True, 13, "write")]


def test_a_draft_without_a_score_is_a_failure_and_not_a_zero(query, retriever):
    async def score(trajectory):
        return unavailable("the judge is down")

    with pytest.raises(InfrastructureFailure, match="draft 1 has no score: the judge is down"):
        scripted_play(query, retriever, score=score)


def test_a_forced_teacher_goes_on_where_nothing_is_wanted(query, retriever):
    """Peru gets two keywords, so it can be divided; Chad has one, so it cannot."""
    peru = query.data["topics"][0]
    peru["keywords"], peru["doc_ids"] = ["Peru country capital Lima", "economy Peru copper"], ["peru-overview", "peru-economy"]
    decisions = [s for s in scripted_play(query, retriever, force=True).samples if s["state"] == "extend"]
    assert [d["reference"]["position"] for d in decisions] == ["section-2", "section-1", None]
    assert "Norway is wanted in depth" in decisions[0]["output"] and "Peru can be divided" in decisions[1]["output"]
    assert '"title":"Economy Peru copper"' in decisions[1]["output"]


def test_the_step_limit_may_end_a_forced_deepening_but_no_other_report(query, retriever):
    async def score(trajectory):
        return scored(1.0)

    played = scripted_play(query, retriever, force=True, score=score, limits={"max_steps": 10})
    assert len(played.samples) == 10 and [d.actions for d in played.drafts] == [8]
    with pytest.raises(ValueError, match="the report is not complete after limits.max_steps=10"):
        scripted_play(query, retriever, limits={"max_steps": 10})
    with pytest.raises(ValueError, match="the report is not complete after limits.max_steps=6"):
        scripted_play(query, retriever, score=score, limits={"max_steps": 6})


def test_a_reply_that_does_not_fit_the_limits_is_an_error(query, retriever):
    with pytest.raises(ValueError, match=r"the teacher's reply in state initialize is invalid \(too_few_sections\)"):
        scripted_play(query, retriever, limits={"min_sections": 4})


def test_no_topics(query):
    query.data["topics"] = []
    with pytest.raises(DataFailure, match="query q0001 has no topics"):
        ScriptedTeacher(query)
