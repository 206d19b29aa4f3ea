"""A synthetic teacher and scorer whose quality peaks at a known depth; stops in the middle; the files that come of it."""

from __future__ import annotations

import asyncio
import json
from collections import Counter

import pytest

from envs.warp.collect import collect
from envs.warp.journal import Journal
from envs.warp.limits import Limits
from envs.warp.play import play
from envs.warp.pruning import DRAFTS, best_draft, draft_rows, prune, unpruned
from envs.warp.samples import write_samples
from envs.warp.tables import write_table
from rlcore.errors import ConfigError, DataFailure, InfrastructureFailure
from rlcore.types import Query, scored
from tests.envs.warp.conftest import COMPACT

LIMITS = Limits.of({**COMPACT, "max_expansions": 12})  # 2 + 4 x 2 steps, then 1 + 2 x 2 for each expansion: 70
STOP = '<thought>Enough.</thought><action>{"name":"nop"}</action>'
TEXT = "Peru is a country on the west coast of South America \\cite{textid1}."


class Expander:
    """Expands the first section that can be, at every deepening; counts its replies and says when there were `stop_at` times."""

    def __init__(self, stop_at=0):
        self.asked, self.stop_at, self.stopped = 0, stop_at, asyncio.Event()

    async def reply(self, machine):
        self.asked += 1
        if self.asked == self.stop_at:
            self.stopped.set()
        await asyncio.sleep(0)
        items = [{"title": t, "plan": "P."} for t in "ABCD"]
        actions = {
            "search": {"name": "search", "keywords": ["Peru country"]},
            "initialize": {"name": "init-plan", "title": "T", "sections": items},
            "extend": {"name": "extend-plan", "position": next(iter(machine.context.expandable), ""), "subsections": items[:2]},
        }
        body = TEXT if machine.state == "write" else json.dumps(actions[machine.state])
        return f"<thought>Go on.</thought><action>{body}</action>"

    def golden(self, cursor):
        return ["peru-overview"]

    def stop(self, language):
        return STOP


def depth(trajectory):
    return sum(step["action"] == "expand" for step in trajectory.outcome.data["steps"])


async def peaked(trajectory):
    """Rises by 0.05 with every expansion up to the query's peak and falls after it."""
    return scored(1 - 0.05 * abs(depth(trajectory) - trajectory.query.data["peak"]))


def peaks():
    return [Query(f"q{peak:02d}", {"question": "What of Peru?", "split": "train", "peak": peak}) for peak in range(13)]


def player(retriever, teacher, score=peaked):
    return lambda query, journal: play(query, teacher, retriever, LIMITS, score=score, journal=journal)


def played(retriever, query, score=peaked):
    return asyncio.run(player(retriever, Expander(), score)(query, Journal(None)))


def test_the_peak_is_found_for_every_query(retriever, tmp_path):
    found, problems = asyncio.run(collect(peaks(), player(retriever, Expander()), tmp_path, concurrency=4))
    assert problems == {} and [p.query_id for p in found] == [q.id for q in peaks()]
    for peak, one in enumerate(found):
        samples = prune(one)
        assert len(one.drafts) == 13 and len(one.samples) == 70
        assert sum(s["action"] == "expand" for s in samples) == peak
        assert [row["draft"] for row in draft_rows(one) if row["kept"]] == [peak + 1]
        assert samples[: 10 + 5 * peak] == one.samples[: 10 + 5 * peak]
        if peak == 12:  # the machine stops by itself: it asks for no decision that could be relabelled
            assert samples == one.samples
        else:
            assert len(samples) == 11 + 5 * peak


def test_the_decision_after_the_best_draft_becomes_terminate(retriever):
    one = played(retriever, peaks()[3])
    last, decision = prune(one)[-1], one.samples[25]
    assert decision["action"] == "expand" and last["id"] == "q03/26-terminate" and decision["id"] == "q03/26-expand"
    assert (last["action"], last["output"], last["reference"]) == ("terminate", STOP, {"decision": "terminate", "position": None})
    same = {"messages", "state", "state_hash", "expandable", "question", "cursor"}
    assert {name: last[name] for name in same} == {name: decision[name] for name in same}
    assert decision["reference"]["decision"] == "expand"  # the unpruned variant is not touched
    assert unpruned(one) == one.samples


@pytest.mark.parametrize(
    ("scores", "best"),
    [
        ([0.5], 0),
        ([0.1, 0.7, 0.7, 0.2], 1),
        ([0.3, 0.3, 0.3], 0),
        ([0.1, 0.2, 0.3], 2),
        ([0.1 + 0.2, 0.3], 0),  # and 0.3 first, so that a rounding error does not decide
        ([0.3, 0.1 + 0.2], 0),
    ],
)
def test_ties_go_to_the_earliest(scores, best):
    assert best_draft(scores) == best


def test_a_flat_reward_keeps_the_first_draft(retriever):
    async def flat(trajectory):
        return scored(0.5)

    assert [s["action"] for s in prune(played(retriever, peaks()[0], flat))][-2:] == ["write", "terminate"]


def test_a_deepening_that_the_step_limit_cut_is_in_neither_variant(retriever):
    limits = Limits.of({**COMPACT, "max_steps": 18})  # 10 steps to D_1, 15 to D_2, and three of a deepening
    for peak in (0, 1):
        one = asyncio.run(play(peaks()[peak], Expander(), retriever, limits, score=peaked))
        assert [d.actions for d in one.drafts] == [10, 15] and len(one.samples) == 18
        assert [s["action"] for s in prune(one)][-2:] == ["write", "terminate"] and len(prune(one)) == 11 + 5 * peak
        assert unpruned(one) == one.samples[:15]


