"""The sentences of a text, each with what it cites."""

from __future__ import annotations

import re
from dataclasses import dataclass

from envs.warp.citations import map_citations

_OPEN, _CLOSE = "\ue000", "\ue001"  # around a citation's number, while sentences are cut out of a text (private use characters)
_CITATION = re.compile(f"\\s*{_OPEN}([0-9]+){_CLOSE}")
# A stop that is not an initial's or a usual abbreviation's, or a line's end; citations right after it belong to its sentence.
_END = re.compile(
    rf"(?:(?<!\b[A-Z])(?<!\b(?:St|Mt|Dr|Mr|Ms|No|vs))[.!?]+(?=\s|{_OPEN}|$)|[。！？]|\n)(?:\s*{_OPEN}[0-9]+{_CLOSE})*"
)


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence of a written section without its citations, and the keys these name."""

    text: str
    keys: tuple[str, ...]


def sentences(text: str) -> list[Sentence]:
    """The sentences of a section's text. Citations before a sentence's stop or right after it are its own, and so are those that
    nothing but punctuation parts from it."""
    cited: list[list[str]] = []

    def mark(keys: list[str]) -> str:  # by number: whatever an invented key is made of, it ends no sentence
        cited.append(keys)
        return f"{_OPEN}{len(cited) - 1}{_CLOSE}"

    marked = map_citations(text.replace(_OPEN, "").replace(_CLOSE, ""), mark)
    cuts = [0, *(match.end() for match in _END.finditer(marked)), len(marked)]
    found: list[Sentence] = []
    for start, end in zip(cuts, cuts[1:], strict=False):
        piece = marked[start:end]
        keys = [key for match in _CITATION.finditer(piece) for key in cited[int(match[1])]]
        words = " ".join(_CITATION.sub("", piece).split())
        if not any(c.isalnum() for c in words):
            if not found:
                continue
            last = found.pop()
            words, keys = last.text, [*last.keys, *keys]
        found.append(Sentence(words, tuple(dict.fromkeys(keys))))
    return found
