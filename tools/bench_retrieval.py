"""Measure index kinds at scale: build time, resident memory, recall@10 against flat, latency and throughput.

    python -m tools.bench_retrieval --n 50000              a quick check, minutes
    python -m tools.bench_retrieval --n 2860000 --kinds flat ivf --out bench.json

The vectors are synthetic but not noise, in which no neighbour is nearer than another and every approximate index looks bad.
A document is a subject plus a deviation, a subject a field plus a deviation, a query a document plus a deviation, all of them
scaled to length 1 before and after: N / 1,000 fields, 20 subjects in each and about 50 documents on each subject. The axes'
standard deviations fall like 1 / sqrt(axis), as the principal components of text embeddings do. The cosines of a query with the
first, 10th and 100th document are then 0.71, 0.51 and 0.42 (N = 50,000); all-MiniLM-L6-v2 gives 0.85, 0.59 and 0.47 for the
keywords of the demonstration world, and 0.60, 0.47 and 0.36 for its questions. Everything follows from --seed.

Every kind is built in one process and searched in another, so that memory is its own. CPU times (of all threads together) hardly
depend on what else the machine does; the other times do. Searches go through the service's
BatchedSearch with vectors in place of texts: the text encoder, which costs the same for every kind, is measured apart.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
from rich.console import Console
from rich.table import Table

from envs.retrieval.batching import BatchedSearch
from envs.retrieval.encoder import MINILM, SentenceEncoder
from envs.retrieval.index import KINDS, VectorIndex
from rlcore.files import write_atomic

BLOCK = 50_000  # vectors that are made at a time
DOCUMENTS_PER_FIELD = 1000
SUBJECTS_PER_FIELD = 20
QUERIES = 1000
K = 10
SHA = "synthetic"
MIB = 2**20


@dataclass(frozen=True)
class Settings:
    n: int
    dimension: int
    threads: int
    seed: int
    folder: Path
    breadths: dict[str, list[int]]
    seconds: float

    @property
    def encoder(self) -> Any:
        return SimpleNamespace(name="synthetic", passage_prompt="", dimension=self.dimension)


@dataclass(frozen=True)
class VectorFile:
    """The rows of an .npy file as VectorIndex.build reads them. Nothing stays mapped, so that resident memory is the index's."""

    path: Path
    shape: tuple[int, int]
    ndim = 2

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice | np.ndarray) -> np.ndarray:
        return np.array(np.load(self.path, mmap_mode="r")[rows])


