"""The recipe on a world of three queries, with the search in this process: what is written, kept, read again and refused."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest

from envs.warp.pruning import DRAFTS
from envs.warp.samples import queries, read_samples
from envs.warp.tables import read_table
from recipes.trajectories import build_trajectories, check_trajectories, engine_policy
from rlcore.errors import ConfigError, RunFailed
from rlcore.policy import ChatRenderer
from tests.envs.warp.conftest import COMPACT, Overlap, _corpus, _query
from tests.fakes import CharTokenizer, ScriptedEngine
from tests.rlcore.test_config import composed

COUNTS = {"initialize": 1, "search": 4, "write": 3, "expand": 2, "terminate": 2}


@pytest.fixture
def config(tmp_path):
    """Two train queries and a held-out one; samples go to tmp_path/out."""
    world = tmp_path / "world"
    world.mkdir()
    rows = [{**_query().data, "id": name, "split": split} for name, split in [("a", "train"), ("b", "train"), ("h", "heldout")]]
    rows[2]["question"] += " Please."
    (world / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    c = composed(f"trajectories.world={world}", f"trajectories.folder={tmp_path}/out")
    t = replace(c.trajectories, train=COUNTS, heldout=dict.fromkeys(COUNTS, -1))
    return replace(c, trajectories=t, env=replace(c.env, args={"limits": COMPACT}))


def changed(config, **values):
    return replace(config, trajectories=replace(config.trajectories, **values))


def teacher(config, **values):
    return changed(config, teacher=replace(config.trajectories.teacher, **values))


def build(config):
    """Run the recipe; returns the searches it made."""
    retriever = Overlap(_corpus())

    async def ready(timeout_s):
        pass

    environment = SimpleNamespace(retriever=retriever)
    runtime = SimpleNamespace(config=config, start_environment=lambda: None, services_ready=ready, environment=environment)
    asyncio.run(build_trajectories(runtime))
    return len(retriever.calls)


def test_both_splits_and_their_drafts_are_written_once(config, tmp_path):
    searches, out = build(config), tmp_path / "out"
    assert searches == 18  # three reports of six searches
    train, heldout = read_samples(out / "train.parquet"), read_samples(out / "heldout.parquet")
    assert Counter(s["action"] for s in train) == COUNTS and len(heldout) == 14
    assert {s["query_id"] for s in train} == {"a", "b"} and {s["query_id"] for s in heldout} == {"h"}
    provenance = train[0]["provenance"]
    assert (provenance["teacher"], provenance["model"], len(provenance["world"])) == ("scripted", "", 64)
    assert json.loads(provenance["versions"])["samples"] >= 2
    drafts = read_table(out / "drafts.parquet", DRAFTS)
    assert [(d["query_id"], d["draft"], d["kept"]) for d in drafts] == [(q, i, i == 2) for q in "abh" for i in (1, 2)]
    assert len(queries("train", str(out))) == 12
    assert build(config) == 0  # up to date


def test_other_counts_need_no_teacher_and_a_new_world_does(config, tmp_path):
    build(config)
    assert build(changed(config, train={**COUNTS, "search": 5})) == 0
    assert Counter(s["action"] for s in read_samples(tmp_path / "out" / "train.parquet"))["search"] == 5
    source = tmp_path / "world" / "queries.jsonl"
    source.write_text(source.read_text().replace("Please", "Thank you"))
    assert build(config) == 18


def test_a_failed_query_is_left_out_and_tried_again(config, tmp_path):
    source = tmp_path / "world" / "queries.jsonl"
    rows = [json.loads(line) for line in source.read_text().splitlines()]
    rows[0]["topics"] = []
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    some = changed(config, train={"expand": 1})
    build(some)
    assert {s["query_id"] for s in read_samples(tmp_path / "out" / "train.parquet")} == {"b"}
    assert not (tmp_path / "out" / "build.json").exists()
    with pytest.raises(
        RunFailed, match=r"asks for .*'expand': 2.* hold .*'expand': 1.*; 1 of 2 queries failed, such as: DataFailure"
    ):
        build(config)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: changed(c, world="nowhere"), "trajectories.world='nowhere' has no queries.jsonl; build it with"),
        (lambda c: changed(c, train={"extend": 1}), "trajectories.train.extend is not an action"),
        (lambda c: changed(c, prune=True, reward=replace(c.trajectories.reward, target="no.such.Reward")), "no module 'no'"),
        (lambda c: teacher(c, kind="engine"), "needs engines of its own: run `python -m recipes.trajectories` first"),
        (
            lambda c: teacher(c, kind="openai", key_env="NO_SUCH_KEY_HERE"),
            "key_env=NO_SUCH_KEY_HERE: no such environment variable",
        ),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(config, change, message):
    with pytest.raises(ConfigError, match=message):
        check_trajectories(change(config))


def test_a_question_in_both_splits_and_a_query_in_none_are_refused(config, tmp_path):
    source = tmp_path / "world" / "queries.jsonl"
    good = source.read_text()
    source.write_text(good.replace(" Please.", ""))
    with pytest.raises(ConfigError, match="the question 'Write a report on Peru.*' is in both splits"):
        check_trajectories(config)
    source.write_text(good.replace('"heldout"', '"test"'))
    with pytest.raises(ConfigError, match="the split of query h must be train or heldout, got 'test'"):
        check_trajectories(config)


def test_an_engine_as_the_teacher_draws_by_the_calls_name(config):
    """Equal names give equal seeds, so that a resumed run draws what the whole one would have drawn."""
    engine = ScriptedEngine(lambda prompt: "Fine.")
    runtime = SimpleNamespace(config=config, engines=engine, renderer=ChatRenderer(CharTokenizer()))

    async def ask(name):
        return (await engine_policy(runtime, name).generate([{"role": "user", "content": "Hi"}], max_tokens=9)).text

    assert [asyncio.run(ask(name)) for name in ("q/1/x/0", "q/1/x/0", "q/1/x/1")] == ["Fine."] * 3
    sampled = [sampling for _, sampling in engine.asked]
    assert sampled[0] == sampled[1] and sampled[0].seed != sampled[2].seed
    assert (sampled[0].temperature, sampled[0].top_p, sampled[0].max_tokens) == (0.7, 0.8, 9)
