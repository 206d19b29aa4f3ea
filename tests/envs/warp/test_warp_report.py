from __future__ import annotations

import asyncio
import json
import random

import pytest

from envs.warp.actions import ERRORS
from envs.warp.limits import Limits
from envs.warp.play import play
from envs.warp.render import unresolved_markers
from envs.warp.render_html import report_html
from envs.warp.report import Report
from envs.warp.teacher import ScriptedTeacher
from rlcore.errors import DataFailure, InfrastructureFailure
from rlcore.types import Query
from tests.envs.warp.conftest import COMPACT


@pytest.fixture
def outputs(query, retriever):
    """The teacher's replies to the whole report."""
    played = asyncio.run(play(query, ScriptedTeacher(query), retriever, Limits.of(COMPACT)))
    return [s["output"] for s in played.samples]


def test_the_teachers_report_is_complete_and_every_citation_resolves(query, retriever, scripted, outputs):
    policy = scripted(outputs)
    outcome = asyncio.run(Report(retriever, COMPACT).run(query, policy))
    data, report = outcome.data, outcome.data["report_markdown"]
    assert data["complete"] is True and not outcome.truncated and data["invented"] == 0
    assert len(data["steps"]) == len(policy.asked) == 14  # 2 + 3 x 2 + expand + 2 x 2 + stop
    assert [s["state"] for s in data["steps"]] == [a["span"] for a in policy.asked]
    assert [s["action"] for s in data["steps"] if s["state"] == "extend"] == ["expand", "terminate"]
    assert unresolved_markers(report) == []
    headings = [line for line in report.splitlines() if line.startswith("#")]
    assert headings == [
        "# Peru, Norway and Chad",
        "## 1 Peru",
        "## 2 Norway",
        "### 2.1 Oslo",
        "### 2.2 Bergen",
        "## 3 Chad",
        "## References",
    ]
    assert "Its capital Lima has about ten million people [1]." in report
    assert "- [4] Norway Oslo. https://example.org/oslo" in report.splitlines()
    assert data["outline"]["sections"][1]["subsections"][0]["title"] == "Oslo"
    assert data["passages"]["textid1"] == {"doc_id": "peru-overview", "title": "Peru Overview", "url": ""}
    assert outcome.metrics["complete"] == outcome.metrics["valid_share"] == 1.0
    assert (outcome.metrics["sections"], outcome.metrics["references"], outcome.metrics["expanded"]) == (5, 6, 1)
    json.dumps(data)


def test_calls_use_the_states_token_limits(query, retriever, scripted, outputs):
    policy = scripted(outputs)
    asyncio.run(Report(retriever, {**COMPACT, "search_tokens": 7, "write_tokens": 9}).run(query, policy))
    assert {a["span"]: a["max_tokens"] for a in policy.asked} == {"search": 7, "initialize": 320, "write": 9, "extend": 224}
    assert [len(keywords) for keywords, k in retriever.calls if k == 4][0] == 3


def test_failures_are_retried_from_the_same_prompt_and_recorded(query, retriever, scripted, outputs, cut):
    policy = scripted([outputs[0], "<error>", cut(outputs[1], "length"), *outputs[1:]])
    outcome = asyncio.run(Report(retriever, COMPACT).run(query, policy))
    assert [s["error"] for s in outcome.data["steps"][:4]] == [None, "missing_action", "length", None]
    assert policy.asked[1]["messages"] == policy.asked[2]["messages"] == policy.asked[3]["messages"]
    assert outcome.data["complete"] and not outcome.truncated
    assert outcome.metrics["valid_share"] == pytest.approx(14 / 16)


def test_the_step_limit_truncates_and_shows_what_is_missing(query, retriever, scripted, outputs):
    outcome = asyncio.run(Report(retriever, {**COMPACT, "max_steps": 5}).run(query, scripted(outputs)))
    assert outcome.truncated and not outcome.data["complete"] and len(outcome.data["steps"]) == 5
    assert "## 2 Norway\n\n*Not written. Plan: The kingdom and its cities.*" in outcome.data["report_markdown"]
    assert unresolved_markers(outcome.data["report_markdown"]) == []


def test_running_out_of_steps_is_not_complete_even_with_every_section_written(query, retriever, scripted, outputs):
    outcome = asyncio.run(Report(retriever, {**COMPACT, "max_steps": 9}).run(query, scripted([*outputs[:8], "nonsense"])))
    assert outcome.truncated and outcome.data["complete"] is False
    assert "Not written" not in outcome.data["report_markdown"]


