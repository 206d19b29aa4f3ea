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

    "red red blue" is (2, 1, 0, ...) / sqrt(5). `calls` lists the queries of every call, `passages` every encoded passage; a
    call sets `called`, then waits for `gate`, which is open at first.
    """

    name = "words"
    passage_prompt = ""

    def __init__(self, dimension: int = 16):
        self.dimension = dimension
        self.calls: list[list[str]] = []
        self.passages: list[str] = []
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
        self.passages += texts
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


def pdf_bytes(lines: Sequence[str], title: str = "") -> bytes:
    """A PDF of one page with these lines of plain letters on it."""
    content = "".join(f"BT /F1 12 Tf 72 {720 - 14 * i} Td ({line}) Tj ET\n" for i, line in enumerate(lines))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        "<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R /Resources << /Font << /F1 5 0 R >> >> >>",
        f"<< /Length {len(content)} >>\nstream\n{content}endstream",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        f"<< /Title ({title}) >>",
    ]
    text, offsets = "%PDF-1.4\n", []
    for number, body in enumerate(objects, start=1):
        offsets.append(len(text))
        text += f"{number} 0 obj\n{body}\nendobj\n"
    table = "".join(f"{offset:010} 00000 n \n" for offset in offsets)
    trailer = f"trailer\n<< /Size {len(objects) + 1} /Root 1 0 R /Info 6 0 R >>\nstartxref\n{len(text)}\n%%EOF\n"
    return f"{text}xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}{trailer}".encode()
