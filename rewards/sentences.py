"""The sentences of a text, each with what it cites."""

from __future__ import annotations

import re
from dataclasses import dataclass

from envs.warp.citations import map_citations

_OPEN, _CLOSE = "\ue000", "\ue001"  # around a sentence's keys, while it is cut out of its text (private use characters)
_KEYS = re.compile(f"\\s*{_OPEN}([^{_CLOSE}]*){_CLOSE}")
# A stop that is not an initial's or a usual abbreviation's, or a line's end; citations right after it belong to its sentence.
_END = re.compile(
    rf"(?:(?<!\b[A-Z])(?<!\b(?:St|Mt|Dr|Mr|Ms|No|vs))[.!?]+(?=\s|{_OPEN}|$)|[。！？]|\n)(?:\s*{_OPEN}[^{_CLOSE}]*{_CLOSE})*"
)


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence of a written section without its citations, and the keys these name."""

    text: str
    keys: tuple[str, ...]


def sentences(text: str) -> list[Sentence]:
    """The sentences of a section's text. Citations before a sentence's stop or right after it are its own."""
    marked = map_citations(text.replace(_OPEN, "").replace(_CLOSE, ""), lambda keys: _OPEN + ",".join(keys) + _CLOSE)
    cuts = [0, *(match.end() for match in _END.finditer(marked)), len(marked)]
    found = []
    for start, end in zip(cuts, cuts[1:], strict=False):
        piece = marked[start:end]
        keys = dict.fromkeys(key for match in _KEYS.finditer(piece) for key in match[1].split(",") if key)
        words = " ".join(_KEYS.sub("", piece).split())
        if any(c.isalnum() for c in words):
            found.append(Sentence(words, tuple(keys)))
    return found
