"""Where queries come from and in which order they are drawn.

The order of epoch e is a permutation that depends only on (seed, e), and the cursor knows which draws are finished, so a resumed
run draws exactly what an uninterrupted one would have drawn next. Kinds of queries are spread evenly over an epoch: a step draws
few, and a step of one kind alone would train that kind at the cost of the others.
"""

from __future__ import annotations

import json
import random
from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path

from rlcore.errors import ConfigError
from rlcore.types import Query


def read_queries(path: str | Path) -> list[Query]:
    """Queries of a JSONL file: each line an object with a string `id`; the whole object is the query's data.

    Raises ConfigError naming the file and line for bad JSON, a missing id or an id used twice, and when there is no such file.
    """
    if not Path(path).is_file():
        raise ConfigError(f"there is no query file at {str(path)!r}")
    queries: list[Query] = []
    seen: set[str] = set()
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            try:
                row = json.loads(line.decode())
            except (ValueError, RecursionError) as error:
                raise ConfigError(f"{path}:{number}: not JSON: {error}") from error
            identity = row.get("id") if isinstance(row, dict) else None
            if not isinstance(identity, str) or not identity:
                raise ConfigError(f"{path}:{number}: a query needs a string 'id', got {identity!r}")
            if identity in seen:
                raise ConfigError(f"{path}:{number}: id {identity!r} occurs twice")
            seen.add(identity)
            queries.append(Query(identity, row))
    return queries


def split_queries(path: str, split: str) -> list[Query]:
    """The queries of a JSONL file whose `split` is the given one. Raises ConfigError when there is no file or no such query."""
    found = [query for query in read_queries(path) if query.data.get("split") == split]
    if not found:
        raise ConfigError(f"{path!r} has no query whose split is {split!r}")
    return found


def kinds_of(queries: Sequence[Query], group_by: str | None) -> list[Hashable]:
    """The kind of each query: the field `group_by` of its data. Without one they are all of one kind."""
    return [None if group_by is None else str(query.data.get(group_by)) for query in queries]


def epoch_order(kinds: Sequence[Hashable], seed: int, epoch: int) -> list[int]:
    """The permutation of an epoch. Members of a kind come in random order, about one every (all / members) places.

    The i-th of a kind's n members gets the place (i + u) / n, u uniform in [0, 1) and drawn once a kind. With one kind this is a
    plain shuffle.
    """
    rng = random.Random(f"{seed}/{epoch}")
    members: dict[Hashable, list[int]] = {}
    for index, kind in enumerate(kinds):
        members.setdefault(kind, []).append(index)
    places: dict[int, float] = {}
    for indices in members.values():
        rng.shuffle(indices)
        offset = rng.random()
        places |= {index: (i + offset) / len(indices) for i, index in enumerate(indices)}
    return sorted(places, key=places.__getitem__)


class QueryCursor:
    """Draws queries without end, reshuffled each epoch; `kinds` (one a query) are spread evenly over it.

    `draw()` returns (occurrence id, query); the occurrence id is the group's id and is unique over the run. `finish(id)` says
    that a draw has been trained on or given up. `position` and `done` are the whole state: every draw below `position`, and those
    in `done`, are finished. A resumed cursor draws the unfinished ones again, in their order.
    """

    def __init__(
        self,
        queries: list[Query],
        seed: int,
        position: int = 0,
        done: Iterable[int] = (),
        kinds: Sequence[Hashable] | None = None,
    ) -> None:
        if not queries:
            raise ValueError("there are no queries to draw from")
        self._queries, self._seed = queries, seed
        self._kinds = kinds if kinds is not None else [None] * len(queries)
        self.position, self.done = position, set(done)
        self._next = position
        self._epoch, self._order = -1, list(range(len(queries)))

    def draw(self) -> tuple[str, Query]:
        while self._next in self.done:
            self._next += 1
        epoch, place = divmod(self._next, len(self._queries))
        if epoch != self._epoch:
            self._epoch, self._order = epoch, epoch_order(self._kinds, self._seed, epoch)
        query = self._queries[self._order[place]]
        self._next += 1
        return f"{self._next - 1:06d}:{query.id}", query

    def finish(self, occurrence: str) -> None:
        self.done.add(int(occurrence.split(":", 1)[0]))
        while self.position in self.done:
            self.done.remove(self.position)
            self.position += 1
