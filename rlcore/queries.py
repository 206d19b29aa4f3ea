"""Where queries come from and in which order they are drawn.

The order of epoch e is a permutation that depends only on (seed, e), and the cursor is one number, so a resumed run draws
exactly what an uninterrupted one would have drawn.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

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


def draw_index(occurrence: str) -> int:
    """The position of the draw that an occurrence id (from `QueryCursor.draw`) stands for."""
    return int(occurrence.split(":", 1)[0])


class QueryCursor:
    """Draws queries without end, reshuffled each epoch. `drawn` is the whole state.

    `draw()` returns (occurrence id, query); the occurrence id is the group's id and is unique over the run.
    """

    def __init__(self, queries: list[Query], seed: int, drawn: int = 0) -> None:
        if not queries:
            raise ValueError("there are no queries to draw from")
        self._queries, self._seed, self.drawn = queries, seed, drawn
        self._epoch, self._order = -1, list(range(len(queries)))

    def draw(self) -> tuple[str, Query]:
        epoch, position = divmod(self.drawn, len(self._queries))
        if epoch != self._epoch:
            self._epoch, self._order = epoch, list(range(len(self._queries)))
            random.Random(f"{self._seed}/{epoch}").shuffle(self._order)
        query = self._queries[self._order[position]]
        self.drawn += 1
        return f"{self.drawn - 1:06d}:{query.id}", query
