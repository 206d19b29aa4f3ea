"""The command line every recipe shares: check the overrides, let Hydra compose, convert, check, then run.

Bad input ends with one message and exit code 2, before anything heavy starts; a run that cannot go on with its cause and 1.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import hydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlcore.config import Config, load_config
from rlcore.errors import ConfigError, ParityError, RunFailed
from rlcore.typed import known_keys, unknown_key

CONF = Path(__file__).resolve().parent.parent / "conf"


def check_overrides(arguments: list[str]) -> None:
    """Refuse override keys the schema does not have, `+key` included, naming the nearest. Raises ConfigError."""
    known = known_keys(Config)
    groups = {p.relative_to(CONF).as_posix() for p in CONF.rglob("*") if p.is_dir()}
    for argument in arguments:
        if argument.startswith("-") or "=" not in argument and not argument.startswith("~"):
            continue  # a flag of Hydra's own command line
        try:
            override = OverridesParser.create().parse_override(argument)
        except HydraException as error:
            raise ConfigError(
                f"cannot read the override {argument!r}: {str(error).splitlines()[0]}. Values with =, comma, % or non-ASCII text "
                f"need inner quotes: '{argument.split('=')[0]}=\"...\"'"
            ) from error
        key = override.key_or_group
        if key in groups or key.split("@")[0].lstrip("/") in groups or key.startswith(("hydra.", "hydra/")) or key == "hydra":
            continue
        free = any(known.get(".".join(key.split(".")[:i])) for i in range(1, key.count(".") + 2))
        if key not in known and not free:
            raise ConfigError(unknown_key(key, known))


def compose_config(name: str, overrides: list[str]) -> Config:
    """The checked configuration of overrides, for a tool that has a command line of its own. Raises ConfigError."""
    check_overrides(overrides)
    try:
        with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
            return _typed(hydra.compose("config", overrides=overrides), name)
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(str(error)) from error


def _typed(composed: DictConfig, name: str) -> Config:
    values = OmegaConf.to_container(composed, resolve=True)
    assert isinstance(values, dict)
    values.pop("recipe", None)
    return load_config({**values, "recipe_name": name})


def run_recipe(name: str, recipe: Callable[[Config], None], preset: str | None = None) -> None:
    """Run `recipe` with the configuration the command line asks for. Exits with 2 on bad input.

    `preset` is the file of conf/recipe/ to use when the command line names none.
    """

    @hydra.main(config_path=str(CONF), config_name="config", version_base="1.3")
    def main(composed: DictConfig) -> None:
        try:
            recipe(_typed(composed, name))
        except (ConfigError, OmegaConfBaseException) as error:
            _refuse(error)
        except (RunFailed, ParityError) as error:
            print(f"run failed: {error}", file=sys.stderr)
            sys.exit(1)

    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if preset is not None and not any(argument.startswith("recipe=") for argument in sys.argv):
        sys.argv.append(f"recipe={preset}")
    try:
        check_overrides(sys.argv[1:])
    except ConfigError as error:
        _refuse(error)
    main()


def _refuse(error: Exception) -> None:
    print(f"configuration error: {error}", file=sys.stderr)
    sys.exit(2)
