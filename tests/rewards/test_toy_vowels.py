from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from envs.toy import vowels
from rlcore.targets import Target, build, resolve
from rlcore.types import Outcome, Query, Trajectory


@dataclass
class Said:
    text: str
    finish_reason: str = "length"


class Scripted:
    """A policy that gives one known reply and remembers what it was asked."""

    def __init__(self, text: str) -> None:
        self.text, self.asked = text, []

    async def generate(self, messages: list[dict[str, str]], *, max_tokens: int | None = None, span: str | None = None) -> Said:
        self.asked.append((messages, max_tokens))
        return Said(self.text)

    def conversation(self, messages: list[dict[str, str]]) -> Any:
        raise AssertionError("not used")


@pytest.mark.parametrize(
    ("reply", "value"),
    [
        ("aeiou" * 4, 1.0),
        ("AEIOU" * 6, 1.0),
        ("bcdfg" * 4, 0.0),
        ("", 0.0),
        ("a", 1 / 20),  # short replies are out of 20
        ("a b " * 10, 0.25),  # 10 of 40: spaces count
    ],
)
def test_score(reply: str, value: float) -> None:
    policy = Scripted(reply)
    query = vowels.queries("train", 1, seed=0)[0]
    outcome = asyncio.run(vowels.Vowels(max_tokens=7).run(query, policy))
    assert not outcome.truncated
    assert policy.asked == [([{"role": "user", "content": query.data["question"]}], 7)]
    assert vowels.score(Trajectory(query, "g", 0, outcome=outcome)).value == pytest.approx(value)


def test_queries_are_reproducible_and_held_out() -> None:
    first, again, other = (vowels.queries("train", 20, seed) for seed in (1, 1, 2))
    assert first == again != other
    assert len({q.id for q in first}) == 20
    train = {q.data["question"] for q in vowels.queries("train", 100, 0)}
    assert train.isdisjoint(q.data["question"] for q in vowels.queries("heldout", 100, 0))


def test_it_plugs_in_by_name_in_under_forty_lines() -> None:
    assert isinstance(build(Target("envs.toy.vowels.Vowels", {"max_tokens": 5})), vowels.Vowels)
    assert resolve("envs.toy.vowels.score")(Trajectory(Query("q"), "g", 0, outcome=Outcome({"reply": "o" * 20}))).value == 1.0
    assert len(Path(vowels.__file__).read_text(encoding="utf-8").splitlines()) < 40