def test_a_report_that_never_began(query, retriever, scripted):
    outcome = asyncio.run(Report(retriever, {"max_steps": 3}).run(query, scripted(["nonsense"])))
    assert outcome.truncated and outcome.data["report_markdown"] == "" and outcome.data["outline"] is None
    assert outcome.data["complete"] is False and outcome.metrics["valid_share"] == 0


def test_invented_keys_are_removed_and_counted(query, retriever, scripted, outputs):
    bad = [text.replace("\\cite{textid1}", "\\cite{textid1, textid999}") for text in outputs]
    outcome, true = (asyncio.run(Report(retriever, COMPACT).run(query, scripted(script))) for script in (bad, outputs))
    citations = sum(text.count("\\cite{textid1}") for text in outputs)
    assert outcome.data["invented"] == outcome.metrics["invented"] == citations > 0
    assert outcome.data["report_markdown"] == true.data["report_markdown"] and outcome.data["complete"]
    assert report_html(outcome.data) == report_html(true.data)
    assert outcome.metrics["citations"] == true.metrics["citations"]


def test_a_key_invented_before_a_search_gives_it_out_stays_invented(query, retriever, scripted, outputs):
    first = next(i for i, text in enumerate(outputs) if "\\cite{textid1}" in text)
    script = [*outputs[:first], outputs[first].replace("\\cite{textid1}", "\\cite{textid6}"), *outputs[first + 1 :]]
    data = asyncio.run(Report(retriever, COMPACT).run(query, scripted(script))).data
    assert "textid6" in data["passages"] and data["invented"] > 0
    assert "Its capital Lima has about ten million people." in data["report_markdown"]
    assert json.dumps(data["outline"]).count("invented:textid6") == data["invented"]


def test_nothing_found_ends_without_sources_and_not_complete(query, scripted, outputs, retriever):
    retriever.documents = []
    samples = asyncio.run(play(query, ScriptedTeacher(query), retriever, Limits.of(COMPACT))).samples
    outcome = asyncio.run(Report(retriever, COMPACT).run(query, scripted([s["output"] for s in samples])))
    assert not outcome.truncated and outcome.data["complete"] is False and outcome.data["passages"] == {}
    assert "The search found no passages on Peru" in outcome.data["report_markdown"]
    assert "## References" not in outcome.data["report_markdown"]


def test_a_failing_search_propagates(query, scripted, outputs):
    class Down:
        async def search(self, queries, k):
            raise InfrastructureFailure("search service is down")

    with pytest.raises(InfrastructureFailure, match="is down"):
        asyncio.run(Report(Down()).run(query, scripted(outputs)))


@pytest.mark.parametrize("data", [{}, {"question": " "}, {"question": None}])
def test_a_query_without_a_question_is_bad_data(retriever, scripted, data):
    with pytest.raises(DataFailure, match="query q9 has no question"):
        asyncio.run(Report(retriever).run(Query("q9", data), scripted([""])))


def test_reports_of_one_instance_do_not_share_state(query, retriever, scripted, outputs):
    report = Report(retriever, COMPACT)

    async def both():
        return await asyncio.gather(report.run(query, scripted(outputs)), report.run(query, scripted(outputs)))

    one, two = asyncio.run(both())
    assert one.data == two.data


def test_damaged_replies_never_break_a_report(query, retriever, scripted, outputs):
    """Whatever a model says, a report ends and every marker in it resolves."""
    rng = random.Random(1)

    def damage(text):
        a = rng.randrange(len(text))
        noise = rng.choice(["", "[3]", "\\cite{textid1}", "\\cite{x}", "{", "section-1", "[a](http://b.c)", "\n\n\n", "1. "])
        return text[:a] + noise + text[a + rng.randint(0, 2) :]

    options = [
        {"hard_mode": hard_mode, "parsing": parsing, **control}
        for hard_mode in (True, False)
        for parsing in ("strict", "tolerant")
        for control in ({}, {"control": "free"}, {"control": "plan_then_write", "max_reasks": 1}, {"prompts": "detailed"})
    ]
    for chosen in options:
        script = [t for text in outputs for t in (damage(text), damage(text), text)]
        outcome = asyncio.run(Report(retriever, {**COMPACT, "max_steps": 40, **chosen}).run(query, scripted(script)))
        assert {s["error"] for s in outcome.data["steps"]} <= {None, *ERRORS}
        assert all(f["error"] in ERRORS for f in outcome.data["failures"])
        report_html(outcome.data).encode()
        assert unresolved_markers(outcome.data["report_markdown"]) == []
        json.dumps(outcome.data, ensure_ascii=False).encode()
