"""Who decides what comes next (`control`), what happens to an action that keeps failing, and what prompts show of the draft."""

from __future__ import annotations

import asyncio
import json

import pytest

from envs.warp.limits import Limits
from envs.warp.machine import WarpState
from envs.warp.report import Report
from rlcore.errors import DataFailure, NoRoom
from rlcore.types import Query

QUESTION = "What about A, B and C?"
BAD = "<error>"


def _reply(action):
    body = action if isinstance(action, str) else json.dumps(action)
    return f"<thought>t</thought><action>{body}</action>"


def _items(names, **more):
    return [{"title": name, "plan": f"about {name}", **more} for name in names]


SEARCH = _reply({"name": "search", "keywords": ["Peru"]})
INIT = _reply({"name": "init-plan", "title": "R", "sections": _items("ABC")})
WRITE = _reply("This is what the section has to say on its topic, at some length.")
NOP = _reply({"name": "nop"})


def _expand(position):
    return _reply({"name": "extend-plan", "position": position, "subsections": _items(["x", "y"])})


@pytest.fixture
def play(doc):
    """play(limits, *replies): the machine after these replies, and the error of the last."""

    def _play(limits, *replies):
        machine, reply = WarpState(QUESTION, Limits(citation_required=False, **limits)), None
        for text in replies:
            reply = machine.parse(text)
            searched = reply.kind == "search"
            machine.apply(reply, [doc(f"d{machine.step}", "D", f"fact {machine.step}")] if searched else [])
        return machine, reply.error if reply else None

    return _play


FREE = {"control": "free"}
WRITTEN = [SEARCH, INIT, *[SEARCH, WRITE] * 3]


@pytest.mark.parametrize(
    ("replies", "error", "state", "cursor"),
    [
        ([INIT], None, "search", "section-1"),  # a plan without a search
        ([SEARCH, SEARCH], None, "initialize", "outline"),  # another search instead
        ([WRITE], "illegal", "search", "outline"),
        ([NOP], "illegal", "search", "outline"),
        ([_expand("section-1")], "illegal", "search", "outline"),
        ([SEARCH, INIT, INIT], "illegal", "search", "section-1"),
        ([SEARCH, INIT, WRITE], None, "search", "section-2"),  # a text without a search
        ([SEARCH, INIT, NOP], "illegal", "search", "section-1"),
        ([SEARCH, INIT, _expand("section-1")], "illegal", "search", "section-1"),  # nothing is written yet
        ([SEARCH, INIT, WRITE, _expand("section-1")], None, "search", "section-1.1"),  # in the middle of the draft
        ([SEARCH, INIT, WRITE, _expand("section-2")], "bad_position", "search", "section-2"),
        ([*WRITTEN], None, "extend", None),
        ([*WRITTEN, SEARCH], "illegal", "extend", None),
        ([*WRITTEN, WRITE], "illegal", "extend", None),
        ([*WRITTEN, _expand("section-3")], None, "search", "section-3.1"),
        ([*WRITTEN, NOP], None, "done", None),
        ([SEARCH, _reply('{"name":"plan"}')], "bad_name", "initialize", "outline"),
        ([SEARCH, INIT, _reply('{"name":"search"')], "bad_json", "search", "section-1"),  # a broken object is no text
    ],
)
def test_free_control(play, replies, error, state, cursor):
    machine, last = play(FREE, *replies)
    assert (last, machine.state, machine.cursor, machine.step) == (error, state, cursor, len(replies))


def test_the_same_replies_under_the_state_machine_are_only_bad(play):
    assert play({}, INIT)[1] == "bad_name" and play({}, SEARCH, INIT, WRITE)[1] == "bad_json"


def test_an_impossible_action_is_counted_and_reported_in_the_next_prompt_only(play):
    machine, _ = play(FREE, SEARCH, NOP)
    assert machine.failures == [{"step": 2, "state": "initialize", "cursor": "outline", "error": "illegal"}]
    assert "possible: search, initialize." in machine.prompt()[1]["content"]
    fresh, _ = play(FREE, SEARCH)
    assert "refused" not in fresh.prompt()[1]["content"] and machine.hash != fresh.hash
    machine.apply(machine.parse(BAD))
    assert "refused" not in machine.prompt()[1]["content"] and len(machine.failures) == 1


