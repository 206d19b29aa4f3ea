"""The report reward on a world of three documents, where every score can be worked out by hand."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from envs.warp.report import Report
from rewards.report import WarpReport, checklist_score
from rewards.sentences import Sentence, sentences
from rlcore.errors import ConfigError
from rlcore.targets import Target, build
from rlcore.types import Outcome, Query, Trajectory
from tests.envs.warp.conftest import Doc, Scripted

ROWS = [
    ("peru-capital", "Capital of Peru", "The capital of Peru is Lima and its continent is South America."),
    ("peru-size", "Size of Peru", "The area of Peru is 1,285,216 square kilometres and its population is 31,989,256."),
    ("lima", "Lima", "Lima is the capital of Peru and has 7,737,002 inhabitants."),
]
DOCUMENTS = {row[0]: f"{row[1]}. {row[2]}" for row in ROWS}
KEYS = {"textid1": "peru-capital", "textid2": "peru-size", "textid3": "lima"}
CHECKLIST = [
    {"id": "c1", "topic": "Peru", "doc_id": "peru-capital", "must_include": ["Lima"]},
    {"id": "c2", "topic": "Peru", "doc_id": "peru-size", "must_include": ["1,285,216"]},
]
QUESTION = "Write a report on Peru, and go deeper into its capital."
CAPITAL = "The capital of Peru is Lima \\cite{textid1}."
SIZE = "The area of Peru is 1,285,216 square kilometres \\cite{textid2}."


def parts(*texts: str) -> dict[str, float]:
    return checklist_score(CHECKLIST, texts, KEYS, DOCUMENTS)


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    path = tmp_path / "corpus.jsonl"
    lines = [{"id": i, "title": title, "contents": text, "url": f"urn:{i}"} for i, title, text in ROWS]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def report(*texts: str | None, title: str = "Peru", complete: bool = True, **query: Any) -> Trajectory:
    sections = [{"title": title, "plan": title, "content": text, "subsections": []} for text in texts]
    data = {
        "outline": {"title": title, "sections": sections} if texts else None,
        "passages": {key: {"doc_id": doc_id, "title": "", "url": ""} for key, doc_id in KEYS.items()},
        "complete": complete,
    }
    return Trajectory(Query("q1", {"question": QUESTION, "checklist": CHECKLIST, **query}), "g", 0, outcome=Outcome(data))


def test_sentences_keep_their_citations_on_either_side_of_the_stop():
    text = "In 1774 by J. Gahn of St. Ives \\cite{a}. Later!\\cite{b, c} \\cite{d} It weighs 54.9.\nNo stop \\cite{e}"
    assert sentences(text) == [
        Sentence("In 1774 by J. Gahn of St. Ives.", ("a",)),
        Sentence("Later!", ("b", "c", "d")),
        Sentence("It weighs 54.9.", ()),
        Sentence("No stop", ("e",)),
    ]
    assert sentences("秘鲁的首都是利马。\\cite{a}面积很大\\cite{b}。") == [
        Sentence("秘鲁的首都是利马。", ("a",)),
        Sentence("面积很大。", ("b",)),
    ]
    assert sentences("") == sentences(" . \\cite{a}") == []
    # Nothing but punctuation in between, and keys that would end a sentence if they were words
    assert sentences("It is so. (\\cite{a})\n- \\cite{b}\nNext.") == [Sentence("It is so.", ("a", "b")), Sentence("Next.", ())]
    assert sentences("It is so \\cite{a. b\nc。d} \\cite{7}.") == [Sentence("It is so.", ("a. b\nc。d", "7"))]


def test_both_facts_under_their_documents_are_everything():
    assert parts(CAPITAL, SIZE) == {"facts": 1, "supported": 1, "stated": 1, "holding": 1, "distinct": 1}


@pytest.mark.parametrize(
    ("text", "facts", "holding"),
    [
        (CAPITAL, 1 / 2, 1),
        ("The capital of Peru is Lima \\cite{textid3}.", 1 / 2, 1),  # another document that says so of Peru
        ("The capital of Peru is Lima.", 0.25 / 2, 0),  # stated, not cited
        ("The capital of Peru is Lima \\cite{textid2}.", 0, 0),  # its source names Peru and nothing else of it
        ("The capital of Peru is Lima \\cite{textid1, textid9}.", 0, 0),  # one key was never given out
        ("The capital of Peru is Limassol \\cite{textid1}.", 0, 1),  # whole words only; most words do stand there
        ("Peru has 21,285,216 square kilometres \\cite{textid2}.", 0, 0),  # no part of a longer number
        ("Peru has 1,285,216.5 square kilometres \\cite{textid2}.", 0, 0),
        ("The capital of Peru is Quito \\cite{textid1}. It is Lima, they say.", 0.25 / 2, 1),
        ("Peru covers an area of 1,285,216 square kilometres with 12 volcanoes \\cite{textid2}.", 0, 0),  # 12 is made up
        ("Lima was founded by distant travellers long before trade \\cite{textid3}.", 0, 0),  # one word of seven is the source's
    ],
)
def test_one_sentence(text, facts, holding):
    found = parts(text)
    assert (found["facts"], found["holding"]) == (pytest.approx(facts), holding)


class ByName:
    """A search whose keywords are ids of documents."""

    async def search(self, queries: list[str], k: int) -> list[list[Doc]]:
        return [[Doc(*row) for row in ROWS if row[0] == name] for name in queries]


def written(*texts: str) -> Trajectory:
    """The report of a policy that writes these texts, each after a search that gives out textid1 and textid2 only."""

    def reply(action: Any) -> str:
        return f"<thought>t</thought><action>{action if isinstance(action, str) else json.dumps(action)}</action>"

    plan = {"name": "init-plan", "title": "Peru", "sections": [{"title": f"Part {n}", "plan": "p"} for n in range(len(texts))]}
    search = reply({"name": "search", "keywords": ["peru-capital", "peru-size"]})
    first = reply({"name": "search", "keywords": ["peru-capital", "peru-size", "lima"]})
    script = [first, reply(plan), *(step for text in texts for step in (search, reply(text)))]
    limits = {"min_sections": 1, "max_expansions": 0, "citation_required": False}
    query = Query("q1", {"question": QUESTION, "checklist": CHECKLIST})
    outcome = asyncio.run(Report(ByName(), limits).run(query, Scripted(script)))
    assert outcome.data["complete"] and outcome.metrics["valid_share"] == 1
    return Trajectory(query, "g", 0, outcome=outcome)


LONG = "The capital of Peru is Lima and its continent is South America"  # a WRITE has more than 50 characters


@pytest.mark.parametrize(
    ("mark", "facts", "holding", "invented", "references"),
    [
        (" \\cite{textid1}", 1 / 2, 1, 0, 1),
        ("", 0.25 / 2, 0, 0, 0),  # uncited
        (" \\cite{textid2}", 0, 0, 0, 1),  # a real key, but not of what is said
        (" \\cite{textid999}", 0, 0, 1, 0),
        (" \\cite{textid1, textid999}", 0, 0, 1, 1),
        (" \\cite{textid1} \\cite{a. b}", 0, 0, 1, 1),
        (" \\cite{textid3}", 0, 0, 1, 0),  # says so, but this prompt did not show it
        (" \\cite{invented:textid1}", 0, 0, 1, 0),
    ],
)
def test_an_invented_key_earns_no_more_than_a_wrong_one(corpus, mark, facts, holding, invented, references):
    trajectory = written(f"{LONG}{mark}.")
    result, metrics = WarpReport(corpus)(trajectory), trajectory.outcome.metrics
    markdown = trajectory.outcome.data["report_markdown"]
    assert (result.components["facts"], result.components["holding"]) == (facts, holding)
    assert result.value == pytest.approx(facts * (1 - 0.2 * (1 - holding)))
    assert (metrics["invented"], metrics["references"], metrics["citations"]) == (invented, references, references)
    assert "textid" not in markdown and "invented" not in markdown and ("[1]." in markdown) is bool(references)


def test_an_invented_key_costs_what_is_written_beside_it(corpus):
    reward, size = WarpReport(corpus), "The area of Peru is 1,285,216 square kilometres"
    honest, bare, invented = (
        reward(written(f"{LONG} \\cite{{textid1}}.", f"{size} in all{mark}."))
        for mark in (" \\cite{textid2}", "", " \\cite{textid4}")
    )
    assert honest.value == 1
    assert bare.value == pytest.approx((1 + 0.25) / 2)  # one citation, and it holds
    assert invented.value == pytest.approx(1 / 2 * (1 - 0.2 / 2))  # one of two citations holds


def test_the_equation_by_hand(corpus):
    reward = WarpReport(corpus, uncited=0.5, holding=0.2, complete=0.1)
    assert reward(report(CAPITAL, SIZE)).value == 1
    assert reward(report(CAPITAL, SIZE, None, complete=False)).value == pytest.approx(0.9)
    # facts (1 + 0.5) / 2, one of one citations holds, all of two sentences are distinct, not complete
    result = reward(report(CAPITAL, "The area of Peru is 1,285,216 square kilometres.", complete=False))
    assert result.value == pytest.approx(0.75 * 0.9)
    assert result.components == {
        "facts": 0.75, "supported": 0.5, "stated": 1, "holding": 1, "distinct": 1, "complete": 0
    }  # fmt: skip
    # facts 1/2; the second citation does not hold
    assert reward(report(CAPITAL + " Peru has 12 volcanoes \\cite{textid2}.")).value == pytest.approx(0.5 * (1 - 0.2 / 2))


def test_an_unfinished_report_keeps_what_it_earned_and_one_never_begun_has_0(corpus):
    reward = WarpReport(corpus)
    assert reward(report(CAPITAL, None, complete=False)).value == pytest.approx(0.5 * 0.9)
    assert reward(report(complete=False)).value == 0
    assert reward(report(None, None, complete=False)).value == 0


@pytest.mark.parametrize(
    "texts",
    [
        (f"{QUESTION} \\cite{{textid1}}",) * 3,  # the question, copied
        ("See the titles \\cite{textid1}.",),  # facts in titles and plans only
        ("Lima, 1,285,216 \\cite{textid1, textid2}.",),  # bare facts without a sentence
        ("Peru has Lima, 1,285,216, 31,989,256 and 7,737,002 \\cite{textid1, textid2, textid3, textid4}.",),  # under everything
    ],
)
def test_what_looks_like_a_report_and_says_nothing_earns_nothing(corpus, texts):
    title = "Peru: Lima, 1,285,216 square kilometres"
    assert WarpReport(corpus)(report(*texts, title=title)).value == 0


def test_repetition_costs(corpus):
    reward = WarpReport(corpus)
    once, thrice = reward(report(CAPITAL)), reward(report(f"{CAPITAL} the capital of  Peru is Lima.\\cite{{textid1}} {CAPITAL}"))
    assert thrice.value == pytest.approx(once.value / 3) and thrice.components["distinct"] == pytest.approx(1 / 3)
    # "It has 5 neighbours." of one country and of another are two statements, known by their sources; they add no fact, though.
    other = reward(report(f"{CAPITAL} The capital of Peru is Lima \\cite{{textid3}}."))
    assert other.components["distinct"] == 1 and other.value == once.value


@pytest.mark.parametrize("checklist", [None, [], [{"topic": "Peru"}], [{**CHECKLIST[0], "must_include": [""]}], ["Lima"]])
def test_a_query_without_a_checklist_has_no_reward(corpus, checklist):
    result = WarpReport(corpus)(report(CAPITAL, checklist=checklist))
    assert not result.available and "q1 has no checklist" in (result.reason or "")


def test_a_report_of_another_corpus_has_no_reward(corpus):
    trajectory = report(CAPITAL)
    trajectory.outcome.data["passages"]["textid1"]["doc_id"] = "mine"
    result = WarpReport(corpus)(trajectory)
    assert not result.available and "'mine' is not in the reward's corpus" in (result.reason or "")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"uncited": 2}, "uncited must"),
        ({"holding": 0.6, "complete": 0.5}, "holding . complete"),
        ({"complete": -1}, "complete must"),
    ],
)
def test_bad_weights_are_refused(corpus, args, message):
    with pytest.raises(ConfigError, match=message):
        WarpReport(corpus, **args)


def test_a_missing_corpus_is_a_configuration_error(tmp_path):
    with pytest.raises(ConfigError, match="no corpus at"):
        WarpReport(str(tmp_path / "corpus.jsonl"))


def test_the_shipped_weights_build(corpus):
    shipped = yaml.safe_load((Path(__file__).parents[2] / "conf" / "reward" / "warp_report.yaml").read_text())
    reward = build(Target(shipped["target"], {**shipped["args"], "corpus": corpus}))
    assert (reward.uncited, reward.holding, reward.complete) == (0.25, 0.2, 0.1)
