"""What a checkpoint says about the run it is of."""

import json
from dataclasses import asdict

import pytest

from recipes.common import begin
from rlcore.checkpoint import RunState, read_state, run_settings
from rlcore.errors import ConfigError
from tests.rlcore.test_config import composed

SMALL = ["model=tiny", "env=vowels"]


def checkpoint(folder, text: str) -> str:
    (folder / "run.json").write_text(text)
    return str(folder)


def test_the_state_comes_back_for_a_run_with_the_same_settings(tmp_path):
    config = composed(*SMALL)
    state = RunState(step=4, position=9, done=[8], version=4, wandb_id="w", settings=run_settings(config))
    assert read_state(checkpoint(tmp_path, json.dumps(asdict(state))), config) == state


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seed=1", "seed=0, but now it is 1"),
        ("algo.group_size=2", "group_size=8, but now it is 2"),
        ("env=warp_atomic", "'vowels'"),
    ],
)
def test_other_settings_are_refused_by_name(tmp_path, override, message):
    state = RunState(settings=run_settings(composed(*SMALL)))
    with pytest.raises(ConfigError, match=message):
        read_state(checkpoint(tmp_path, json.dumps(asdict(state))), composed(*SMALL, override))


def test_what_is_no_checkpoint_is_said_to_be_none(tmp_path):
    with pytest.raises(ConfigError, match="is not a checkpoint"):
        read_state(str(tmp_path), composed(*SMALL))
    with pytest.raises(ConfigError, match="is damaged"):
        read_state(checkpoint(tmp_path, '{"step": '), composed(*SMALL))


@pytest.mark.parametrize("name", ["resume", "replay"])
def test_an_input_that_a_recipe_does_not_read_is_refused(name):
    with pytest.raises(ConfigError, match=f"recipes.test does not use {name}"):
        begin(composed(*SMALL, f"{name}=some/folder"))