def test_free_control_asks_for_any_of_the_five_and_shows_the_passages(play):
    machine, _ = play(FREE, SEARCH, INIT, SEARCH)
    prompt = machine.prompt()[1]["content"]
    assert all(name in prompt for name in ('"search"', '"init-plan"', '"extend-plan"', '"nop"', "\\cite{textidN}"))
    assert "write section-1" in prompt and "textid2: fact 2" in prompt
    assert machine.context.allowed_keys == ("textid2",) and machine.context.legal == ("search", "write")
    assert machine.limits.max_tokens("search") == 2048
    assert Limits(control="free", search_tokens=5, write_tokens=9, initialize_tokens=7, extend_tokens=7).max_tokens("search") == 9


def test_expansions_have_a_budget_in_free_control_too(play):
    early = [SEARCH, INIT, WRITE, _expand("section-1")]
    machine, error = play({**FREE, "max_expansions": 1}, *early, WRITE, _expand("section-1.1"))
    assert error == "illegal" and machine.expansions == 1
    machine, _ = play({**FREE, "max_expansions": 1}, *early, *[WRITE] * 4)
    assert machine.done and not machine.failures
    machine, _ = play({**FREE, "max_expansions": 2}, *early, *[WRITE] * 4)
    assert machine.state == "extend" and machine.expansions == 2


def _nested():
    deep = _items(["A1", "A2"])
    deep[1]["subsections"] = _items(["A21", "A22"])
    return [{**_items("A")[0], "subsections": deep}, *_items("BC", subsections=[])]


PLAN = {"control": "plan_then_write"}


def test_plan_then_write_plans_every_level_and_then_only_writes(play):
    init = _reply({"name": "init-plan", "title": "R", "sections": _nested()})
    machine, _ = play(PLAN, SEARCH)
    assert "every level" in machine.prompt()[1]["content"] and '"subsections"' in machine.prompt()[1]["content"]
    order = []
    machine, error = play(PLAN, SEARCH, init)
    assert error is None
    while not machine.done:
        order.append(machine.cursor)
        machine.apply(machine.parse(SEARCH))
        machine.apply(machine.parse(WRITE))
    assert order == [f"section-{n}" for n in ("1", "1.1", "1.2", "1.2.1", "1.2.2", "2", "3")]
    assert machine.expansions == 0 and machine.step == 16 and not machine.out_of_steps


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda s: s[0].update(subsections=_items("x")), "too_few_subsections"),
        (lambda s: s[0].update(subsections=_items("abcdefgh")), "too_many_subsections"),
        (lambda s: s[0].update(subsections="x"), "bad_keys"),
        (lambda s: s[0]["subsections"][1]["subsections"][0].update(subsections=_items("xy")), "bad_keys"),  # a fourth level
        (lambda s: s[0]["subsections"][0].update(title="a\tb"), "bad_text"),
        (lambda s: s[0]["subsections"][0].pop("plan"), "bad_keys"),
        (lambda s: s.pop(), "too_few_sections"),
    ],
)
def test_every_level_of_a_plan_is_checked(play, change, error):
    sections = _nested()
    change(sections)
    assert play(PLAN, SEARCH, _reply({"name": "init-plan", "title": "R", "sections": sections}))[1] == error


def test_subsections_in_a_first_plan_are_for_plan_then_write_only(play):
    assert play({}, SEARCH, _reply({"name": "init-plan", "title": "R", "sections": _nested()}))[1] == "bad_keys"


