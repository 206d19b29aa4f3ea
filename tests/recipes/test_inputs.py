"""Files that a recipe reads, and what it says of bad ones: before a run folder is made or an actor started."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from envs.warp.samples import SCHEMA
from envs.warp.tables import write_table
from recipes import sft
from recipes.cli import run_recipe
from recipes.common import queries
from recipes.sft import lessons
from rewards.probe import probe_items
from rlcore.config import Config
from rlcore.errors import ConfigError
from rlcore.queries import read_queries
from rlcore.targets import Target
from tests.rlcore.test_config import composed


def answer(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], recipe, *overrides: str) -> str:
    """What a command ends with, which has to be exit code 2."""
    monkeypatch.setattr(sys, "argv", ["recipe", *overrides])
    with pytest.raises(SystemExit) as ended:
        run_recipe("sft", recipe)
    assert ended.value.code == 2
    return capsys.readouterr().err


def test_samples_of_an_earlier_version_are_one_message_and_nothing_is_started(monkeypatch, capsys, tmp_path):
    """They had no `passages`."""
    monkeypatch.setattr(sft, "begin", lambda config: pytest.fail("the samples come first"))
    write_table(
        tmp_path / "train.parquet", [dict.fromkeys(SCHEMA)], {name: kind for name, kind in SCHEMA.items() if name != "passages"}
    )
    said = answer(monkeypatch, capsys, sft.main, f"trajectories.folder={tmp_path}", f"run_dir={tmp_path}/run")
    assert (
        said.startswith(f"configuration error: {tmp_path}/train.parquet lacks the column passages;") and "Traceback" not in said
    )
    said = answer(monkeypatch, capsys, sft.main, f"trajectories.folder={tmp_path}/none")
    assert "there are no samples at" in said and "python -m recipes.trajectories" in said


def test_a_bad_line_is_one_message(monkeypatch, capsys, tmp_path):
    (tmp_path / "queries.jsonl").write_text('{"id": "a"}\n{oops')

    def recipe(config: Config) -> None:
        read_queries(f"{config.trajectories.world}/queries.jsonl")

    said = answer(monkeypatch, capsys, recipe, f"trajectories.world={tmp_path}")
    assert said.startswith(f"configuration error: {tmp_path}/queries.jsonl:2: not JSON")


def test_what_is_learned_from_and_what_is_held_out():
    """Each text of the probe as a section and as a plan to train on, and as a section alone to hold out; the plug-in has none."""
    config = composed("sft.validation_samples=2")
    config = replace(config, env=replace(config.env, queries=Target("tests.recipes.demonstrated.queries")))
    drawn = queries(config, "train")
    shown, held = lessons(config, drawn)
    assert (len(shown), len(held)) == (2 * len(probe_items()), 2) and {d.kind for d in shown} == {"write", "initialize"}
    assert lessons(replace(config, sft=replace(config.sft, validate_every=0)), drawn)[1] == []
    vowels = composed("env=vowels")
    with pytest.raises(ConfigError, match="env=vowels: its train queries hold nothing to learn from"):
        lessons(vowels, queries(vowels, "train"))
