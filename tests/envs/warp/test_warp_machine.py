from __future__ import annotations

import json

import pytest

from envs.warp.limits import Limits
from envs.warp.machine import WarpState
from envs.warp.prompts import SYSTEM

QUESTION = "What's <new> in Peru & Norway?"
BAD = "<error>"


def _reply(action):
    body = action if isinstance(action, str) else json.dumps(action)
    return f"<thought>t</thought><action>{body}</action>"


SEARCH = _reply({"name": "search", "keywords": ["Peru"]})
INIT = _reply({"name": "init-plan", "title": "R", "sections": [{"title": t, "plan": f"about {t}"} for t in "ABC"]})
NOP = _reply({"name": "nop"})


def _extend(position, n=2):
    subsections = [{"title": f"S{i}", "plan": f"about S{i}"} for i in range(n)]
    return _reply({"name": "extend-plan", "position": position, "subsections": subsections})


def _write(machine, extra=""):
    return _reply(f"This is what {machine.cursor} has to say on its topic \\cite{{{machine.shown[0]}}}.{extra}")


@pytest.fixture
def play(doc):
    """play(machine, *replies): a reply of None is the valid one for a search or a write."""

    def _play(machine, *replies):
        for text in replies:
            if text is None:
                text = SEARCH if machine.state == "search" else _write(machine)
            reply = machine.parse(text)
            found = [doc(f"d{machine.step}", "D", f"fact {machine.step}")] if machine.state == "search" and reply.valid else []
            machine.apply(reply, found)
        return machine

    return _play


@pytest.fixture
def written(play):
    """written(limits): a machine that has just written its three sections."""
    return lambda **limits: play(WarpState(QUESTION, Limits(**limits)), SEARCH, INIT, *[None] * 6)


def test_start():
    machine = WarpState(QUESTION)
    assert (machine.state, machine.cursor, machine.outline, machine.step, machine.expansions) == ("search", "outline", None, 0, 0)


@pytest.mark.parametrize(
    ("replies", "state", "cursor"),
    [
        ([BAD], "search", "outline"),
        ([SEARCH], "initialize", "outline"),
        ([SEARCH, BAD], "initialize", "outline"),
        ([SEARCH, SEARCH], "initialize", "outline"),
        ([SEARCH, INIT], "search", "section-1"),
        ([SEARCH, INIT, BAD], "search", "section-1"),
        ([SEARCH, INIT, None], "write", "section-1"),
        ([SEARCH, INIT, None, BAD], "write", "section-1"),
        ([SEARCH, INIT, None, None], "search", "section-2"),
        ([SEARCH, INIT, *[None] * 5], "write", "section-3"),
        ([SEARCH, INIT, *[None] * 6], "extend", None),
        ([SEARCH, INIT, *[None] * 6, BAD], "extend", None),
        ([SEARCH, INIT, *[None] * 6, NOP], "done", None),
        ([SEARCH, INIT, *[None] * 6, _extend("section-2")], "search", "section-2.1"),
        ([SEARCH, INIT, *[None] * 6, _extend("section-2"), *[None] * 2], "search", "section-2.2"),
        ([SEARCH, INIT, *[None] * 6, _extend("section-2"), *[None] * 4], "extend", None),
        ([SEARCH, INIT, *[None] * 6, _extend("section-2"), *[None] * 4, _extend("section-2.1")], "search", "section-2.1.1"),
    ],
)
def test_transitions(play, replies, state, cursor):
    machine = play(WarpState(QUESTION), *replies)
    assert (machine.state, machine.cursor, machine.step) == (state, cursor, len(replies))
    assert not machine.out_of_steps


def test_a_failed_step_changes_nothing_but_the_count(play):
    machine = play(WarpState(QUESTION), SEARCH, INIT, None)
    before = (machine.hash, machine.prompt())
    play(machine, BAD)
    assert (machine.hash, machine.prompt()) == before and machine.step == 4