@pytest.mark.parametrize(
    ("replies", "state", "cursor", "failed"),
    [
        ([BAD, BAD], "search", "outline", None),
        ([BAD] * 3, "done", "outline", ("search", "outline")),  # nothing can be planned
        ([SEARCH, BAD, BAD, INIT, BAD, BAD], "search", "section-1", None),  # a good reply ends the count
        ([SEARCH, INIT, BAD, BAD, BAD], "search", "section-2", ("search", "section-1")),
        ([SEARCH, INIT, SEARCH, BAD, BAD, BAD], "search", "section-2", ("write", "section-1")),
        ([SEARCH, INIT, *[SEARCH, WRITE] * 2, SEARCH, BAD, BAD, BAD], "extend", None, ("write", "section-3")),
        ([*WRITTEN, BAD, BAD, BAD], "done", None, ("extend", None)),
    ],
)
def test_a_bad_reply_is_asked_again_twice_and_then_the_action_is_given_up(play, replies, state, cursor, failed):
    machine, _ = play({"max_reasks": 2}, *replies)
    assert (machine.state, machine.cursor) == (state, cursor)
    assert [(f["state"], f["cursor"], f["error"]) for f in machine.failures] == ([(*failed, "missing_action")] if failed else [])


def test_without_a_budget_only_the_step_limit_ends_asking(play):
    machine, _ = play({"max_steps": 30}, *[BAD] * 29)
    assert machine.state == "search" and machine.failures == []


def test_a_section_given_up_stays_visible_and_cannot_be_expanded(play, query, retriever, scripted):
    machine, _ = play({"max_reasks": 0}, SEARCH, INIT, BAD, *[SEARCH, WRITE] * 2)
    assert machine.state == "extend" and machine.context.expandable == ("section-2", "section-3")
    script = [SEARCH, INIT, BAD, *[SEARCH, WRITE] * 2, NOP]
    outcome = asyncio.run(Report(retriever, {"max_reasks": 0, "citation_required": False}).run(query, scripted(script)))
    assert "## 1 A\n\n*Not written. Plan: about A*" in outcome.data["report_markdown"]
    assert outcome.data["complete"] is False and not outcome.truncated and outcome.metrics["failures"] == 1
    assert outcome.data["failures"] == [{"step": 3, "state": "search", "cursor": "section-1", "error": "missing_action"}]


def test_errors_are_shown_only_when_asked_for(play):
    six = _reply({"name": "search", "keywords": list("abcdef")})
    assert "refused" not in play({}, six)[0].prompt()[1]["content"]
    machine, _ = play({"show_errors": True}, six)
    assert "Your last reply was refused: there were more than 5 keywords.\nTask: " in machine.prompt()[1]["content"]
    machine.apply(machine.parse(SEARCH))
    assert "refused" not in machine.prompt()[1]["content"]


def test_a_prompt_that_leaves_no_room_ends_its_action_and_not_the_report(query, retriever, scripted):
    class Narrow(scripted):
        async def generate(self, messages, **kwargs):
            if "write section-2" in messages[1]["content"]:
                raise NoRoom("prompt of 9000 tokens leaves no room")
            return await super().generate(messages, **kwargs)

    policy = Narrow([SEARCH, INIT, SEARCH, WRITE, SEARCH, SEARCH, WRITE, NOP])
    outcome = asyncio.run(Report(retriever, {"citation_required": False}).run(query, policy))
    assert [s["error"] for s in outcome.data["steps"]] == [None, None, None, None, None, "no_room", None, None, None]
    assert [f["error"] for f in outcome.data["failures"]] == ["no_room"]
    assert outcome.data["report_markdown"].count("Not written") == 1 and not outcome.data["complete"]


def test_a_draft_that_is_not_shown_is_still_judged(play):
    """The ablation: SEARCH and WRITE see the plan alone; EXTEND, which is about the draft, sees it."""
    replies = [SEARCH, INIT, SEARCH, WRITE, SEARCH]
    for limits, shown in [({}, True), ({"condition_on_draft": False}, False)]:
        for n in (4, 5):  # search and write of section-2
            machine, _ = play(limits, *replies[:n])
            prompt = machine.prompt()[1]["content"]
            assert ("section-1 A [OK] This is what" in prompt) is shown and ("section-1 A [OK] about A" in prompt) is not shown
    assert "[OK] This is what" in play({"condition_on_draft": False}, *WRITTEN)[0].prompt()[1]["content"]


def test_a_question_no_file_can_hold_is_bad_data(retriever, scripted):
    with pytest.raises(DataFailure, match="has no question"):
        asyncio.run(Report(retriever).run(Query("q", {"question": "\ud800"}), scripted([""])))
