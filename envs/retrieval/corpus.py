"""The corpus: one JSON document a line, `{"id", "title", "contents", "url"}`, read strictly.

What an agent may cite is exactly what is in this file. Row order carries no meaning: documents are known by their ids.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rlcore.errors import ConfigError
from rlcore.files import write_atomic

FIELDS = ("id", "title", "contents", "url")


@dataclass(frozen=True, slots=True)
class Document:
    """One passage an agent can read and cite. `score` is its similarity to the query that found it (0.0 outside a search)."""

    id: str
    title: str
    contents: str
    url: str
    score: float = 0.0

    @property
    def passage(self) -> str:
        """The text that is encoded for search."""
        return f"{self.title}. {self.contents}"


def read_corpus(path: str | Path) -> dict[str, Document]:
    """The documents of a corpus file by id, in file order.

    Raises ConfigError naming file and line for anything but `{"id", "title", "contents", "url"}` with non-blank strings, and
    for an id that was seen before; with the command that makes a corpus, when there is no such file.
    """
    path = _present(path)
    documents: dict[str, Document] = {}
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            document = _parse(line, f"{path}, line {number}")
            if document.id in documents:
                raise ConfigError(f"{path}, line {number}: the id {document.id!r} was used by an earlier line")
            documents[document.id] = document
    return documents


def _present(path: str | Path) -> Path:
    path = Path(path)
    if not path.is_file():
        raise ConfigError(
            f"no corpus at {path}; build it with `python -m tools.build_world --out {path.parent}`, "
            "or with tools.build_index from documents of your own"
        )
    return path


def _parse(line: bytes, where: str) -> Document:
    try:
        row = json.loads(line.decode())
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: not JSON ({error})") from error
    if not isinstance(row, dict) or set(row) != set(FIELDS):
        found = sorted(row) if isinstance(row, dict) else type(row).__name__
        raise ConfigError(f"{where}: a document has exactly the keys {list(FIELDS)}, got {found}")
    for field in FIELDS:
        if not isinstance(row[field], str) or not row[field].strip():
            raise ConfigError(f"{where}: {field} must be a non-blank string, got {row[field]!r}")
    return Document(**row)


def corpus_sha256(path: str | Path) -> str:
    """The SHA-256 of the corpus file's bytes, in hex: an index names the corpus it was built from by it.

    Raises ConfigError like `read_corpus` when there is no such file.
    """
    with _present(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_corpus(path: str | Path, documents: Iterable[Document]) -> None:
    """Write documents as a corpus file, atomically."""
    write_jsonl(path, ({field: getattr(document, field) for field in FIELDS} for document in documents))


def write_jsonl(path: str | Path, rows: Iterable[dict]) -> None:
    """Write one JSON object a line, atomically."""
    write_atomic(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