def deviations(rng: np.random.Generator, count: int, dimension: int) -> np.ndarray:
    """[count, dimension] Gaussian vectors of length 1 (root mean square), the i-th axis weighing 1 / sqrt(i)."""
    axes = np.arange(1, dimension + 1) ** -0.5
    return rng.standard_normal((count, dimension), dtype=np.float32) * (axes / np.linalg.norm(axes)).astype(np.float32)


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def write_vectors(s: Settings) -> None:
    """vectors.npy [n, dimension] and queries.npy [QUERIES, dimension]."""
    rng = np.random.default_rng(s.seed)
    fields = unit(deviations(rng, max(1, s.n // DOCUMENTS_PER_FIELD), s.dimension))
    subjects = np.repeat(fields, SUBJECTS_PER_FIELD, axis=0)
    subjects = unit(subjects + deviations(rng, len(subjects), s.dimension))
    shape = (s.n, s.dimension)
    vectors = np.lib.format.open_memmap(s.folder / "vectors.npy", mode="w+", dtype=np.float32, shape=shape)
    for number, start in enumerate(range(0, s.n, BLOCK)):
        rng = np.random.default_rng((s.seed, number))
        count = min(BLOCK, s.n - start)
        chosen = subjects[rng.integers(len(subjects), size=count)]
        vectors[start : start + count] = unit(chosen + deviations(rng, count, s.dimension))
    rng = np.random.default_rng((s.seed, s.n))
    near = vectors[np.sort(rng.integers(s.n, size=QUERIES))]
    np.save(s.folder / "queries.npy", unit(near + deviations(rng, QUERIES, s.dimension)))


def build(s: Settings, kind: str) -> dict[str, Any]:
    """Build and save one index."""
    import faiss

    faiss.omp_set_num_threads(s.threads)
    vectors = VectorFile(s.folder / "vectors.npy", (s.n, s.dimension))
    start, cpu_start = time.perf_counter(), time.process_time()
    index = VectorIndex.build(vectors, [str(row) for row in range(s.n)], s.encoder, SHA, kind)
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu_start
    index.save(s.folder / kind)
    return {"build_s": seconds, "build_cpu_s": cpu, "build_peak_mib": _peak_mib()}


def measure(s: Settings, kind: str, breadth: int | None, exact: np.ndarray | None) -> tuple[dict[str, Any], np.ndarray]:
    """Load one index and search it. `exact` [QUERIES, K] are the flat index's rows; returns the figures and this one's rows."""
    import faiss

    faiss.omp_set_num_threads(s.threads)
    queries = np.load(s.folder / "queries.npy")
    before, start = _resident_mib(), time.perf_counter()
    index = VectorIndex.load(s.folder / kind, s.encoder, SHA, breadth=breadth)
    figures: dict[str, Any] = {"kind": kind, "breadth": breadth, "load_s": time.perf_counter() - start}
    found = [[int(id) for id, _ in hits] for hits in index.search(queries, K)]
    figures["resident_mib"] = _resident_mib() - before
    rows = np.array([hits + [-1] * (K - len(hits)) for hits in found])
    if exact is not None:
        figures["recall"] = np.mean([len(set(a) & set(b)) / K for a, b in zip(exact.tolist(), found, strict=True)])
    for callers in (1, 64):
        figures |= asyncio.run(_load(index, queries, callers, s.seconds))
    return figures, rows


async def _load(index: VectorIndex, queries: np.ndarray, callers: int, seconds: float) -> dict[str, Any]:
    """`callers` ask one query after another for `seconds`, and each at least three."""
    with ThreadPoolExecutor(max_workers=1) as thread:

        def lookup(batch: list[str], k: int) -> list[list[tuple[str, float]]]:
            return index.search(queries[[int(query) for query in batch]], k)

        search = BatchedSearch(lookup, thread, cache_size=0, deadline_s=600)
        latencies: list[float] = []
        stop = time.perf_counter() + seconds

        async def ask(caller: int) -> None:
            asked = 0
            while time.perf_counter() < stop or asked < 3:
                start = time.perf_counter()
                await search.search([str((caller + 64 * asked) % len(queries))], K)
                latencies.append(time.perf_counter() - start)
                asked += 1

        start, cpu_start = time.perf_counter(), time.process_time()
        await asyncio.gather(*(ask(caller) for caller in range(callers)))
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu_start
    p50, p99 = np.percentile(latencies, [50, 99]) * 1000
    figures = {"p50_ms": p50, "p99_ms": p99, "qps": len(latencies) / seconds, "cpu_ms": 1000 * cpu / len(latencies)}
    return {f"{name}_{callers}": value for name, value in {**figures, "searches": len(latencies)}.items()}


def measure_encoder(threads: int) -> dict[str, float]:
    """Milliseconds to encode 1 and 64 short queries with the default encoder, medians of 5."""
    encoder = SentenceEncoder(MINILM, threads=threads)
    texts = [f"how large is the population of city number {i}" for i in range(64)]
    figures = {}
    for count in (1, 64):
        encoder.encode_queries(texts[:count])
        times = []
        for _ in range(5):
            start = time.perf_counter()
            encoder.encode_queries(texts[:count])
            times.append(time.perf_counter() - start)
        figures[f"encode_ms_{count}"] = float(np.median(times)) * 1000
    return figures


def bench(s: Settings, kinds: list[str], with_encoder: bool, console: Console) -> dict[str, Any]:
    """All figures. flat always comes first: it is the truth of the recall."""
    result: dict[str, Any] = {"n": s.n, "dimension": s.dimension, "threads": s.threads, "seed": s.seed, "k": K}
    start = time.perf_counter()
    _apart(write_vectors, s)
    result["vectors_s"] = time.perf_counter() - start
    if with_encoder:
        result["encoder"] = _apart(measure_encoder, s.threads)
    exact, rows = None, []
    for kind in ["flat", *(kind for kind in kinds if kind != "flat")]:
        console.print(f"{kind}: building {s.n:,} vectors", highlight=False)
        built = _apart(build, s, kind)
        for breadth in s.breadths.get(kind, [None]):
            figures, found = _apart(measure, s, kind, breadth, exact)
            exact = found if exact is None else exact
            rows.append({**built, **figures})
            console.print(f"  {json.dumps(_rounded(rows[-1]))}", markup=False, highlight=False)
        shutil.rmtree(s.folder / kind)
    return {**result, "load_average": os.getloadavg(), "rows": rows}


def print_table(result: dict[str, Any], console: Console) -> None:
    columns = ["kind", "breadth", "build_s", "build_cpu_s", "resident_mib", "recall"]
    columns += [f"{name}_{callers}" for callers in (1, 64) for name in ("p50_ms", "p99_ms", "qps", "cpu_ms")]
    table = Table(*columns, title=f"{result['n']:,} vectors of {result['dimension']} dimensions, {result['threads']} threads")
    for row in map(_rounded, result["rows"]):
        table.add_row(*(str(row.get(column, "")) for column in columns))
    console.print(table)
    console.print({name: value for name, value in result.items() if name != "rows"})


def _rounded(row: dict[str, Any]) -> dict[str, Any]:
    return {name: float(f"{value:.4g}") if isinstance(value, float) else value for name, value in row.items()}


def _apart(function: Callable[..., Any], *args: Any) -> Any:
    """Run in a fresh process, so that memory is the function's own and is given back."""
    with ProcessPoolExecutor(max_workers=1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *args).result()


def _resident_mib() -> float:
    return psutil.Process().memory_info().rss / MIB


def _peak_mib() -> float:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=50_000, help="vectors")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="flat is always among them")
    parser.add_argument("--dimension", type=int, default=384)
    parser.add_argument("--ivf-breadths", type=int, nargs="+", default=[8, 16, 32, 64], help="cells a query looks into")
    parser.add_argument("--hnsw-breadths", type=int, nargs="+", default=[64, 128, 256], help="candidates a query keeps")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--seconds", type=float, default=10.0, help="how long each load is kept up")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-encoder", action="store_true", help="leave out the text encoder's own figures")
    parser.add_argument("--folder", type=Path, help="where vectors and indexes lie meanwhile (about 3 x 4 x n x dimension bytes)")
    parser.add_argument("--out", type=Path, help="a JSON file for the figures")
    args = parser.parse_args(argv)
    breadths: dict[str, list[Any]] = {"ivf": args.ivf_breadths, "hnsw": args.hnsw_breadths}
    console = Console()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        settings = Settings(args.n, args.dimension, args.threads, args.seed, Path(folder), breadths, args.seconds)
        result = bench(settings, args.kinds, not args.no_encoder, console)
    if args.out:
        write_atomic(args.out, json.dumps(result, indent=1))
    print_table(result, Console(width=max(console.width, 160)))


if __name__ == "__main__":
    main()
