from __future__ import annotations

import sys
from collections import OrderedDict
from pathlib import PurePosixPath

import pytest

from rlcore.errors import ConfigError
from rlcore.targets import Target, build, resolve


def scale(value: float, *, factor: float = 2.0) -> float:
    return value * factor


def anything(**options: int) -> dict[str, int]:
    return options


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> str:
    """This module under a plain name, wherever pytest imported it from."""
    monkeypatch.setitem(sys.modules, "plugged_in", sys.modules[__name__])
    return "plugged_in"


def test_resolve_finds_classes_and_functions() -> None:
    assert resolve("collections.OrderedDict") is OrderedDict
    assert resolve("pathlib.PurePosixPath") is PurePosixPath


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("collections", ["'collections'", "package.module.Name"]),
        ("", ["package.module.Name"]),
        ("..relative.Name", ["package.module.Name"]),
        ("os.system('true').x", ["package.module.Name"]),
        (3, ["3", "package.module.Name"]),
        ("no_such_package.module.Name", ["no module 'no_such_package'"]),
        ("json.no_such_part.Name", ["no module 'json.no_such_part'"]),
        ("json.decoder.JSONDecoder.Name", ["no module 'json.decoder.JSONDecoder'"]),
        ("collections.OrderedDic", ["'collections'", "no 'OrderedDic'", "nearest: OrderedDict"]),
    ],
)
def test_resolve_names_what_is_missing(target: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(target)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_missing_import_inside_the_module_is_told_apart(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "needs_more.py").write_text("import not_installed_at_all\n")
    (tmp_path / "is_broken.py").write_text("raise KeyError('own fault')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match="'needs_more' needs the module 'not_installed_at_all'"):
        resolve("needs_more.Name")
    with pytest.raises(KeyError, match="own fault"):
        resolve("is_broken.Name")


def test_build_calls_with_args_and_extras(here: str) -> None:
    assert build(Target(f"{here}.scale", {"value": 3.0})) == 6.0
    assert build(Target(f"{here}.scale", {"factor": 5.0}), value=3.0) == 15.0
    assert build(Target(f"{here}.anything", {"a": 1}), b=2) == {"a": 1, "b": 2}


@pytest.mark.parametrize(
    ("args", "extra", "words"),
    [
        ({"value": 1.0, "factr": 2.0}, {}, ["unknown argument 'factr'", "accepts: value, factor"]),
        ({}, {}, ["missing argument 'value'", "accepts: value, factor"]),
        ({"value": 1.0}, {"value": 2.0}, ["'value' is given by the config and by the program"]),
        ({"value": 1.0}, {"judge": 2.0}, ["unknown argument 'judge'"]),
    ],
)
def test_build_names_target_and_accepted_arguments(here: str, args: dict, extra: dict, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        build(Target(f"{here}.scale", args), **extra)
    assert all(word in str(caught.value) for word in [f"{here}.scale", *words]), str(caught.value)


def test_build_refuses_what_cannot_be_called() -> None:
    with pytest.raises(ConfigError, match="'sys.maxsize' is a int"):
        build(Target("sys.maxsize"))


def test_an_error_inside_the_thing_built_is_not_disguised(here: str) -> None:
    with pytest.raises(TypeError, match="can't multiply"):
        build(Target(f"{here}.scale", {"value": [], "factor": 2.0}))
