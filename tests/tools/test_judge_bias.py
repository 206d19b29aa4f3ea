"""The bias probe on judges whose bias is known."""

from __future__ import annotations

import asyncio
import json

import pytest

from rewards.probe import probe_items
from tests.rewards.scripted_judge import ScriptedJudge
from tools import judge_bias
from tools.judge_bias import measure

ITEMS = probe_items()[3:5]  # one in English, one in Chinese
GOOD = ("Both the moon", "雨水得以停留")


def texts(material: dict[str, str]) -> list[str]:
    return list(material.values())[1:]  # behind the task


def test_a_judge_without_a_bias():
    def fair(material, id):
        quality = [4 if any(mark in text for mark in GOOD) else 2 for text in texts(material)]
        return quality[0] - quality[1] if len(quality) == 2 else quality[0]

    figures = asyncio.run(measure(ScriptedJudge(fair), items=ITEMS))
    assert figures == {
        "accuracy": 1, "position/preference": 0, "position/flips": 0, "position/same_text": 0, "length/preference": 0,
        "length/score": 0, "length/screened": pytest.approx(figures["length/screened"]), "self/preference": -2, "unanswered": 0,
    }  # fmt: skip
    assert figures["length/screened"] < 0  # stock phrases cost


def test_a_judge_of_places():
    figures = asyncio.run(measure(ScriptedJudge(lambda m, id: 2), items=ITEMS))
    assert (figures["position/preference"], figures["position/same_text"], figures["position/flips"]) == (2, 2, 1)
    assert figures["accuracy"] == 0.5 and figures["length/preference"] == 0


def test_a_judge_of_lengths():
    def long(material, id):
        lengths = [min(len(text) / 400, 4) for text in texts(material)]
        return lengths[0] - lengths[1] if len(lengths) == 2 else 1 + lengths[0]

    figures = asyncio.run(measure(ScriptedJudge(long), items=ITEMS))
    assert figures["length/preference"] > 0 and figures["length/score"] > 0 > figures["length/screened"]
    assert figures["position/preference"] == pytest.approx(0)


def test_a_judge_that_loves_its_own_hand_beside_one_that_does_not():
    def vain(material, id):
        own = [text == "An answer." for text in texts(material)]
        return 3 * (own[0] - own[-1]) if len(own) == 2 else 3

    figures = asyncio.run(
        measure(ScriptedJudge(vain), ScriptedJudge(lambda m, id: 0 if "text a" in m or "正文 a" in m else 3), ITEMS)
    )
    assert (figures["self/preference"], figures["self/excess"]) == (3, 3)


def test_what_is_not_answered_is_counted_and_left_out():
    figures = asyncio.run(measure(ScriptedJudge(lambda m, id: float("nan")), items=ITEMS))
    assert figures == {"unanswered": 2 * (3 + 4 + 1)}  # pairs, scores; the own answers are texts and only cannot be compared


def test_the_command(monkeypatch, capsys, tmp_path):
    class Pool(ScriptedJudge):
        def __init__(self, config, endpoints, keys):
            super().__init__(lambda material, id: 2)
            assert (endpoints["main"].url, endpoints["main"].model, endpoints["main"].structured) == ("http://h/v1", "m", False)

        async def check(self):
            pass

    monkeypatch.setattr(judge_bias, "JudgePool", Pool)
    monkeypatch.setattr(judge_bias, "probe_items", lambda: ITEMS)
    out = tmp_path / "bias.json"
    assert judge_bias.main(["--url", "http://h/v1", "--model", "m", "--unstructured", "--out", str(out)]) == 0
    assert "position/flips           1.000" in capsys.readouterr().out and json.loads(out.read_text())["accuracy"] == 0.5
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    assert judge_bias.main(["--url", "http://h/v1", "--model", "m", "--key-env", "NO_SUCH_KEY"]) == 2
    assert "NO_SUCH_KEY" in capsys.readouterr().err
