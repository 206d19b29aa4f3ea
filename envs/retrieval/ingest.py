"""A user's own documents -> corpus: a folder of files, or a JSONL file with a `contents` in every line.

source --> texts --> passages (chunks) --> duplicates dropped --> [Document] and what was left out, with the reason
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from envs.retrieval.chunks import chunk
from envs.retrieval.corpus import FIELDS, Document
from envs.retrieval.files import read_file
from rlcore.errors import ConfigError


@dataclass
class Ingested:
    """`problems` says, for every file or line that was left out, why. `duplicates` counts passages met before."""

    documents: list[Document] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)
    duplicates: int = 0


def ingest(source: str | Path, size: int = 512, overlap: int = 50) -> Ingested:
    """The passages of a folder (all readable files in it and below, hidden ones apart) or of a JSONL file.

    A text that fits into one passage keeps its id (the file's path below the folder, or the line's `id`); otherwise "#1", "#2"
    and so on are added. `url` is the line's own, or "file:" and the path below the source: nothing tells where the folder
    lies. A passage whose contents came before is dropped. Raises ConfigError when there is no such source or no text in it.
    """
    source = Path(source)
    found = Ingested()
    if source.is_dir():
        texts = _read_folder(source, found.problems)
    elif source.is_file() and source.suffix == ".jsonl":
        texts = _read_jsonl(source, found.problems)
    else:
        raise ConfigError(f"{source} is neither a folder nor a .jsonl file")
    contents: set[str] = set()
    ids: set[str] = set()
    for text in texts:
        passages = chunk(text.contents, size, overlap)
        for number, passage in enumerate(passages, start=1):
            id = f"{text.id}#{number}" if len(passages) > 1 else text.id
            if passage in contents:
                found.duplicates += 1
            elif id in ids:
                found.problems[f"{source.name}: {id}"] = "the id was used before, for other contents"
            else:
                contents.add(passage)
                ids.add(id)
                found.documents.append(Document(id, text.title, passage, text.url))
    if not found.documents:
        raise ConfigError(f"{source} holds no text; left out: {found.problems or 'nothing'}")
    return found


def _read_folder(folder: Path, problems: dict[str, str]) -> Iterator[Document]:
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if not path.is_file() or any(part.startswith(".") for part in name.split("/")):
            continue
        try:
            name.encode()
            title, text = read_file(path)
        except UnicodeEncodeError:
            problems[name.encode(errors="backslashreplace").decode()] = "its name is not UTF-8"
        except ValueError as error:
            problems[name] = str(error)
        else:
            yield Document(name, title, text, f"file:{quote(name)}")


def _read_jsonl(path: Path, problems: dict[str, str]) -> Iterator[Document]:
    """`contents` is needed; `id` and `url` default to file and line, `title` to the id. Other keys are not read."""
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            where = f"{path.name}:{number}"
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                json.dumps(row, ensure_ascii=False).encode()  # half a surrogate pair fits no file
            except ValueError as error:
                problems[where] = f"not JSON ({error})"
                continue
            if not isinstance(row, dict) or "contents" not in row:
                problems[where] = "not an object with a key `contents`"
                continue
            values = {"id": where, "title": str(row.get("id", where)), "url": f"file:{quote(path.name)}#{number}"}
            values |= {name: row[name] for name in FIELDS if name in row}
            bad = [name for name, value in values.items() if not isinstance(value, str) or not value.strip()]
            if bad:
                problems[where] = f"{bad[0]} must be a non-blank string, got {values[bad[0]]!r}"
            else:
                yield Document(values["id"], values["title"], values["contents"], values["url"])
