"""Many askers, one worker thread: queries that arrive together are answered together, and an answer is kept.

    search(queries, k) --cache--> hit
                       --batch (a few milliseconds)--> one call of `lookup` in the thread --> cache --> every asker

The same query asked by several rollouts of a group shares one batch entry, and later ones come from the cache.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

from rlcore.errors import InfrastructureFailure

Hit = TypeVar("Hit")
Key = tuple[str, int]  # a stripped query and its k
WINDOW_S = 0.005  # how long a batch stays open for further queries
MAX_BATCH = 256  # queries


class BatchedSearch(Generic[Hit]):
    """`lookup(queries, k)` gives each query's hits, best first; it runs in `thread`, on one batch at a time.

    `cache_size` is the number of (query, k) results kept, `deadline_s` what one `search` may take.
    """

    def __init__(
        self,
        lookup: Callable[[list[str], int], Sequence[list[Hit]]],
        thread: ThreadPoolExecutor,
        cache_size: int,
        deadline_s: float,
    ):
        self._lookup = lookup
        self._thread = thread
        self._cache: OrderedDict[Key, list[Hit]] = OrderedDict()
        self._cache_size = cache_size
        self.deadline_s = deadline_s
        self._open: list[Key] | None = None
        self._waiting: dict[Key, asyncio.Task[dict[Key, list[Hit]]]] = {}
        self._busy = asyncio.Lock()

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """For each query up to `k` hits, best first. A blank query finds nothing.

        Raises ValueError for k < 1, and InfrastructureFailure when the deadline passes first.
        """
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        keys = [(query.strip(), k) for query in queries]
        found: dict[Key, list[Hit]] = {}
        for key in keys:
            if key in self._cache:
                self._cache.move_to_end(key)
                found[key] = self._cache[key]
            elif key[0] and key not in self._waiting:
                self._enqueue(key)
        batches = {self._waiting[key] for key in keys if key not in found and key[0]}
        if batches:
            _, late = await asyncio.wait(batches, timeout=self.deadline_s)
            if late:
                raise InfrastructureFailure(f"a search of {len(keys)} queries took longer than {self.deadline_s} s")
            for batch in batches:
                found.update(batch.result())
        return [found.get(key, []) for key in keys]

    def _enqueue(self, key: Key) -> None:
        if self._open is None:
            self._open = []
            self._batch = asyncio.create_task(self._run_batch(self._open))
        self._open.append(key)
        self._waiting[key] = self._batch
        if len(self._open) >= MAX_BATCH:
            self._open = None

    async def _run_batch(self, batch: list[Key]) -> dict[Key, list[Hit]]:
        """Answer one batch. It is filled for as long as it is open: a few milliseconds, or while another one is looked up."""
        try:
            await asyncio.sleep(WINDOW_S)
            async with self._busy:
                if self._open is batch:
                    self._open = None
                queries, deepest = [query for query, _ in batch], max(k for _, k in batch)
                hits = await asyncio.get_running_loop().run_in_executor(self._thread, self._lookup, queries, deepest)
            results = {(query, k): found[:k] for (query, k), found in zip(batch, hits, strict=True)}
            self._cache.update(results)
            while len(self._cache) > self._cache_size:
                self._cache.popitem(last=False)
            return results
        finally:
            if self._open is batch:  # cancelled before it was looked up
                self._open = None
            for key in batch:
                del self._waiting[key]
