"""The search service: many rollouts ask at once, one thread encodes.

    search(queries, k) --cache--> hit
                       --batch (a few milliseconds)--> one encoder call --> FAISS --> cache --> every asker

A plain class: the framework hosts it in an actor of its own, so that its threads and the engines' do not meet, and so that a
search never runs in a forked child (which hangs in OpenMP). The encoder is the slow part, therefore a query is encoded once:
the same query asked by several rollouts of a group shares one batch entry, and later ones come from the cache.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from envs.retrieval.corpus import Document, corpus_sha256, read_corpus
from envs.retrieval.encoder import MINILM, Encoder, SentenceEncoder
from envs.retrieval.index import VectorIndex, check_index
from rlcore.errors import InfrastructureFailure

Key = tuple[str, int]  # a stripped query and its k
WINDOW_S = 0.005  # how long a batch stays open for further queries
MAX_BATCH = 256  # queries


class Retriever:
    """Dense search over a corpus. `encoder` is a name (see SentenceEncoder) or a ready encoder.

    `threads` is the thread count of encoder and FAISS alike, `cache_size` the number of (query, k) results kept, `deadline_s`
    what one `search` may take. Raises FileNotFoundError or ConfigError when corpus, index and encoder do not belong together,
    before the encoder is loaded where that can be told.
    """

    def __init__(
        self,
        index: str,
        corpus: str,
        encoder: str | Encoder = MINILM,
        threads: int = 1,
        cache_size: int = 100_000,
        *,
        query_prompt: str = "",
        passage_prompt: str = "",
        deadline_s: float = 120.0,
    ):
        self._documents = read_corpus(corpus)
        digest = corpus_sha256(corpus)
        check_index(index, encoder if isinstance(encoder, str) else encoder.name, corpus_sha256=digest)
        self._cache: OrderedDict[Key, list[Document]] = OrderedDict()
        self._cache_size = cache_size
        self._deadline_s = deadline_s
        self._open: list[Key] | None = None
        self._waiting: dict[Key, asyncio.Task[dict[Key, list[Document]]]] = {}
        self._encoding = asyncio.Lock()
        # One thread owns encoder and index: OpenMP's thread count is a property of the calling thread.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="retriever")

        def load() -> tuple[Encoder, VectorIndex]:
            import faiss

            faiss.omp_set_num_threads(threads)
            loaded = encoder
            if isinstance(loaded, str):
                loaded = SentenceEncoder(loaded, threads=threads, query_prompt=query_prompt, passage_prompt=passage_prompt)
            return loaded, VectorIndex.load(index, loaded, digest)

        self._encoder, self._index = self._thread.submit(load).result()

    async def search(self, queries: Sequence[str], k: int) -> list[list[Document]]:
        """For each query up to `k` documents, most similar first, with their scores. A blank query finds nothing.

        Raises ValueError for k < 1, and InfrastructureFailure when the deadline passes first.
        """
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        keys = [(query.strip(), k) for query in queries]
        found: dict[Key, list[Document]] = {}
        for key in keys:
            if key in self._cache:
                self._cache.move_to_end(key)
                found[key] = self._cache[key]
            elif key[0] and key not in self._waiting:
                self._enqueue(key)
        batches = {self._waiting[key] for key in keys if key not in found and key[0]}
        if batches:
            _, late = await asyncio.wait(batches, timeout=self._deadline_s)
            if late:
                raise InfrastructureFailure(f"a search of {len(keys)} queries took longer than {self._deadline_s} s")
            for batch in batches:
                found.update(batch.result())
        return [found.get(key, []) for key in keys]

    def close(self) -> None:
        """End the worker thread. Searches in flight are completed first."""
        self._thread.shutdown()

    def _enqueue(self, key: Key) -> None:
        if self._open is None:
            self._open = []
            self._batch = asyncio.create_task(self._run_batch(self._open))
        self._open.append(key)
        self._waiting[key] = self._batch
        if len(self._open) >= MAX_BATCH:
            self._open = None

    async def _run_batch(self, batch: list[Key]) -> dict[Key, list[Document]]:
        """Answer one batch. It is filled for as long as it is open: a few milliseconds, or while another one is encoded."""
        try:
            await asyncio.sleep(WINDOW_S)
            async with self._encoding:
                if self._open is batch:
                    self._open = None
                results = await asyncio.get_running_loop().run_in_executor(self._thread, self._lookup, batch)
            self._cache.update(results)
            while len(self._cache) > self._cache_size:
                self._cache.popitem(last=False)
            return results
        finally:
            if self._open is batch:  # cancelled before it was encoded
                self._open = None
            for key in batch:
                del self._waiting[key]

    def _lookup(self, batch: list[Key]) -> dict[Key, list[Document]]:
        vectors = self._encoder.encode_queries([query for query, _ in batch])
        hits = self._index.search(vectors, max(k for _, k in batch))
        return {
            (query, k): [replace(self._documents[id], score=score) for id, score in found[:k]]
            for (query, k), found in zip(batch, hits, strict=True)
        }
