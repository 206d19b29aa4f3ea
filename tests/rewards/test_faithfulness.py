from __future__ import annotations

import asyncio

import pytest

from rewards.faithfulness import BATCH, Claim, plan_faithfulness, read_claims, section_faithfulness, supported_share, verify
from rewards.judged import Unusable
from rewards.sentences import sentences
from tests.rewards.scripted_judge import ScriptedJudge

SOURCES = {"textid1": "Lima is the capital.", "textid2": "Peru has 12 volcanoes."}


def says(verdicts: dict[str, float]):
    """The verdict of the statement that has the word."""

    def say(material: dict[str, str], id: str) -> float:
        line = next(line for line in material["statements"].splitlines() if line.startswith(f"{id} "))
        return next(verdict for word, verdict in verdicts.items() if word in line)

    return say


def test_a_sections_sentences_against_what_they_cite():
    text = "Lima is it \\cite{textid1}. Twelve volcanoes burn \\cite{textid2, textid9}. Gold is there. "
    text += "Now to the coast. All lie \\cite{textid9}."
    judge = ScriptedJudge(says({"Lima": 1, "volcanoes": 0.5, "Gold": 0, "coast": 1}))
    found = sentences(text)
    # 1, 0.5, 0 (nobody cited for gold), 0 (a key that no source has; the judge is not asked); the transition is no claim.
    assert asyncio.run(section_faithfulness(judge, found, SOURCES, "en", component="c")) == (pytest.approx(1.5 / 4), 4)
    (call,) = judge.calls
    prompt = call["messages"][-1]["content"]
    assert "s2 [textid2] Twelve volcanoes burn." in prompt and "s3 [none] Gold is there." in prompt and "All lie" not in prompt
    assert "source textid1:\n" in prompt and SOURCES["textid2"] in prompt


def test_a_plans_claims_may_stand_in_any_source():
    judge = ScriptedJudge(says({"capital": 1, "sea": 0}), claims=["Lima is the capital.", " The sea  is near. "])
    assert asyncio.run(plan_faithfulness(judge, "1. Lima", SOURCES, "en", component="write")) == (0.5, 2)
    assert (
        judge.components() == ["write/split", "write"]
        and "s2 [any] The sea is near." in judge.calls[1]["messages"][-1]["content"]
    )


def test_no_claims_is_an_option():
    for option in (1.0, 0.25):
        call = plan_faithfulness(ScriptedJudge(), "1. Lima", SOURCES, "en", component="c", no_claims=option)
        assert asyncio.run(call) == (option, 0)
    assert supported_share([1, 0, 0.5]) == 0.5


def test_many_claims_are_asked_in_batches_and_stay_in_order():
    judge = ScriptedJudge(lambda material, id: float(id == "s1"))
    claims = [Claim(f"Fact {i}.", ("textid1",)) for i in range(BATCH + 2)]
    verdicts = asyncio.run(verify(judge, claims, SOURCES, "en", component="c"))
    assert [i for i, verdict in enumerate(verdicts) if verdict] == [0, BATCH] and len(judge.calls) == 2
    assert asyncio.run(verify(ScriptedJudge(), [], SOURCES, "en", component="c")) == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"claims": "x"}',
        '{"claims": [1]}',
        '{"claims": [""]}',
        '{"facts": []}',
        '{"claims": [], "x": 1}',
        '{"claims": ["',
    ],
)
def test_replies_that_split_nothing(text):
    with pytest.raises(Unusable):
        read_claims(text)
    with pytest.raises(Unusable, match="more than 60"):
        read_claims('{"claims": [' + ", ".join(['"a"'] * 61) + "]}")


def test_a_chinese_text_is_asked_about_in_chinese():
    judge = ScriptedJudge(lambda material, id: 1)
    asyncio.run(verify(judge, [Claim("利马是首都。", ("textid1",))], {"textid1": "利马是首都。"}, "zh", component="c"))
    assert (
        "来源 textid1:" in judge.calls[0]["messages"][-1]["content"] and "逐条判断" in judge.calls[0]["messages"][-1]["content"]
    )
