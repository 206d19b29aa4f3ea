from __future__ import annotations

import asyncio
import json
import os
from collections import Counter

import pytest

from envs.warp.limits import Limits
from envs.warp.play import play
from envs.warp.samples import SCHEMA, balance, queries, read_samples, write_samples
from envs.warp.tables import write_table
from envs.warp.teacher import ScriptedTeacher
from rlcore.errors import ConfigError
from tests.envs.warp.conftest import COMPACT

PROVENANCE = {"teacher": "scripted", "model": "", "world": "w", "versions": "{}"}


@pytest.fixture
def samples(query, retriever):
    played = asyncio.run(play(query, ScriptedTeacher(query), retriever, Limits.of(COMPACT)))
    return [sample | {"provenance": PROVENANCE} for sample in played.samples]


def test_balance(samples):
    counts = {"search": 2, "write": 3, "expand": 1}
    chosen = balance(samples, counts, seed=1)
    assert Counter(s["action"] for s in chosen) == counts
    assert chosen == balance(samples, counts, seed=1) == [s for s in samples if s in chosen]
    assert len({tuple(s["id"] for s in balance(samples, counts, seed)) for seed in range(20)}) > 5


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ({"expand": 2}, "counts.expand=2, but there are 1 samples of it"),
        ({"write": -1}, "counts.write=-1"),
        ({"extend": 1}, "counts.extend is not an action"),
    ],
)
def test_balance_refuses(samples, counts, message):
    with pytest.raises(ValueError, match=message):
        balance(samples, counts, seed=0)


def test_files_round_trip(samples, tmp_path):
    path = tmp_path / "deep" / "train.parquet"
    samples[0]["question"] = "奥斯陆\u2028?"
    write_samples(path, samples)
    assert read_samples(path) == samples
    first = path.read_bytes()
    write_samples(path, samples)
    assert path.read_bytes() == first and os.listdir(path.parent) == ["train.parquet"]
    write_samples(path, samples[:1])
    assert len(read_samples(path)) == 1


def test_other_programs_find_the_schema_and_json_text(samples, tmp_path):
    """What `datasets` would restore: its features from the file's metadata; free-form fields are text."""
    import pyarrow.parquet

    write_samples(tmp_path / "train.parquet", samples)
    schema = pyarrow.parquet.read_schema(tmp_path / "train.parquet")
    features = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
    assert list(features) == schema.names == list(SCHEMA)
    assert features["messages"]["feature"]["role"]["dtype"] == features["reference"]["dtype"] == "string"
    first = pyarrow.parquet.read_table(tmp_path / "train.parquet").to_pylist()[0]
    assert json.loads(first["reference"]) == {"golden_doc_ids": ["peru-overview", "norway-overview", "chad-overview"]}


def test_a_failed_write_leaves_the_old_file(samples, tmp_path):
    path = tmp_path / "train.parquet"
    write_samples(path, samples[:1])
    with pytest.raises(TypeError):
        write_samples(path, [samples[1] | {"reference": object()}])
    assert read_samples(path) == samples[:1]


def test_reading_names_the_file_and_what_is_wrong(samples, tmp_path):
    path = tmp_path / "train.parquet"
    kinds = {**SCHEMA, "expandable": "string", "reference": "string"}
    rows = [s | {"expandable": "", "reference": "{"} for s in samples]
    for schema, message in [
        ({name: kind for name, kind in SCHEMA.items() if name != "messages"}, "train.parquet lacks the column messages"),
        ({name: kind for name, kind in SCHEMA.items() if name != "passages"}, "the column passages; .*earlier version"),
        (kinds, "train.parquet: column expandable is string, not list<item: string>"),
    ]:
        write_table(path, [{name: row[name] for name in schema} for row in rows], schema)
        with pytest.raises(ConfigError, match=message):
            read_samples(path)
    write_table(path, [s | {"reference": "{"} for s in samples[:2]], {**SCHEMA, "reference": "string"})
    with pytest.raises(ConfigError, match="train.parquet: row 0: reference is not JSON"):
        read_samples(path)
    write_samples(path, [samples[0], samples[1] | {"action": "nop"}])
    with pytest.raises(ConfigError, match="train.parquet: row 1: action must be one of initialize, .*, got 'nop'"):
        read_samples(path)
    path.write_text("no table")
    with pytest.raises(ConfigError, match="train.parquet is not a parquet file"):
        read_samples(path)
    write_samples(path, samples)
    whole = path.read_bytes()
    path.write_bytes(whole[:4] + b"\xff" * 200 + whole[204:])  # a page of data, not the footer
    with pytest.raises(ConfigError, match="train.parquet is not a parquet file that can be read"):
        read_samples(path)
    with pytest.raises(ConfigError, match="none.parquet"):
        read_samples(tmp_path / "none.parquet")


def test_queries_of_the_single_action_environment(samples, tmp_path):
    write_samples(tmp_path / "heldout.parquet", samples)
    assert [(q.id, q.data) for q in queries("heldout", str(tmp_path))] == [(s["id"], s) for s in samples]
    with pytest.raises(ConfigError, match="recipes.trajectories trajectories.folder="):
        queries("train", str(tmp_path))
