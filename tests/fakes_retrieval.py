"""Fakes of search: a retriever for tests of agents, and an encoder whose vectors are known for tests of the real retriever."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from envs.retrieval.corpus import Document


class StaticRetriever:
    """Ranks by the number of different words a document's title and contents share with the query; ties keep the given order.

    Documents that share no word are not found. `queries` lists every query asked, in order.
    """

    def __init__(self, documents: Sequence[Document]):
        self.documents = list(documents)
        self.queries: list[str] = []

    async def search(self, queries: Sequence[str], k: int) -> list[list[Document]]:
        self.queries += queries
        return [self._rank(query)[:k] for query in queries]

    def _rank(self, query: str) -> list[Document]:
        wanted = set(words(query))
        scored = [replace(document, score=float(len(wanted & set(words(document.passage))))) for document in self.documents]
        return sorted((document for document in scored if document.score > 0), key=lambda document: -document.score)


class WordEncoder:
    """One axis per word, in the order in which words are first seen, so that cosine similarities can be worked out by hand.

    "red red blue" is (2, 1, 0, ...) / sqrt(5). `calls` lists the queries of every call; a call sets `called`, then waits for
    `gate`, which is open at first.
    """

    name = "words"
    passage_prompt = ""

    def __init__(self, dimension: int = 16):
        self.dimension = dimension
        self.calls: list[list[str]] = []
        self.called = threading.Event()
        self.gate = threading.Event()
        self.gate.set()
        self._axes: dict[str, int] = {}

    def encode_queries(self, texts: Sequence[str]) -> np.ndarray:
        self.calls.append(list(texts))
        self.called.set()
        assert self.gate.wait(timeout=20)
        return self._encode(texts)

    def encode_passages(self, texts: Sequence[str], progress: Callable[[int], None] | None = None) -> np.ndarray:
        if progress is not None:
            progress(len(texts))
        return self._encode(texts)

    def _encode(self, texts: Sequence[str]) -> np.ndarray:
        vectors = np.zeros((len(texts), self.dimension), dtype=np.float32)
        for row, text in enumerate(texts):
            for word in words(text):
                vectors[row, self._axes.setdefault(word, len(self._axes))] += 1
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())
