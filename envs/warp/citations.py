r"""The one citation grammar, `\cite{textid3, textid1}`, and the numbering of passages that its keys refer to.

Models also write LaTeX's other commands: `\citep{..}`, `\parencite[p. 3]{..}`, `\Cite*{..}`. They are read and rendered as
citations too, but a strict reply must use the plain form (`is_malformed`), and `normalise_citations` turns all into it for a
tolerant one. `\nocite` and `\citestyle` cite nothing in the text. `#1` is a macro's placeholder, not a key.

A key is only ever given out by a `PassageBook`; it is never read from a passage's text, so what a document says cannot make
a key valid. Nor does a later search: in a stored text a key that its prompt did not show stays, marked as INVENTED.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

# The lengths are bounded, and a run of spaces is entered at its start only, so that no text takes quadratic time.
_NAME = r"\\([A-Za-z]{0,12}cite[A-Za-z]{0,12})\*?"
_COMMAND = re.compile(rf"(?<![ \t])[ \t]*{_NAME}(?:\[[^\[\]{{}}]{{0,99}}\]){{0,3}}\{{([^{{}}]*)\}}", re.IGNORECASE)
_OPTION = r"[\[［][^\[\]［］{}]{0,99}[\]］]"
_LOOSE = re.compile(rf"{_NAME}\s{{0,9}}(?:{_OPTION}\s{{0,9}}){{0,3}}[{{｛]([^{{}}｛｝]*)[}}｝]", re.IGNORECASE)
_PLAIN = re.compile(r"\\cite\{([^{}]*)\}")
_ANY = re.compile(r"\\[A-Za-z]{0,12}cite", re.IGNORECASE)
_SEPARATOR = re.compile(r"[,，;；、]")
_SILENT = ("nocite", "citestyle")
INVENTED = "invented:"  # before such a key; no book has a key like that


class Document(Protocol):
    """What the environment needs of a retrieved document (envs.retrieval.corpus.Document has it)."""

    @property
    def id(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def contents(self) -> str: ...
    @property
    def url(self) -> str: ...


def _keys(group: str) -> list[str]:
    return list(dict.fromkeys(key for part in group.split(",") if (key := part.strip()) and not key.startswith("#")))


def _keys_of(command: re.Match[str]) -> list[str]:
    return [] if command[1].lower() in _SILENT else _keys(command[2])


def cited_keys(text: str) -> list[str]:
    """Every cited key once, in order of first citation."""
    return list(dict.fromkeys(key for m in _COMMAND.finditer(text) for key in _keys_of(m)))


def count_citations(text: str) -> int:
    r"""The number of `\cite` commands."""
    return text.count("\\cite")


def is_malformed(text: str) -> bool:
    r"""True when a citation does not follow the plain grammar: no closing brace, no key, another command such as `\citep`."""
    return _ANY.search(_PLAIN.sub(lambda m: "" if _keys(m[1]) else m[0], text)) is not None


def normalise_citations(text: str) -> str:
    r"""The text with every form of citation in the plain one: `\citep[p. 3] ｛textid1；textid2｝` -> `\cite{textid1, textid2}`.
    Commands that cite nothing are removed; what is broken beyond that stays for `is_malformed` to find."""

    def plain(match: re.Match[str]) -> str:
        keys = [] if match[1].lower() in _SILENT else _keys(_SEPARATOR.sub(",", match[2]))
        return "\\cite{" + ", ".join(keys) + "}" if keys else ""

    return _LOOSE.sub(plain, text)


def map_citations(text: str, replace: Callable[[list[str]], str]) -> str:
    """The text with every command replaced by `replace(its keys)`. Spaces before a command go with it when nothing is left."""

    def one(match: re.Match[str]) -> str:
        new = replace(_keys_of(match))
        return match[0][: match[0].index("\\")] + new if new else ""

    return _COMMAND.sub(one, text)


def drop_citations(text: str) -> str:
    """The text without any citation."""
    return map_citations(text, lambda keys: "")


def invented_keys(text: str, allowed: Iterable[str]) -> list[str]:
    """Cited keys that are not allowed, in order of first citation."""
    allowed = set(allowed)
    return [key for key in cited_keys(text) if key not in allowed]


def keep_citations(text: str, allowed: Iterable[str]) -> str:
    """The text with every key that is not allowed removed; a command that loses all its keys goes as well."""
    allowed = set(allowed)

    def kept(keys: list[str]) -> str:
        left = [key for key in keys if key in allowed]
        return "\\cite{" + ", ".join(left) + "}" if left else ""

    return map_citations(text, kept)


def mark_invented(text: str, allowed: Iterable[str]) -> str:
    """The text with INVENTED before every key that is not allowed, in the plain form. A marked key resolves to nothing, so that
    rendering removes it; a reward can still tell a sentence under an invented source from one without any."""
    allowed = set(allowed)

    def marked(keys: list[str]) -> str:
        names = [key if key in allowed else INVENTED + key for key in keys]
        return "\\cite{" + ", ".join(names) + "}" if names else ""

    return map_citations(text, marked)


class PassageBook:
    """The passages of one report by key: "textid1", "textid2", ... in order of first sight, equal texts sharing a key."""

    def __init__(self) -> None:
        self._key_of_text: dict[str, str] = {}
        self._documents: dict[str, Document] = {}

    def add(self, document: Document) -> str:
        """The document's key: a new one unless its stripped text has been seen in this report."""
        text = document.contents.strip()
        if text not in self._key_of_text:
            key = f"textid{len(self._documents) + 1}"
            self._key_of_text[text], self._documents[key] = key, document
        return self._key_of_text[text]

    def __contains__(self, key: str) -> bool:
        return key in self._documents

    def __getitem__(self, key: str) -> Document:
        return self._documents[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._documents)

    def __len__(self) -> int:
        return len(self._documents)

    def to_json(self) -> dict[str, dict[str, Any]]:
        """{key: {"doc_id", "title", "url"}} in order of first sight."""
        return {key: {"doc_id": d.id, "title": d.title, "url": d.url} for key, d in self._documents.items()}
