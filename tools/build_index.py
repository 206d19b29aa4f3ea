"""Build a corpus and its index from documents of your own.

    python -m tools.build_index SOURCE --out data/mine [--kind flat|ivf|hnsw] [--bm25]

    SOURCE        a folder with .txt, .md, .html and .pdf files, or a .jsonl file with a `contents` in every line
    corpus.jsonl  the passages: {id, title, contents, url}
    index/        the encoded passages, and with --bm25 a keyword index

Run it again after a change: only passages that are new are encoded. What cannot be read is listed and left out. The files are
read and encoded on this machine; nothing is sent anywhere (a model that is not on disk is fetched from its hub, once).
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from envs.retrieval.bm25 import KeywordIndex
from envs.retrieval.corpus import Document, corpus_sha256, read_corpus, write_corpus
from envs.retrieval.encoder import MINILM, SentenceEncoder
from envs.retrieval.index import FLAT_UP_TO, KINDS, VectorIndex, default_kind
from envs.retrieval.ingest import ingest
from rlcore.errors import ConfigError


def build_index(
    source: Path,
    out: Path,
    console: Console,
    *,
    kind: str | None = None,
    bm25: bool = False,
    size: int = 512,
    overlap: int = 50,
    encoder_name: str = MINILM,
    **encoder_options: Any,
) -> None:
    """Bring corpus and index at `out` up to date with `source`. `kind` None is the index's default for so many passages;
    `encoder_options` are SentenceEncoder's."""
    ingested = ingest(source, size, overlap)
    documents = ingested.documents
    for where, reason in ingested.problems.items():
        console.print(f"left out {where}: {reason}", style="yellow", markup=False, highlight=False)
    encoder = SentenceEncoder(encoder_name, **encoder_options)
    known = _encoded(out, encoder, console)
    new = [document.passage for document in documents if document.passage not in known]
    console.print(
        f"{len(documents)} passages, {len(new)} of them new; {ingested.duplicates} duplicates dropped, "
        f"{len(ingested.problems)} files or lines left out"
    )
    columns = (TextColumn("encoding"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("encoding", total=len(new))
        known |= zip(new, encoder.encode_passages(new, lambda count: progress.advance(task, count)), strict=True)
    vectors = np.stack([known[document.passage] for document in documents])
    out.mkdir(parents=True, exist_ok=True)
    write_corpus(out / "corpus.jsonl", documents)
    digest, kind = corpus_sha256(out / "corpus.jsonl"), kind or default_kind(len(documents))
    VectorIndex.build(vectors, [document.id for document in documents], encoder, digest, kind).save(out / "index")
    if bm25:
        KeywordIndex.build(documents, digest).save(out / "index" / "bm25")
    console.print(f"corpus and {kind} index{' with BM25' if bm25 else ''} written to {out}")


def _encoded(out: Path, encoder: SentenceEncoder, console: Console) -> dict[str, np.ndarray]:
    """The passages of an earlier build with their vectors; none when they are of another encoder or the build was torn."""
    if not (out / "corpus.jsonl").is_file():
        return {}
    try:
        earlier: dict[str, Document] = read_corpus(out / "corpus.jsonl")
        index = VectorIndex.load(out / "index", encoder, corpus_sha256(out / "corpus.jsonl"))
    except ConfigError as error:
        console.print(f"encoding everything anew: {error}", style="yellow", markup=False, highlight=False)
        return {}
    return {earlier[id].passage: vector for id, vector in zip(index.ids, index.vectors(), strict=True)}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="a folder, or a .jsonl file")
    parser.add_argument("--out", type=Path, required=True, help="where corpus and index go, such as data/mine")
    kinds = f"flat (exact; the default up to {FLAT_UP_TO:,} passages), hnsw (the default beyond) or ivf; a GPU takes flat and ivf"
    parser.add_argument("--kind", choices=KINDS, help=kinds)
    parser.add_argument("--bm25", action="store_true", help="also a keyword index, for ranking=bm25 and ranking=hybrid")
    parser.add_argument("--chunk", type=int, default=512, help="characters of a passage at most")
    parser.add_argument("--overlap", type=int, default=50, help="characters a passage repeats of the one before at most")
    parser.add_argument("--encoder", default=MINILM, help="minilm, a model folder, or a name on the Hugging Face hub")
    parser.add_argument("--passage-prompt", default="", help="put before every passage")
    parser.add_argument("--device", default="cpu", help="torch's device for the encoder, such as cuda")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="threads of the encoder")
    args = parser.parse_args(argv)
    try:
        build_index(
            args.source,
            args.out,
            Console(),
            kind=args.kind,
            bm25=args.bm25,
            size=args.chunk,
            overlap=args.overlap,
            encoder_name=args.encoder,
            passage_prompt=args.passage_prompt,
            device=args.device,
            threads=args.threads,
        )
    except ConfigError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
