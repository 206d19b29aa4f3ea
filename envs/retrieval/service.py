"""The search service: many rollouts ask at once, one thread encodes.

    search(queries, k) --> BatchedSearch --> encoder --> FAISS --+--> [Document]
                                         --> BM25 ---------------+   (hybrid: both, joined by reciprocal ranks)

A plain class: the framework hosts it in actors of its own, so that its threads and the engines' do not meet, and so that a
search never runs in a forked child (which hangs in OpenMP). The encoder is the slow part, therefore a query is encoded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from envs.retrieval.batching import BatchedSearch
from envs.retrieval.bm25 import KeywordIndex, check_bm25
from envs.retrieval.corpus import Document, corpus_sha256, read_corpus
from envs.retrieval.encoder import MINILM, Encoder, SentenceEncoder
from envs.retrieval.fusion import CANDIDATES, reciprocal_rank_fusion
from envs.retrieval.index import Hits, VectorIndex, check_index
from envs.retrieval.memory import check_memory, corpus_bytes, index_bytes
from rlcore.errors import ConfigError

RANKINGS = ("dense", "bm25", "hybrid")


class Retriever:
    """Search over a corpus. `encoder` is a name (see SentenceEncoder) or a ready encoder; bm25 needs none and loads none.

    `ranking`: "dense" (scores are cosine similarities), "bm25", or "hybrid" (both, joined by reciprocal ranks). `breadth` and
    `device` are VectorIndex.load's; "cuda" also moves the encoder. `threads` is the thread count of encoder and FAISS alike,
    `cache_size` the number of (query, k) results kept, `deadline_s` what one `search` may take.

    Raises ConfigError when corpus, index and encoder do not belong together or do not fit into memory, before anything large is
    loaded where that can be told.
    """

    def __init__(
        self,
        index: str,
        corpus: str,
        encoder: str | Encoder = MINILM,
        threads: int = 1,
        cache_size: int = 100_000,
        *,
        ranking: str = "dense",
        breadth: int | None = None,
        device: str = "cpu",
        query_prompt: str = "",
        passage_prompt: str = "",
        deadline_s: float = 120.0,
    ):
        if ranking not in RANKINGS:
            raise ConfigError(f"ranking={ranking!r} must be one of {', '.join(RANKINGS)}")
        digest = corpus_sha256(corpus)
        keywords = Path(index) / "bm25"
        needed: dict[str, int] = {}
        count = 0
        if ranking != "bm25":
            name, prompt = (encoder, passage_prompt) if isinstance(encoder, str) else (encoder.name, encoder.passage_prompt)
            count = check_index(index, name, passage_prompt=prompt, corpus_sha256=digest).count
            needed["vectors"] = index_bytes(index, count)
        if ranking != "dense":
            count = check_bm25(keywords, digest)
            needed["keywords"] = index_bytes(keywords, count)
        check_memory({"corpus": corpus_bytes(corpus, count), **needed})

        def load() -> None:
            if ranking != "bm25":
                import faiss

                faiss.omp_set_num_threads(threads)
                loaded = encoder
                if isinstance(loaded, str):
                    loaded = SentenceEncoder(
                        loaded, threads=threads, query_prompt=query_prompt, passage_prompt=passage_prompt, device=device
                    )
                self._encoder: Encoder = loaded
                self._index = VectorIndex.load(index, loaded, digest, breadth=breadth, device=device)
            if ranking != "dense":
                self._keywords = KeywordIndex.load(keywords, digest)

        self._ranking = ranking
        self._documents = read_corpus(corpus)
        # One thread owns encoder and index: OpenMP's thread count is a property of the calling thread.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="retriever")
        self._thread.submit(load).result()
        self._batched = BatchedSearch(self._lookup, self._thread, cache_size, deadline_s)

    async def search(self, queries: Sequence[str], k: int) -> list[list[Document]]:
        """For each query up to `k` documents, best first, with their scores. A blank query finds nothing.

        Raises ValueError for k < 1, and InfrastructureFailure when the deadline passes first.
        """
        return await self._batched.search(queries, k)

    def close(self) -> None:
        """End the worker thread. Searches in flight are completed first."""
        self._thread.shutdown()

    def _lookup(self, queries: list[str], k: int) -> list[list[Document]]:
        return [[replace(self._documents[id], score=score) for id, score in hits] for hits in self._rank(queries, k)]

    def _rank(self, queries: list[str], k: int) -> list[Hits]:
        if self._ranking == "bm25":
            return self._keywords.search(queries, k)
        vectors = self._encoder.encode_queries(queries)
        if self._ranking == "dense":
            return self._index.search(vectors, k)
        depth = max(k, CANDIDATES)
        both = zip(self._index.search(vectors, depth), self._keywords.search(queries, depth), strict=True)
        return [reciprocal_rank_fusion(rankings, k) for rankings in both]
