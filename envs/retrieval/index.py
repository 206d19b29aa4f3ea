"""The vector index: FAISS, exact inner product, one row a document, with explicit document ids.

    index.faiss   the vectors, in row order
    ids.json      the document id of every row
    meta.json     which encoder, corpus and metric they belong to; written last, so a torn index is refused

All of it is checked on load: an index of other vectors than the ones asked for gives plausible nonsense, not an error.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from envs.retrieval.corpus import write_text
from envs.retrieval.encoder import Encoder
from rlcore.errors import ConfigError

METRIC = "inner_product"


@dataclass(frozen=True)
class IndexMeta:
    """What an index was built from. `normalised`: every vector has length 1, so that inner product is cosine similarity."""

    encoder: str
    passage_prompt: str
    dimension: int
    metric: str
    normalised: bool
    count: int
    corpus_sha256: str


def check_index(
    path: str | Path,
    encoder: str | None = None,
    dimension: int | None = None,
    *,
    passage_prompt: str | None = None,
    corpus_sha256: str | None = None,
) -> IndexMeta:
    """Refuse an index that cannot serve these settings, before anything heavy starts: only its meta.json is read.

    A setting that is None is not compared. Returns the index's meta. Raises ConfigError, with the command that builds an
    index, when there is none, and ConfigError naming the setting with both values when one differs.
    """
    path = Path(path)
    if not (path / "meta.json").is_file():
        raise ConfigError(f"no index at {path}; build it with `python -m tools.build_world --out {path.parent}`")
    row = json.loads((path / "meta.json").read_text(encoding="utf-8"))
    if not isinstance(row, dict) or set(row) != {field.name for field in fields(IndexMeta)}:
        raise ConfigError(
            f"{path}/meta.json must have exactly the keys {[field.name for field in fields(IndexMeta)]}, got {row!r}"
        )
    meta = IndexMeta(**row)
    wanted = {
        "encoder": encoder,
        "dimension": dimension,
        "passage_prompt": passage_prompt,
        "corpus_sha256": corpus_sha256,
        "metric": METRIC,
        "normalised": True,
    }
    for name, value in wanted.items():
        found = getattr(meta, name)
        if value is not None and found != value:
            raise ConfigError(f"the index at {path} has {name} {found!r}, but {value!r} is wanted; rebuild it or change {name}")
    return meta


class VectorIndex:
    """Exact nearest-neighbour search over unit vectors; rows are known by their document ids."""

    def __init__(self, faiss_index: Any, ids: Sequence[str], meta: IndexMeta):
        self._faiss = faiss_index
        self.ids = list(ids)
        self.meta = meta

    @classmethod
    def build(cls, vectors: np.ndarray, ids: Sequence[str], encoder: Encoder, corpus_sha256: str) -> VectorIndex:
        """An index of `vectors` [N, dimension], row i belonging to `ids[i]`.

        Raises ValueError unless the ids are as many as the rows and all different, the width is the encoder's dimension, and
        every vector has length 1.
        """
        import faiss

        vectors = np.ascontiguousarray(vectors, dtype=np.float32)
        if vectors.ndim != 2 or vectors.shape[1] != encoder.dimension:
            raise ValueError(f"vectors must be [N, {encoder.dimension}] for encoder {encoder.name!r}, got {list(vectors.shape)}")
        if len(ids) != len(vectors) or len(set(ids)) != len(ids):
            raise ValueError(f"{len(vectors)} vectors need as many different ids, got {len(ids)} ({len(set(ids))} different)")
        norms = np.linalg.norm(vectors, axis=1)
        if not np.allclose(norms, 1.0, atol=1e-3):
            raise ValueError(f"vectors must have length 1, got lengths from {norms.min():.4g} to {norms.max():.4g}")
        faiss_index = faiss.IndexFlatIP(encoder.dimension)
        faiss_index.add(vectors)
        meta = IndexMeta(encoder.name, encoder.passage_prompt, encoder.dimension, METRIC, True, len(ids), corpus_sha256)
        return cls(faiss_index, ids, meta)

    def save(self, path: str | Path) -> None:
        import faiss

        path = Path(path)
        path.mkdir(parents=True, exist_ok=True)
        (path / "meta.json").unlink(missing_ok=True)
        faiss.write_index(self._faiss, str(path / "index.faiss.tmp"))
        os.replace(path / "index.faiss.tmp", path / "index.faiss")
        write_text(path / "ids.json", json.dumps(self.ids))
        write_text(path / "meta.json", json.dumps(asdict(self.meta), indent=1))

    @classmethod
    def load(cls, path: str | Path, encoder: Encoder, corpus_sha256: str) -> VectorIndex:
        """The index at `path`, to be searched with vectors of `encoder` over the corpus with that hash.

        Raises what `check_index` raises, and ValueError when the three files contradict each other.
        """
        import faiss

        path = Path(path)
        meta = check_index(
            path, encoder.name, encoder.dimension, passage_prompt=encoder.passage_prompt, corpus_sha256=corpus_sha256
        )
        faiss_index = faiss.read_index(str(path / "index.faiss"))
        ids = json.loads((path / "ids.json").read_text(encoding="utf-8"))
        counts = {
            "meta.json": meta.count,
            "ids.json": len(ids),
            "different ids": len(set(ids)),
            "index.faiss": faiss_index.ntotal,
        }
        if len(set(counts.values())) != 1:
            raise ValueError(f"the index at {path} is torn: {counts} should be equal; build it again")
        if faiss_index.d != meta.dimension or faiss_index.metric_type != faiss.METRIC_INNER_PRODUCT:
            raise ValueError(f"{path}/index.faiss has dimension {faiss_index.d} and metric {faiss_index.metric_type}, not {meta}")
        return cls(faiss_index, ids, meta)

    def search(self, vectors: np.ndarray, k: int) -> list[list[tuple[str, float]]]:
        """For each query vector of `vectors` [Q, dimension] the `k` most similar ids with their similarity, best first.

        Fewer than `k` when the index holds fewer. Raises ValueError for a wrong width or k < 1.
        """
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        vectors = np.ascontiguousarray(vectors, dtype=np.float32)
        if vectors.ndim != 2 or vectors.shape[1] != self.meta.dimension:
            raise ValueError(f"query vectors must be [Q, {self.meta.dimension}], got {list(vectors.shape)}")
        if not self.ids or not len(vectors):
            return [[] for _ in vectors]
        scores_QK, rows_QK = self._faiss.search(vectors, min(k, len(self.ids)))
        return [
            [(self.ids[row], float(score)) for row, score in zip(rows, scores, strict=True)]
            for rows, scores in zip(rows_QK, scores_QK, strict=True)
        ]
