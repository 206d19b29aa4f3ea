"""Build the demonstration world: a corpus of real facts, its index, and research queries over it.

    python -m tools.build_world --out data/world [--size full|small] [--seed 0]

    corpus.jsonl   {id, title, contents, url}: countries, cities and chemical elements
    queries.jsonl  research questions with their checklists and the teacher's oracle
    index/         the encoded corpus
    world.json     what was built and how well the oracle's keywords find their documents; written last

Corpus and queries are the same bytes for the same size and seed. A world that is already there is left alone.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from envs.retrieval.corpus import Document, corpus_sha256, write_corpus, write_jsonl
from envs.retrieval.elements import elements
from envs.retrieval.encoder import MINILM, SentenceEncoder
from envs.retrieval.facts import geography
from envs.retrieval.index import VectorIndex, check_index
from envs.retrieval.questions import build_queries
from rlcore.errors import ConfigError
from rlcore.files import write_atomic

BUILDER_VERSION = 2  # raise it whenever the same size and seed give other documents or queries
QUERIES = {"full": (400, 80), "small": (24, 12)}  # train, held out
RECALL_AT = 4
RECALL_WANTED = 0.95


def build_texts(size: str, seed: int) -> tuple[list[Document], list[dict[str, Any]]]:
    """The documents and the research queries of a world, without encoding anything."""
    entities = geography(size) + elements(size)
    documents = [fact.document for entity in entities for fact in entity.facts.values()]
    train, heldout = QUERIES[size]
    return documents, build_queries(entities, train, heldout, seed)


def oracle_recall(queries: list[dict[str, Any]], index: VectorIndex, encoder: SentenceEncoder) -> float:
    """The share of golden documents among the first RECALL_AT found by the oracle's keywords of their section."""
    sections = [part for query in queries for topic in query["topics"] for part in (topic, *topic["subtopics"])]
    keywords = sorted({keyword for section in sections for keyword in section["keywords"]})
    hits = index.search(encoder.encode_queries(keywords), RECALL_AT)
    found = {keyword: {id for id, _ in hit} for keyword, hit in zip(keywords, hits, strict=True)}
    golden = [(section, id) for section in sections for id in section["doc_ids"]]
    return sum(any(id in found[keyword] for keyword in section["keywords"]) for section, id in golden) / len(golden)


def build_world(out: Path, size: str, seed: int, encoder_name: str, threads: int, console: Console) -> None:
    """Build the world at `out`, or say that it is there already."""
    settings = {"builder_version": BUILDER_VERSION, "size": size, "seed": seed, "encoder": encoder_name}
    if _is_built(out, settings):
        console.print(f"{out} already holds this world ({settings}); nothing to do")
        return
    seconds: dict[str, float] = {}
    out.mkdir(parents=True, exist_ok=True)
    (out / "world.json").unlink(missing_ok=True)
    with _timed(seconds, "documents and queries"):
        documents, queries = build_texts(size, seed)
        write_corpus(out / "corpus.jsonl", documents)
        write_jsonl(out / "queries.jsonl", queries)
    console.print(f"{len(documents)} documents and {len(queries)} queries written to {out}")
    with _timed(seconds, "loading the encoder"):
        encoder = SentenceEncoder(encoder_name, threads=threads)
    columns = (TextColumn("encoding"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with _timed(seconds, "encoding documents"), Progress(*columns, console=console) as progress:
        task = progress.add_task("encoding", total=len(documents))
        passages = [document.passage for document in documents]
        vectors = encoder.encode_passages(passages, lambda count: progress.advance(task, count))
    with _timed(seconds, "index"):
        digest = corpus_sha256(out / "corpus.jsonl")
        index = VectorIndex.build(vectors, [document.id for document in documents], encoder, digest)
        index.save(out / "index")
    with _timed(seconds, "checking the oracle"):
        recall = oracle_recall(queries, index, encoder)
    counts = {"documents": len(documents)} | {s: sum(query["split"] == s for query in queries) for s in ("train", "heldout")}
    write_atomic(out / "world.json", json.dumps({**settings, **counts, f"oracle_recall@{RECALL_AT}": round(recall, 4)}, indent=1))
    verdict = "" if recall >= RECALL_WANTED else f" [yellow](below {RECALL_WANTED}: this encoder suits the corpus badly)[/yellow]"
    console.print(f"recall@{RECALL_AT} of the oracle's keywords: {recall:.3f}{verdict}")
    console.print(", ".join(f"{phase} {s:.1f} s" for phase, s in seconds.items()) + f"; in all {sum(seconds.values()):.1f} s")


def _is_built(out: Path, settings: dict[str, Any]) -> bool:
    if not (out / "world.json").is_file():
        return False
    world = json.loads((out / "world.json").read_text(encoding="utf-8"))
    if {name: world.get(name) for name in settings} != settings or not (out / "queries.jsonl").is_file():
        return False
    try:
        check_index(out / "index", settings["encoder"], corpus_sha256=corpus_sha256(out / "corpus.jsonl"))
    except ConfigError:
        return False
    return True


@contextmanager
def _timed(seconds: dict[str, float], phase: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds[phase] = time.perf_counter() - start


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the folder to build, such as data/world")
    parser.add_argument("--size", choices=sorted(QUERIES), default="full", help="small: 400 documents and 36 queries")
    parser.add_argument("--seed", type=int, default=0, help="which entities and queries are drawn and held out")
    parser.add_argument("--encoder", default=MINILM, help="minilm, a model folder, or a name on the Hugging Face hub")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="threads of the encoder")
    args = parser.parse_args(argv)
    build_world(args.out, args.size, args.seed, args.encoder, args.threads, Console())


if __name__ == "__main__":
    main()
