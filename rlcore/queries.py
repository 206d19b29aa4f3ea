"""Where queries come from and in which order they are drawn.

The order of epoch e is a permutation that depends only on (seed, e), and the cursor knows which draws are finished, so a resumed
run draws exactly what an uninterrupted one would have drawn next.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from pathlib import Path

from rlcore.errors import ConfigError
from rlcore.types import Query


def read_queries(path: str | Path) -> list[Query]:
    """Queries of a JSONL file: each line an object with a string `id`; the whole object is the query's data.

    Raises ValueError naming the file and line for bad JSON, a missing id or an id used twice.
    """
    queries: list[Query] = []
    seen: set[str] = set()
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"{path}:{number}: not JSON: {error}") from error
            identity = row.get("id") if isinstance(row, dict) else None
            if not isinstance(identity, str) or not identity:
                raise ValueError(f"{path}:{number}: a query needs a string 'id', got {identity!r}")
            if identity in seen:
                raise ValueError(f"{path}:{number}: id {identity!r} occurs twice")
            seen.add(identity)
            queries.append(Query(identity, row))
    return queries


def split_queries(path: str, split: str) -> list[Query]:
    """The queries of a JSONL file whose `split` is the given one. Raises ConfigError when there is no file or no such query."""
    if not Path(path).is_file():
        raise ConfigError(f"there is no query file at {path!r}")
    found = [query for query in read_queries(path) if query.data.get("split") == split]
    if not found:
        raise ConfigError(f"{path!r} has no query whose split is {split!r}")
    return found


class QueryCursor:
    """Draws queries without end, reshuffled each epoch.

    `draw()` returns (occurrence id, query); the occurrence id is the group's id and is unique over the run. `finish(id)` says
    that a draw has been trained on or given up. `position` and `done` are the whole state: every draw below `position`, and those
    in `done`, are finished. A resumed cursor draws the unfinished ones again, in their order.
    """

    def __init__(self, queries: list[Query], seed: int, position: int = 0, done: Iterable[int] = ()) -> None:
        if not queries:
            raise ValueError("there are no queries to draw from")
        self._queries, self._seed = queries, seed
        self.position, self.done = position, set(done)
        self._next = position
        self._epoch, self._order = -1, list(range(len(queries)))

    def draw(self) -> tuple[str, Query]:
        while self._next in self.done:
            self._next += 1
        epoch, place = divmod(self._next, len(self._queries))
        if epoch != self._epoch:
            self._epoch, self._order = epoch, list(range(len(self._queries)))
            random.Random(f"{self._seed}/{epoch}").shuffle(self._order)
        query = self._queries[self._order[place]]
        self._next += 1
        return f"{self._next - 1:06d}:{query.id}", query

    def finish(self, occurrence: str) -> None:
        self.done.add(int(occurrence.split(":", 1)[0]))
        while self.position in self.done:
            self.done.remove(self.position)
            self.position += 1
