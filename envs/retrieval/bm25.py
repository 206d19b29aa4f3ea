"""Keyword search: BM25 (Robertson and Zaragoza, 2009) in Lucene's form, by the package bm25s.

It finds names, numbers and rare words that an encoder blurs, and needs neither a model nor a GPU. Saved beside the vectors, in
`index/bm25/`, with a meta.json that is written last.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from envs.retrieval.corpus import Document
from envs.retrieval.index import Hits
from rlcore.errors import ConfigError
from rlcore.files import write_atomic

# Kana and Chinese characters are written without spaces: a run of them is searched by its pairs of neighbours.
UNSPACED = r"\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
WORD = re.compile(rf"[{UNSPACED}]+|[^\W{UNSPACED}]+")


def tokens(text: str) -> list[str]:
    """The terms of a text: words without case, and pairs of neighbouring Chinese or Japanese characters."""
    found: list[str] = []
    for word in WORD.findall(text.casefold()):
        unspaced = re.match(f"[{UNSPACED}]", word) is not None and len(word) > 1
        found += [word[i : i + 2] for i in range(len(word) - 1)] if unspaced else [word]
    return found


def check_bm25(path: str | Path, corpus_sha256: str) -> int:
    """The number of documents in the keyword index at `path`. Raises ConfigError unless it is there and of that corpus."""
    path = Path(path)
    if not (path / "meta.json").is_file():
        raise ConfigError(f"no keyword index at {path}; build it with `python -m tools.build_index ... --bm25`")
    meta = json.loads((path / "meta.json").read_text(encoding="utf-8"))
    if meta["corpus_sha256"] != corpus_sha256:
        raise ConfigError(
            f"the keyword index at {path} has corpus_sha256 {meta['corpus_sha256']!r}, but {corpus_sha256!r} is wanted; "
            "rebuild it"
        )
    return meta["count"]


class KeywordIndex:
    """BM25 over the passages of a corpus. `bm25` is None for an empty one."""

    def __init__(self, bm25: Any | None, ids: Sequence[str], corpus_sha256: str):
        self._bm25 = bm25
        self.ids = list(ids)
        self.corpus_sha256 = corpus_sha256

    @classmethod
    def build(cls, documents: Iterable[Document], corpus_sha256: str) -> KeywordIndex:
        """Index the passages (title and contents) of `documents`, in their order."""
        import bm25s

        vocabulary: dict[str, int] = {}
        ids, terms = [], []
        for document in documents:
            ids.append(document.id)
            terms.append([vocabulary.setdefault(token, len(vocabulary)) for token in tokens(document.passage)])
        if not vocabulary:
            return cls(None, ids, corpus_sha256)
        bm25 = bm25s.BM25(method="lucene")
        bm25.index((terms, vocabulary), show_progress=False)
        return cls(bm25, ids, corpus_sha256)

    def save(self, path: str | Path) -> None:
        path = Path(path)
        path.mkdir(parents=True, exist_ok=True)
        for name in ("meta.json", "params.index.json"):
            (path / name).unlink(missing_ok=True)
        if self._bm25 is not None:
            self._bm25.save(path)
        write_atomic(path / "ids.json", json.dumps(self.ids))
        write_atomic(path / "meta.json", json.dumps({"count": len(self.ids), "corpus_sha256": self.corpus_sha256}, indent=1))

    @classmethod
    def load(cls, path: str | Path, corpus_sha256: str) -> KeywordIndex:
        """Raises what `check_bm25` raises, and ConfigError when the files contradict each other."""
        import bm25s

        path = Path(path)
        count = check_bm25(path, corpus_sha256)
        ids = json.loads((path / "ids.json").read_text(encoding="utf-8"))
        bm25 = bm25s.BM25.load(path) if (path / "params.index.json").is_file() else None
        counts = {"meta.json": count, "ids.json": len(ids), "scores": count if bm25 is None else int(bm25.scores["num_docs"])}
        if len(set(counts.values())) != 1:
            raise ConfigError(f"the keyword index at {path} is torn: {counts} should be equal; build it again")
        return cls(bm25, ids, corpus_sha256)

    def search(self, queries: Sequence[str], k: int) -> list[Hits]:
        """For each query up to `k` documents that share a term with it, with their BM25 scores, best first."""
        if self._bm25 is None or not queries:
            return [[] for _ in queries]
        rows_QK, scores_QK = self._bm25.retrieve([tokens(q) for q in queries], k=min(k, len(self.ids)), show_progress=False)
        return [
            [(self.ids[row], float(score)) for row, score in zip(rows, scores, strict=True) if score > 0]
            for rows, scores in zip(rows_QK, scores_QK, strict=True)
        ]
