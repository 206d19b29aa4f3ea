"""Plugged-in things by name: environments, rewards and the like are written in config as a dotted path and its arguments.

    {"target": "package.module.Name", "args": {...}}  --resolve-->  the class or function  --build-->  what it returns

Names are looked up with importlib, never evaluated. Every mistake is a ConfigError that says which part is wrong.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
from dataclasses import dataclass, field
from typing import Any

from rlcore.errors import ConfigError


@dataclass
class Target:
    """What to plug in: `target` is "package.module.Name", `args` its keyword arguments."""

    target: str
    args: dict[str, Any] = field(default_factory=dict)


def resolve(target: str) -> Any:
    """The object that "package.module.Name" names.

    Raises ConfigError when the text has no such form, the module does not exist (or one that it imports), or it has no such
    name (the nearest ones are listed). An error inside the module itself is raised as it is.
    """
    parts = target.split(".") if isinstance(target, str) else []
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        raise ConfigError(f"target {target!r} must have the form 'package.module.Name'")
    module_name, name = target.rsplit(".", 1)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or module_name
        if missing == module_name or module_name.startswith(missing + "."):
            raise ConfigError(f"target {target!r}: there is no module {missing!r} on the import path") from error
        raise ConfigError(f"target {target!r}: {module_name!r} needs the module {missing!r}, which is not installed") from error
    if not hasattr(module, name):
        near = difflib.get_close_matches(name, dir(module))
        hint = f"; nearest: {', '.join(near)}" if near else ""
        raise ConfigError(f"target {target!r}: module {module_name!r} has no {name!r}{hint}")
    return getattr(module, name)


def build(spec: Target, **extra: Any) -> Any:
    """Call what `spec.target` names with `spec.args` and `extra` (objects that config cannot hold), and return the result.

    Raises ConfigError when it cannot be called, or when an argument is unknown, missing, or given both ways; the message names
    the target and the arguments it accepts.
    """
    thing = resolve(spec.target)
    if not callable(thing):
        raise ConfigError(f"target {spec.target!r} is a {type(thing).__name__}, which cannot be called")
    parameters = inspect.signature(thing).parameters.values()
    by_name = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    accepted = [p.name for p in by_name]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    given = [*spec.args, *extra]
    problems = [f"{name!r} is given by the config and by the program" for name in spec.args if name in extra]
    problems += [f"unknown argument {name!r}" for name in given if name not in accepted and not takes_any]
    problems += [f"missing argument {p.name!r}" for p in by_name if p.default is p.empty and p.name not in given]
    if problems:
        raise ConfigError(f"target {spec.target!r}: {', '.join(problems)}; it accepts: {', '.join(accepted) or 'no arguments'}")
    return thing(**spec.args, **extra)


def make_reward(spec: Target, **judges: Any) -> Any:
    """The reward a config names: an object built from a class, or a plain or coroutine function of the trajectory.

    Raises ConfigError for arguments given to a function, and for what cannot be called.
    """
    reward = resolve(spec.target)
    if inspect.isclass(reward):
        reward = build(spec, **judges)
    elif spec.args or judges:
        given = sorted([*spec.args, *judges])
        raise ConfigError(f"reward {spec.target!r} is a function of the trajectory and takes no args, got {given}")
    if not callable(reward):
        raise ConfigError(f"reward {spec.target!r} gives a {type(reward).__name__}, which cannot be called with a trajectory")
    return reward
