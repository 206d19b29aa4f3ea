"""The vector index: FAISS over unit vectors by inner product, one row a document, with explicit document ids.

    index.faiss   the vectors, in row order
    ids.json      the document id of every row
    meta.json     which encoder, corpus and metric they belong to; written last, so a torn index is refused

All of it is checked on load: an index of other vectors than the ones asked for gives plausible nonsense, not an error.

    flat   compares a query with every vector: exact, needs no training
    ivf    sorts the vectors into cells around k-means centres and looks into the `breadth` cells nearest to the query
    hnsw   walks a graph of near neighbours (Malkov and Yashunin, 2018), keeping the `breadth` best on the way
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from envs.retrieval.encoder import Encoder
from rlcore.errors import ConfigError
from rlcore.files import write_atomic

METRIC = "inner_product"
KINDS = ("flat", "ivf", "hnsw")
CHUNK = 65_536  # rows that are copied at a time
# The figures of tools/bench_retrieval.py chose these.
CELLS_PER_ROOT = 4  # an IVF index of N vectors has this many times sqrt(N) cells
TRAINING_ROWS_PER_CELL = 40  # FAISS warns below 39 and takes no more than 256
IVF_SHARE = 20  # one in so many cells is looked into: recall@10 of about 0.95 at 50,000 and at 300,000 vectors
HNSW_LINKS = 32
HNSW_BUILD_BREADTH = 100
HNSW_BREADTH_PER_ROOT = 0.46  # as many candidates times sqrt(N), 64 or more: recall@10 of 0.95 at 2.86 million vectors
FLAT_UP_TO = 100_000  # vectors that a CPU compares with a query in about 30 ms; beyond, hnsw costs a tenth and less

Hits = list[tuple[str, float]]  # document ids with their scores, best first


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
    kind: str = "flat"


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
        raise ConfigError(
            f"no index at {path}; build it with `python -m tools.build_world --out {path.parent}`, "
            "or with tools.build_index from documents of your own"
        )
    row = json.loads((path / "meta.json").read_text(encoding="utf-8"))
    names = [field.name for field in fields(IndexMeta)]
    needed = {field.name for field in fields(IndexMeta) if field.default is MISSING}
    if not isinstance(row, dict) or not needed <= row.keys() <= set(names):
        raise ConfigError(f"{path}/meta.json must have exactly the keys {names}, got {row!r}")
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
    """Nearest-neighbour search over unit vectors; rows are known by their document ids."""

    def __init__(self, faiss_index: Any, ids: Sequence[str], meta: IndexMeta):
        self._faiss = faiss_index
        self.ids = list(ids)
        self.meta = meta

    @classmethod
    def build(
        cls, vectors: np.ndarray, ids: Sequence[str], encoder: Encoder, corpus_sha256: str, kind: str = "flat"
    ) -> VectorIndex:
        """An index of `vectors` [N, dimension], row i belonging to `ids[i]`. A memory map is read piece by piece.

        Raises ValueError unless the ids are as many as the rows and all different, the width is the encoder's dimension, and
        every vector has length 1; ConfigError for an unknown kind.
        """
        if vectors.ndim != 2 or vectors.shape[1] != encoder.dimension:
            raise ValueError(f"vectors must be [N, {encoder.dimension}] for encoder {encoder.name!r}, got {list(vectors.shape)}")
        if len(ids) != len(vectors) or len(set(ids)) != len(ids):
            raise ValueError(f"{len(vectors)} vectors need as many different ids, got {len(ids)} ({len(set(ids))} different)")
        faiss_index = _new_faiss(kind, vectors)
        for start in range(0, len(vectors), CHUNK):
            chunk = np.ascontiguousarray(vectors[start : start + CHUNK], dtype=np.float32)
            norms = np.linalg.norm(chunk, axis=1)
            if not np.allclose(norms, 1.0, atol=1e-3):
                raise ValueError(f"vectors must have length 1, got lengths from {norms.min():.4g} to {norms.max():.4g}")
            faiss_index.add(chunk)
        meta = IndexMeta(encoder.name, encoder.passage_prompt, encoder.dimension, METRIC, True, len(ids), corpus_sha256, kind)
        return cls(faiss_index, ids, meta)

    def save(self, path: str | Path) -> None:
        import faiss

        path = Path(path)
        path.mkdir(parents=True, exist_ok=True)
        (path / "meta.json").unlink(missing_ok=True)
        faiss.write_index(self._faiss, str(path / "index.faiss.tmp"))
        os.replace(path / "index.faiss.tmp", path / "index.faiss")
        write_atomic(path / "ids.json", json.dumps(self.ids))
        write_atomic(path / "meta.json", json.dumps(asdict(self.meta), indent=1))

    @classmethod
    def load(
        cls, path: str | Path, encoder: Encoder, corpus_sha256: str, *, breadth: int | None = None, device: str = "cpu"
    ) -> VectorIndex:
        """The index at `path`, to be searched with vectors of `encoder` over the corpus with that hash.

        `breadth` replaces the one it was built with. `device` "cuda" searches a clone on the GPUs, where FAISS has been built
        for them and the kind exists there (hnsw does not); the CPU otherwise. Raises what `check_index` raises, and ConfigError
        when the three files contradict each other or a flat index is given a breadth.
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
            raise ConfigError(f"the index at {path} is torn: {counts} should be equal; build it again")
        if faiss_index.d != meta.dimension or faiss_index.metric_type != faiss.METRIC_INNER_PRODUCT:
            raise ConfigError(
                f"{path}/index.faiss has dimension {faiss_index.d} and metric {faiss_index.metric_type}, not {meta}"
            )
        if breadth is not None:
            _set_breadth(faiss_index, breadth)
        if device == "cuda" and meta.kind != "hnsw" and getattr(faiss, "get_num_gpus", int)():
            faiss_index = faiss.index_cpu_to_all_gpus(faiss_index)
        return cls(faiss_index, ids, meta)

    def vectors(self) -> np.ndarray:
        """All vectors [N, dimension] in the order of `ids`, from an index on the CPU."""
        import faiss

        if isinstance(self._faiss, faiss.IndexIVF):
            self._faiss.make_direct_map()
        return self._faiss.reconstruct_n(0, len(self.ids))

    def search(self, vectors: np.ndarray, k: int) -> list[Hits]:
        """For each query vector of `vectors` [Q, dimension] the `k` most similar ids with their similarity, best first.

        Fewer than `k` when the index holds fewer (or an ivf's cells do). Raises ValueError for a wrong width or k < 1.
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
            [(self.ids[row], float(score)) for row, score in zip(rows, scores, strict=True) if row >= 0]  # -1: none was left
            for rows, scores in zip(rows_QK, scores_QK, strict=True)
        ]


def default_kind(count: int) -> str:
    """The kind that suits so many vectors on a CPU. With a GPU, flat is fast for millions."""
    return "flat" if count <= FLAT_UP_TO else "hnsw"


def _new_faiss(kind: str, vectors: np.ndarray) -> Any:
    """An empty FAISS index for `vectors` [N, dimension], trained on a sample of them if its kind needs that."""
    import faiss

    if kind not in KINDS:
        raise ConfigError(f"index kind {kind!r} must be one of {', '.join(KINDS)}")
    count, dimension = vectors.shape
    if kind == "hnsw":
        index = faiss.index_factory(dimension, f"HNSW{HNSW_LINKS},Flat", faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = HNSW_BUILD_BREADTH
        _set_breadth(index, max(64, round(HNSW_BREADTH_PER_ROOT * count**0.5)))
    elif kind == "ivf" and count:
        cells = max(1, min(round(CELLS_PER_ROOT * count**0.5), count // TRAINING_ROWS_PER_CELL))
        index = faiss.index_factory(dimension, f"IVF{cells},Flat", faiss.METRIC_INNER_PRODUCT)
        sample = np.random.default_rng(0).choice(count, min(count, TRAINING_ROWS_PER_CELL * cells), replace=False)
        index.train(np.ascontiguousarray(vectors[np.sort(sample)], dtype=np.float32))
        _set_breadth(index, max(8, cells // IVF_SHARE))
    else:  # nothing can be learned from no vectors
        index = faiss.index_factory(dimension, "Flat", faiss.METRIC_INNER_PRODUCT)
    return index


def _set_breadth(faiss_index: Any, breadth: int) -> None:
    import faiss

    if breadth < 1:
        raise ConfigError(f"breadth={breadth} must be at least 1")
    if isinstance(faiss_index, faiss.IndexIVF):
        faiss_index.nprobe = breadth
    elif isinstance(faiss_index, faiss.IndexHNSW):
        faiss_index.hnsw.efSearch = breadth
    else:
        raise ConfigError(f"breadth={breadth} is for an index of kind ivf or hnsw; a flat one always looks at everything")
