"""From plain nested values to typed dataclasses, with messages that name the key, its value and the nearest known keys."""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
import typing
from typing import Any

from rlcore.errors import ConfigError


def convert(kind: Any, values: Any) -> Any:
    """Nested plain values -> the dataclass `kind`. Raises ConfigError naming the key and what is wrong with its value."""
    return _convert(kind, values, "", kind)


def _convert(kind: Any, value: Any, where: str, root: Any) -> Any:
    """`value` as the annotated type `kind`; `where` is the dotted key below the dataclass `root`, for messages."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in arguments:
            return None
        (kind,) = [a for a in arguments if a is not type(None)]
        return _convert(kind, value, where, root)
    if dataclasses.is_dataclass(kind):
        return _convert_dataclass(kind, value, where, root)
    if origin is dict:
        if not isinstance(value, dict):
            raise ConfigError(f"{where} must be a mapping, got {value!r}")
        return {k: _convert(arguments[1], v, f"{where}.{k}", root) for k, v in value.items()}
    if origin is list:
        if not isinstance(value, list):
            raise ConfigError(f"{where} must be a list, got {value!r}")
        return [_convert(arguments[0], v, f"{where}[{i}]", root) for i, v in enumerate(value)]
    if kind is Any:
        return value
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ConfigError(f"{where} must be {kind.__name__}, got {value!r}")
    if kind is float and not math.isfinite(value):
        raise ConfigError(f"{where} must be finite, got {value!r}")
    return value


def _convert_dataclass(kind: Any, value: Any, where: str, root: Any) -> Any:
    if not isinstance(value, dict):
        raise ConfigError(f"{where or 'the configuration'} must be a mapping, got {value!r}")
    hints = typing.get_type_hints(kind)
    fields = {f.name: f for f in dataclasses.fields(kind)}
    for key in value:
        if key not in fields:
            raise ConfigError(unknown_key(f"{where}.{key}".lstrip("."), known_keys(root)))
    missing = [
        f"{where}.{n}".lstrip(".")
        for n, f in fields.items()
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING and value.get(n, "???") == "???"
    ]
    if missing:
        raise ConfigError(f"missing values: {', '.join(missing)}")
    return kind(**{k: _convert(hints[k], v, f"{where}.{k}".lstrip("."), root) for k, v in value.items() if v != "???"})


def known_keys(kind: Any, prefix: str = "") -> dict[str, bool]:
    """Every dotted key of the schema; True where anything may follow below it (free mappings)."""
    keys: dict[str, bool] = {}
    for name, hint in typing.get_type_hints(kind).items():
        path = f"{prefix}{name}"
        inner = (
            [a for a in typing.get_args(hint) if a is not type(None)] if typing.get_origin(hint) is types.UnionType else [hint]
        )
        free = typing.get_origin(inner[0]) is dict or inner[0] is dict
        keys[path] = free
        if dataclasses.is_dataclass(inner[0]):
            keys |= known_keys(inner[0], f"{path}.")
    return keys


def unknown_key(key: str, known: dict[str, bool]) -> str:
    """The message for a key the schema does not have, with the nearest ones."""
    leaf = key.rsplit(".", 1)[-1]
    near = difflib.get_close_matches(key, known, n=2, cutoff=0.6)
    near += [
        k
        for k in known
        if k.rsplit(".", 1)[-1] in difflib.get_close_matches(leaf, [leaf_of.rsplit(".", 1)[-1] for leaf_of in known], n=2)
    ]
    near = list(dict.fromkeys(near))[:4]
    return f"unknown key {key!r}" + (f"; did you mean {' or '.join(near)}?" if near else "")


def one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    """Raises ConfigError unless `value` of the key `name` is one of the allowed ones."""
    if value not in allowed:
        raise ConfigError(f"{name}={value!r} must be one of {', '.join(allowed)}")