def test_expansions_count_attempts(written, play):
    machine = written()
    assert machine.expansions == 1  # entering the state counts
    assert play(machine, BAD).expansions == 2
    assert play(machine, _extend("section-1")).expansions == 2
    assert play(machine, *[None] * 4).expansions == 3


def test_extension_ends_at_the_limit_of_attempts(written, play):
    machine = written(max_expansions=2)
    assert play(machine, BAD).state == "extend"  # the old count, 1, was below 2
    assert play(machine, BAD).state == "done"
    assert machine.expansions == 3 and not machine.out_of_steps

    machine = play(written(max_expansions=1), _extend("section-1"))
    assert play(machine, *[None] * 4).state == "done"  # no second attempt
    assert written(max_expansions=0).state == "done"


def test_the_step_limit_ends_the_report(play):
    machine = play(WarpState(QUESTION, Limits(max_steps=3)), SEARCH, BAD, INIT)
    assert machine.done and machine.out_of_steps and machine.step == 3


def test_ending_in_the_last_step_is_not_running_out(written, play):
    machine = play(written(max_steps=9), NOP)
    assert machine.done and not machine.out_of_steps


def test_expandable_positions_are_those_of_the_limits(written, play):
    machine = written()
    assert machine.context.expandable == ("section-1", "section-2", "section-3")
    play(machine, _extend("section-2"), *[None] * 4)
    assert machine.context.expandable == ("section-1", "section-2.1", "section-2.2", "section-3")
    assert machine.parse(_extend("section-2")).error == "bad_position"  # not twice
    play(machine, _extend("section-2.1"), *[None] * 4)
    assert machine.parse(_extend("section-2.1.1")).error == "bad_position"  # not below level 3
    assert machine.parse(_extend("section-2.2")).valid


def test_the_deepest_level_is_an_option(written, play):
    machine = play(written(max_levels=2), _extend("section-2"), *[None] * 4)
    assert machine.context.expandable == ("section-1", "section-3")
    machine = written(max_levels=1)
    assert machine.context.expandable == () and machine.parse(_extend("section-1")).error == "bad_position"


def test_citations_are_checked_against_the_prompts_passages(play, doc):
    machine = play(WarpState(QUESTION), SEARCH, INIT, None)
    assert machine.shown == ["textid2"] and machine.context.allowed_keys == ("textid2",)
    play(machine, _write(machine, " More \\cite{textid2, textid1}, and \\cite{textid999}."))
    assert machine.outline.find("section-1").content == (  # textid1 exists, but another prompt showed it
        "This is what section-1 has to say on its topic \\cite{textid2}. "
        "More \\cite{textid2, invented:textid1}, and \\cite{invented:textid999}."
    )
    assert "has to say on its topic. More, and." in machine.prompt()[1]["content"]  # no citation of the draft is shown


def test_keys_are_global_and_shown_once(doc):
    machine = WarpState(QUESTION)
    machine.apply(machine.parse(SEARCH), [doc("a", "", "one"), doc("b", "", "two")])
    machine.apply(machine.parse(INIT))
    machine.apply(machine.parse(SEARCH), [doc("c", "", "three"), doc("x", "", "two ")])
    assert machine.shown == ["textid3", "textid2"]
    assert "textid3: three\ntextid2: two\n" in machine.prompt()[1]["content"]


def test_prompts_are_one_system_and_one_user_message_with_raw_inputs(play, doc):
    machine = WarpState(QUESTION)
    machine.apply(machine.parse(SEARCH), [doc("a", "", "It's <b>copper</b> & {gold} \\textbf.")])
    system, user = machine.prompt()
    assert system == {"role": "system", "content": SYSTEM} and user["role"] == "user"
    lines = user["content"].splitlines()
    assert lines[:2] == ["Question: What's <new> in Peru & Norway?", "textid1: It's <b>copper</b> & {gold} \\textbf."]