def test_without_scores_everything_is_kept(retriever):
    one = asyncio.run(play(peaks()[0], Expander(), retriever, LIMITS))
    rows = draft_rows(one)
    assert prune(one) == unpruned(one) == one.samples
    assert [row["kept"] for row in rows] == [False] * 12 + [True] and rows[0]["score"] is None
    assert [row["sections"] for row in rows[:3]] == [[4], [4, 2], [4, 2, 2]]
    assert rows[2]["actions"] == {"expand": 2, "initialize": 1, "search": 9, "terminate": 1, "write": 8}


# ---- stops and failures -------------------------------------------------------------------------------------------------------


def files(found, folder):
    provenance = {"provenance": {"teacher": "t", "model": "m", "world": "w", "versions": "{}"}}
    write_samples(folder / "train.parquet", [s | provenance for p in found for s in prune(p)])
    write_table(folder / "drafts.parquet", [row for p in found for row in draft_rows(p)], DRAFTS)
    return [(folder / name).read_bytes() for name in ("train.parquet", "drafts.parquet")]


@pytest.mark.parametrize("at", [5, 130])
def test_a_stop_in_the_middle_resumes_to_the_identical_files_and_asks_nothing_twice(retriever, tmp_path, at):
    queries, whole, stopped, scores = peaks()[2:5], Expander(), Expander(at), Counter()
    found, _ = asyncio.run(collect(queries, player(retriever, whole), tmp_path / "whole", concurrency=2))
    expected = files(found, tmp_path / "whole")

    async def counted(trajectory):
        scores[trajectory.query.id, trajectory.index] += 1
        return await peaked(trajectory)

    async def stop_there():
        task = asyncio.create_task(collect(queries, player(retriever, stopped, counted), tmp_path / "cut", concurrency=2))
        await stopped.stopped.wait()
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(stop_there())
    journals = sorted((tmp_path / "cut").glob("*.replies.jsonl"))
    assert journals
    with open(journals[0], "a") as file:
        file.write('["reply 99 half a li')  # the stop may come while a line is written
    found, _ = asyncio.run(collect(queries, player(retriever, stopped, counted), tmp_path / "cut", concurrency=2))
    assert files(found, tmp_path / "cut") == expected
    assert whole.asked <= stopped.asked <= whole.asked + 2  # what was in flight, one call for each of two queries
    assert set(scores.values()) == {1} and len(scores) == 3 * 13
    assert not list((tmp_path / "cut").glob("*.replies.jsonl"))


def test_what_is_done_is_read_and_not_played_again(retriever, tmp_path):
    first, second = Expander(), Expander()
    one, _ = asyncio.run(collect(peaks()[:2], player(retriever, first), tmp_path, concurrency=2))
    ticks = []
    two, _ = asyncio.run(collect(peaks()[:3], player(retriever, second), tmp_path, concurrency=2, done=lambda: ticks.append(1)))
    assert two[:2] == one and second.asked == 70 and len(ticks) == 3


def test_a_bad_query_is_reported_stops_no_other_and_is_tried_again(retriever, tmp_path):
    teacher, bad = Expander(), Query("bad/../q", {"question": " ", "split": "train"})
    for _ in range(2):
        found, problems = asyncio.run(collect([bad, *peaks()[:2]], player(retriever, teacher), tmp_path, concurrency=3))
        assert [p.query_id for p in found] == ["q00", "q01"]
        assert problems == {"bad/../q": "DataFailure: query bad/../q has no question"}
        assert sorted(p.name for p in tmp_path.iterdir()) == ["q00.json", "q01.json"]


def test_lost_machinery_gets_a_second_try_that_goes_on_where_the_first_stopped(retriever, tmp_path):
    teacher, lost = Expander(), []

    async def flaky(trajectory):
        if trajectory.index == 5 and not lost:
            lost.append(1)
            raise InfrastructureFailure("gone")
        return scored(0.0)

    found, problems = asyncio.run(collect(peaks()[:1], player(retriever, teacher, flaky), tmp_path, concurrency=1))
    assert problems == {} and len(found) == 1 and teacher.asked == 70 and lost == [1]


def test_what_stays_lost_is_reported_and_a_wrong_setting_ends_the_run(retriever, tmp_path):
    async def down(trajectory):
        raise InfrastructureFailure("down")

    async def refused(trajectory):
        raise ConfigError("401")

    found, problems = asyncio.run(collect(peaks()[:1], player(retriever, Expander(), down), tmp_path, concurrency=1))
    assert found == [] and problems == {"q00": "InfrastructureFailure: down"}
    with pytest.raises(ConfigError, match="401"):
        asyncio.run(collect(peaks()[:1], player(retriever, Expander(), refused), tmp_path, concurrency=1))


def test_concurrency_is_bounded(retriever, tmp_path):
    now, most = [], []

    async def one(query, journal):
        now.append(query.id)
        most.append(len(now))
        await asyncio.sleep(0)
        now.remove(query.id)
        raise DataFailure("no")

    asyncio.run(collect(peaks(), one, tmp_path, concurrency=3))
    assert max(most) == 3
