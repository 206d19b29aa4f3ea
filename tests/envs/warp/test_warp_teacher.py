from __future__ import annotations

import asyncio
import json

import pytest

from envs.warp.limits import Limits
from envs.warp.machine import WarpState
from envs.warp.outline import Outline
from envs.warp.play import play
from envs.warp.teacher import ModelTeacher, ScriptedTeacher, compose
from rlcore.errors import DataFailure
from tests.envs.warp.conftest import COMPACT, QUESTION, Text


def reply(action, thought="Because."):
    body = action if isinstance(action, str) else json.dumps(action)
    return f"<thought>{thought}</thought><action>{body}</action>"


NOP = reply({"name": "nop"})
EXPAND = reply({"name": "extend-plan", "position": "section-1", "subsections": [{"title": t, "plan": "P."} for t in "AB"]})


class Asked:
    """`ask` of a ModelTeacher with prepared replies; records names and prompts."""

    def __init__(self, *replies):
        self.replies, self.names, self.prompts = list(replies), [], []

    def __call__(self, name):
        self.names.append(name)
        return self

    async def generate(self, messages, *, max_tokens=None, span=None):
        self.prompts.append((messages, max_tokens, span))
        text = self.replies.pop(0)
        return text if isinstance(text, Text) else Text(text)


@pytest.fixture
def deciding():
    """A machine in which three sections are written and the decision is due."""
    machine = WarpState(QUESTION, Limits.of(COMPACT))
    machine.outline = Outline.plan("T", [{"title": t, "plan": "P."} for t in ("Peru", "Norway", "Chad")])
    for i in (1, 2, 3):
        machine.outline.write(f"section-{i}", "Text.")
    machine.state, machine.cursor, machine.expansions = "extend", None, 1
    return machine


def answer(teacher, machine):
    return asyncio.run(teacher.reply(machine))


def test_a_model_is_asked_with_the_pupils_prompt_and_its_action_written_out_anew(query, deciding):
    ask = Asked("Well.<thought> Peru. </thought>\n" + EXPAND[EXPAND.index("<action>") :] + " Done.")
    output = answer(ModelTeacher(query, ask, attempts=1), deciding)
    assert output == "<thought>Peru.</thought>" + EXPAND[EXPAND.index("<action>") :].replace(": ", ":").replace(", ", ",")
    assert ask.prompts == [(deciding.prompt(), 224, "extend")]
    assert ask.names == [f"q0001/0/{deciding.hash}/0"]


def test_a_forced_model_is_told_to_go_on_and_asked_again_when_it_stops(query, deciding):
    ask = Asked(NOP, EXPAND)
    output = answer(ModelTeacher(query, ask, attempts=2, force=True), deciding)
    assert '"extend-plan"' in output and [name[-1] for name in ask.names] == ["0", "1"]
    told = ask.prompts[0][0][-1]["content"]
    assert told.startswith(deciding.prompt()[-1]["content"]) and told.splitlines()[-1].startswith("Do not stop yet")
    assert answer(ModelTeacher(query, Asked(NOP), attempts=1), deciding).endswith('<action>{"name":"nop"}</action>')


def test_a_forced_model_stops_by_itself_when_nothing_can_be_expanded(query, deciding):
    deciding.limits = Limits.of({**COMPACT, "max_levels": 1})
    teacher = ModelTeacher(query, Asked(), attempts=1, force=True)
    assert answer(teacher, deciding) == teacher.stop("en")
    assert "报告" in teacher.stop("zh") and teacher.stop("zh").endswith('<action>{"name":"nop"}</action>')


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        ("no tags", "missing_action"),
        ('<action>{"name":"nop"}</action>', "missing_thought"),
        (Text(NOP, "length"), "length"),
        (NOP, "stopped"),
        (f"{EXPAND.partition('</thought>')[2]}<thought>Not <action> yet.</thought>", "ambiguous"),
    ],
)
def test_replies_that_cannot_be_used_are_asked_for_again_within_a_budget(query, deciding, bad, problem):
    with pytest.raises(DataFailure, match=f"no usable reply in 2 attempts at extend : {problem}"):
        answer(ModelTeacher(query, Asked(bad, bad), attempts=2, force=True), deciding)
    assert '"extend-plan"' in answer(ModelTeacher(query, Asked(bad, EXPAND), attempts=2, force=True), deciding)


def test_a_text_that_cites_what_was_not_shown_is_asked_for_again(query, deciding, doc):
    deciding.outline.sections[0].content = None
    deciding.state, deciding.cursor = "write", "section-1"
    deciding.shown = [deciding.book.add(doc("d", "D", "Lima is the capital of Peru."))]
    text = "Lima is the capital of Peru, a country on the coast of South America \\cite{%s}."
    ask = Asked(reply(text % "textid9"), reply(text % "textid1"))
    assert answer(ModelTeacher(query, ask, attempts=2), deciding) == reply(text % "textid1")


def test_the_golden_documents_of_a_model_are_those_its_texts_cite(query, retriever):
    """The scripted teacher's replies, as if a model had given them: it cites all that is golden but for the outline's search,
    where a model has no oracle."""
    scripted = asyncio.run(play(query, ScriptedTeacher(query), retriever, Limits.of(COMPACT))).samples
    ask = Asked(*(s["output"] for s in scripted))
    samples = asyncio.run(play(query, ModelTeacher(query, ask, attempts=1), retriever, Limits.of(COMPACT))).samples
    assert [s["output"] for s in samples] == [s["output"] for s in scripted]
    golden = [s["reference"]["golden_doc_ids"] for s in samples if s["action"] == "search"]
    assert golden[1:4] == [["peru-overview"], ["norway-overview", "norway-economy"], ["chad-overview"]]
    assert golden[4:] == [["norway-oslo"], ["norway-bergen"]]
    assert set(golden[0]) == {"peru-overview", "norway-overview", "chad-overview"}
    assert next(s["reference"] for s in samples if s["action"] == "initialize")["required"] == ["Peru", "Norway", "Chad"]


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