def test_each_state_shows_what_it_needs(written, play):
    start = WarpState(QUESTION).prompt()[1]["content"]
    assert "section-" not in start and "textid" not in start and '"search"' in start and "1-5 keywords" in start
    machine = play(WarpState(QUESTION), SEARCH)
    assert "textid1: fact 0" in machine.prompt()[1]["content"] and "3-12 sections" in machine.prompt()[1]["content"]
    search = play(machine, INIT).prompt()[1]["content"]
    assert "section-1 A [PLAN] about A" in search and "textid" not in search and "for section-1." in search
    write = play(machine, None).prompt()[1]["content"]
    assert "section-1 A [PLAN] about A" in write and "textid2: fact 2" in write and "textid1" not in write
    assert "write section-1 " in write and "\\cite{textidN}" in write
    extend = written().prompt()[1]["content"]
    assert "section-3 C [OK] This is what section-3" in extend and "textid" not in extend and "2-7 subsections" in extend


def test_fixed_instructions_are_short(play, written):
    for machine in (WarpState(QUESTION), play(WarpState(QUESTION), SEARCH), written()):
        task = machine.prompt()[1]["content"].rsplit("\n", 1)[1]
        assert len(task.split()) <= 25


def test_nothing_found_is_said_and_leaves_nothing_to_cite():
    machine = WarpState(QUESTION)
    machine.apply(machine.parse(SEARCH))
    assert machine.state == "initialize" and "The search found no passages." in machine.prompt()[1]["content"]
    machine.apply(machine.parse(INIT))
    machine.apply(machine.parse(SEARCH))
    assert "The search found no passages." in machine.prompt()[1]["content"] and "\\cite" not in machine.prompt()[1]["content"]
    assert machine.parse(_reply("Nothing was found on this topic, so there is nothing to report.")).valid


def _long(machine, first):
    return _reply(" ".join([first, *["word"] * 198, "last", f"\\cite{{{machine.shown[0]}}}"]))


def test_long_texts_are_abbreviated_but_the_last_branch_when_writing(play):
    machine = play(WarpState(QUESTION), SEARCH, INIT, None)
    play(machine, _long(machine, "first"), None)
    full = "section-1 A [OK] " + " ".join(["first", *["word"] * 198, "last"])
    short = "section-1 A [OK] " + " ".join(["first", *["word"] * 99, "...", *["word"] * 49, "last"])
    lines = machine.prompt()[1]["content"].splitlines()
    assert machine.state == "write" and full in lines and short not in lines
    play(machine, None)
    assert machine.state == "search" and short in machine.prompt()[1]["content"].splitlines()
    play(machine, None)  # section-2 is now the last written
    assert machine.state == "write" and short in machine.prompt()[1]["content"].splitlines()
    play(machine, None)
    assert machine.state == "extend" and full in machine.prompt()[1]["content"].splitlines()


def test_without_full_text_everything_is_abbreviated(play):
    machine = play(WarpState(QUESTION, Limits(full_text=False)), SEARCH, INIT, None)
    play(machine, _long(machine, "first"), None)
    assert " ... " in machine.prompt()[1]["content"]
    play(machine, *[None] * 3)
    assert machine.state == "extend" and " ... " in machine.prompt()[1]["content"]


def test_section_10_is_not_of_section_1s_branch(play):
    sections = [{"title": f"T{i}", "plan": "p"} for i in range(1, 13)]
    init = _reply({"name": "init-plan", "title": "R", "sections": sections})
    limits = Limits(abbreviate_over=3, abbreviate_head=2, abbreviate_tail=0)
    machine = play(WarpState(QUESTION, limits), SEARCH, init, *[None] * 24)
    play(machine, _extend("section-1"), *[None] * 3)
    assert (machine.state, machine.cursor) == ("write", "section-1.2")
    lines = machine.prompt()[1]["content"].splitlines()
    assert "section-1 T1 [OK] This is what section-1 has to say on its topic." in lines
    assert "section-10 T10 [OK] This is ..." in lines


def test_the_hash_names_the_state(play):
    one, two = (play(WarpState(QUESTION), SEARCH, INIT) for _ in range(2))
    assert one.hash == two.hash and len(one.hash) == 16
    assert play(one, BAD).hash == two.hash
    assert play(one, None).hash != two.hash
    assert WarpState("Other?").hash != WarpState(QUESTION).hash
