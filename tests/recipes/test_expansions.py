"""Forced expansions: every draft is the report of a run that ends there, and stops below the asked number are refused."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from envs.warp.limits import Limits
from envs.warp.report import Report
from recipes.expansions import REFUSAL, TRIES, ForcedReport, curve, plot, score_drafts
from rlcore.types import Outcome, Query, Trajectory, scored, unavailable
from tests.recipes.report_world import NOP, QUERY, reply, retriever

LIMITS = Limits(max_steps=60)


@dataclass
class Writer:
    """Stops after `stop` expansions; when that is refused it goes on, unless it is stubborn."""

    stop: int
    stubborn: bool = False
    expansions: int = 0
    refused: list[int] = field(default_factory=list)  # expansions at each prompt that refuses a stop

    async def generate(self, messages: list[dict[str, str]], **kwargs: Any) -> Any:
        state, prompt = kwargs["span"], messages[-1]["content"]
        if state != "extend":
            return SimpleNamespace(text=reply(state, prompt), finish_reason="stop")
        if refusal := prompt.endswith(REFUSAL["en"]):
            self.refused.append(self.expansions)
        if self.stubborn or (self.expansions >= self.stop and not refusal):
            return SimpleNamespace(text=NOP, finish_reason="stop")
        self.expansions += 1
        return SimpleNamespace(text=reply(state, prompt, expansions=self.expansions - 1), finish_reason="stop")


def forced(writer: Any, counts: list[int], limits: Limits = LIMITS) -> Outcome:
    return asyncio.run(ForcedReport(Report(retriever(), limits), counts).run(QUERY, writer))


def test_every_draft_is_the_report_that_ends_there():
    outcome = forced(Writer(stop=9), [0, 1, 3])
    assert list(outcome.data["drafts"]) == ["0", "1", "3"]
    assert outcome.metrics == {"reached": 3, "refused": 0}
    for k, draft in outcome.data["drafts"].items():
        alone = asyncio.run(Report(retriever(), LIMITS).run(QUERY, Writer(stop=int(k)))).data
        assert (draft["report_markdown"], draft["complete"]) == (alone["report_markdown"], True)
        assert len([s for s in draft["steps"] if s["action"] == "write"]) == 3 + 2 * int(k)


def test_a_stop_below_the_asked_number_is_refused_once_and_then_allowed():
    writer = Writer(stop=1)
    outcome = forced(writer, [0, 1, 2, 3])
    assert list(outcome.data["drafts"]) == ["0", "1", "2", "3"]
    assert writer.refused == [1, 2] and outcome.metrics == {"reached": 3, "refused": 2}


def test_no_stop_is_refused_at_the_asked_number():
    writer = Writer(stop=0)
    assert list(forced(writer, [0]).data["drafts"]) == ["0"] and writer.refused == []


def test_a_policy_that_only_wants_to_stop_is_left_after_some_tries():
    writer = Writer(stop=0, stubborn=True)
    outcome = forced(writer, [0, 5])
    assert list(outcome.data["drafts"]) == ["0"] and outcome.metrics == {"reached": 0, "refused": TRIES}
    assert len(writer.refused) == TRIES - 1  # the first sample was asked as usual


def test_the_limits_make_room_for_the_asked_expansions():
    outcome = forced(Writer(stop=9), [4], Limits(max_expansions=1, max_steps=8))
    assert list(outcome.data["drafts"]) == ["4"]


def test_a_report_with_nothing_left_to_expand_ends():
    outcome = forced(Writer(stop=9), [0, 9], Limits(max_levels=1))
    assert list(outcome.data["drafts"]) == ["0"] and outcome.metrics["reached"] == 0


def trajectory(reward: Any, last: str = "write", **metrics: float) -> Trajectory:
    return Trajectory(Query("q"), "g", 0, outcome=Outcome({"steps": [{"action": last}]}, metrics), reward=reward)


def test_drafts_are_scored_one_by_one_and_one_without_a_score_leaves_none():
    async def sections(t: Trajectory) -> Any:
        return scored(len(t.outcome.data["outline"]["sections"])) if t.outcome.data["outline"] else unavailable("no judge")

    def drafts(**outlines: Any) -> Trajectory:
        found = {k[1:]: {"outline": v and {"sections": v}} for k, v in outlines.items()}
        return Trajectory(Query("q"), "g", 0, outcome=Outcome({"drafts": found}))

    score = score_drafts(sections)
    result = asyncio.run(score(drafts(k0=[1], k2=[1, 2])))
    assert result.components == {"0": 1, "2": 2} and result.value == 1.5
    assert "after 2 expansions has no score: no judge" in (asyncio.run(score(drafts(k0=[1], k2=None))).reason or "")
    assert not asyncio.run(score(drafts())).available


def test_the_curve_by_hand_and_its_plot(tmp_path):
    forced_ones = [
        trajectory(scored(0.5, {"0": 0.2, "1": 0.4}), refused=2),
        trajectory(scored(0.5, {"0": 0.6}), refused=1),  # it never reached 1
        trajectory(unavailable("down"), refused=0),
    ]
    free = [
        trajectory(scored(0.1), "terminate", expanded=0),
        trajectory(scored(0.5), "terminate", expanded=3),
        trajectory(unavailable("x"), "terminate", expanded=9),
        trajectory(scored(0.9), expanded=3),  # the expansions were used up
    ]
    result = curve(forced_ones, free, [1, 0])
    # 0.2 and 0.6: mean 0.4, sample standard deviation sqrt(0.08), standard error 0.2; 0.1 and 0.5 likewise
    assert result["forced"] == [
        {"expansions": 0, "reward": pytest.approx(0.4), "reward_se": pytest.approx(0.2), "n": 2},
        {"expansions": 1, "reward": 0.4, "reward_se": None, "n": 1},
    ]
    assert [(p["expansions"], p["reward"], p["n"]) for p in result["throughout"]] == [(0, 0.2, 1), (1, 0.4, 1)]
    assert curve(forced_ones, free, [0, 2])["throughout"] == []
    assert result["refused"] == 3 and result["limited"] == 1
    assert result["own"] == {
        "reward": pytest.approx(0.3), "reward_se": pytest.approx(0.2), "n": 2, "expansions": 1.5,
        "distribution": {"0": 1, "3": 1},
    }  # fmt: skip
    limited = curve(forced_ones, free[3:], [1, 0])
    assert limited["own"] == {"reward": None, "reward_se": None, "n": 0, "expansions": None, "distribution": {}}
    plot(limited, tmp_path / "curve.png")
    plot(result, tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG") and len(list(tmp_path.iterdir())) == 1
