"""Action-level samples: what the teacher was asked and what it answered, one parquet row an action.

A sample is `Query.data` of envs.warp.atomic.AtomicAction, and "messages" + "output" is a training example for SFT.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from envs.warp.limits import ACTIONS, STATES
from envs.warp.tables import Schema, read_table, write_table
from rlcore.errors import ConfigError
from rlcore.types import Query

Sample = dict[str, Any]

SCHEMA: Schema = {
    "id": "string",
    "query_id": "string",
    "split": "string",
    "language": "string",
    "state": "string",
    "action": "string",  # the teacher's
    "question": "string",
    "cursor": "string",  # null in the state "extend"
    "messages": [{"role": "string", "content": "string"}],
    "output": "string",
    "passages": [{"key": "string", "text": "string"}],  # what the prompt shows; empty in the states "search" and "extend"
    "allowed_keys": ["string"],
    "expandable": ["string"],
    # What a reward compares with; search: golden_doc_ids; initialize: titles, required; write: citations; expand and terminate:
    # decision, position.
    "reference": "json",
    "state_hash": "string",
    # Who played, in which world; `versions` is JSON text.
    "provenance": {"teacher": "string", "model": "string", "world": "string", "versions": "string"},
}


def balance(samples: Sequence[Sample], counts: dict[str, int], seed: int) -> list[Sample]:
    """A random choice of `counts[action]` samples of each action, without repetition, in the order they came in.

    The same samples and seed give the same choice. Raises ValueError for an unknown action, or more than there are.
    """
    available = Counter(sample["action"] for sample in samples)
    chosen: set[int] = set()
    for action, n in counts.items():
        if action not in ACTIONS:
            raise ValueError(f"counts.{action} is not an action; actions are {', '.join(ACTIONS)}")
        if not 0 <= n <= available[action]:
            raise ValueError(f"counts.{action}={n}, but there are {available[action]} samples of it")
        places = [i for i, sample in enumerate(samples) if sample["action"] == action]
        chosen.update(random.Random(f"{seed}/{action}").sample(places, n))
    return [samples[i] for i in sorted(chosen)]


def write_samples(path: str | Path, samples: Iterable[Sample]) -> None:
    """Write samples as a parquet file of SCHEMA; the file appears whole or not at all."""
    write_table(path, samples, SCHEMA)


def read_samples(path: str | Path) -> list[Sample]:
    """The samples of a file. Raises ConfigError naming file and column, or row, of the first thing that is not one."""
    samples = read_table(path, SCHEMA)
    for number, sample in enumerate(samples):
        for name, allowed in [("state", STATES), ("action", ACTIONS)]:
            if sample[name] not in allowed:
                raise ConfigError(f"{path}: row {number}: {name} must be one of {', '.join(allowed)}, got {sample[name]!r}")
    return samples


def queries(split: str, folder: str) -> list[Query]:
    """The samples of a split as queries of envs.warp.atomic.AtomicAction. Raises ConfigError when they have not been written."""
    path = Path(folder) / f"{split}.parquet"
    if not path.is_file():
        raise ConfigError(
            f"there are no samples at {path}; write them with `python -m recipes.trajectories trajectories.folder={folder}`"
        )
    return [Query(sample["id"], sample) for sample in read_samples(path)]
