r"""From outline to Markdown: numbered headings, `[n]` markers numbered by first appearance, and the list they refer to.

The list is filled from the passage book alone. Whatever looks like a source and is not in it is removed and counted: unknown
`\cite` keys, literal "[7]" markers, and web addresses of no retrieved passage.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from envs.warp.citations import PassageBook, drop_citations, map_citations
from envs.warp.outline import Outline, Section

REFERENCES = "## References"

_NUMBERING = re.compile(
    r"^(?:\s*(?:#+"
    r"|section[-\s]*\d+(?:\.\d+)*(?![\w-])[.:、)]?"
    r"|\d+(?:\.\d+)+[.:、)]?(?=\s)"
    r"|\d{1,2}[.:、)](?!\d)"
    r"|第[一二三四五六七八九十百\d]+[章节部篇]分?[、:：.]?"
    r"|[（(][一二三四五六七八九十\d]{1,3}[)）]"
    r"|[一二三四五六七八九十]{1,3}[、.]"
    r")\s*)+",
    re.IGNORECASE,
)
_MENTION = re.compile(r"[ \t]*\bsection-\d+(?:\.\d+)*\b", re.IGNORECASE)
_MARKER = re.compile(r"\[(\d+)\]")
_LITERAL_MARKER = re.compile(r"[ \t]*\[\d+(?:\s*[,–-]\s*\d+)*\]")
_OPEN, _CLOSE = "\ue000", "\ue001"  # around our own markers' numbers, until the model's are gone (private use characters)
_LINK = re.compile(r"!?\[([^\[\]]*)\]\(([^()\s]*)\)")
_URL = re.compile(r"[ \t]*<?(https?://[^\s<>)\]\ue000]*[^\s<>)\]\ue000.,;:!?])>?")


@dataclass(frozen=True, slots=True)
class Rendered:
    """A report's Markdown, the cited keys in the order of their numbers, and what was removed because no passage has it."""

    markdown: str
    references: list[str]
    removed: list[str]


class _Citations:
    """Numbers keys as they appear, over the whole report."""

    def __init__(self, book: PassageBook) -> None:
        self.book = book
        self.urls = {book[key].url for key in book} - {""}
        self.numbers: dict[str, int] = {}
        self.removed: list[str] = []

    def markers(self, keys: list[str]) -> str:
        known = [key for key in keys if key in self.book]
        self.removed += [key for key in keys if key not in self.book]
        numbers = [self.numbers.setdefault(key, len(self.numbers) + 1) for key in known]
        return "".join(f"{_OPEN}{n}{_CLOSE}" for n in sorted(numbers))

    def text(self, text: str) -> str:
        """The text with its markers, and without sources that the model made up or mentions of positions."""
        text = map_citations(text.replace(_OPEN, "").replace(_CLOSE, ""), self.markers)
        text = _LINK.sub(self._link, _MENTION.sub("", text))
        text = _URL.sub(lambda m: m[0] if m[1] in self.urls else self._drop(m[1]), text)
        while _LITERAL_MARKER.search(text):  # "[[3]7]" leaves another one behind
            text = _LITERAL_MARKER.sub(lambda m: self._drop(m[0].strip()), text)
        return text.replace(_OPEN, "[").replace(_CLOSE, "]")

    def _link(self, match: re.Match[str]) -> str:
        label = "" if match[1].strip().isdigit() else match[1]
        return f"{label} {match[2]}" if match[2] in self.urls else label + self._drop(match[2])

    def _drop(self, what: str) -> str:
        self.removed.append(what)
        return ""


def render(outline: Outline, book: PassageBook) -> Rendered:
    """The whole report. A section that was never written shows its plan in italics."""
    citations = _Citations(book)
    parts = [f"# {_title(outline.title, citations)}"]
    for path, section in outline.walk():
        number = ".".join(map(str, path))
        parts += [f"{'#' * (len(path) + 1)} {number} {_title(section.title, citations)}", _body(section, citations)]
    if citations.numbers:
        parts += [REFERENCES, "\n".join(_entry(book, key, n) for key, n in citations.numbers.items())]
    return Rendered(_normalise("\n\n".join(parts)), list(citations.numbers), citations.removed)


def _body(section: Section, citations: _Citations) -> str:
    if section.content is None:
        return f"*Not written. Plan: {_line(citations.text(drop_citations(section.plan)))}*"
    return citations.text(section.content)


def _title(title: str, citations: _Citations) -> str:
    return clean_title(citations.text(drop_citations(title))) or "Untitled"


def _entry(book: PassageBook, key: str, number: int) -> str:
    document = book[key]
    return f"- [{number}] " + ". ".join(filter(None, [_line(document.title), _line(document.url) or document.id]))


def clean_title(title: str) -> str:
    """The title on one line without a numbering of its own ("Section-1", "3.4.2", "（一）"), unless it is nothing else."""
    line = _line(title)
    return _NUMBERING.sub("", line) or line


def unresolved_markers(markdown: str) -> list[int]:
    """Numbers that the text of a rendered report cites but its reference list does not have. [] when every marker resolves."""
    body, _, references = markdown.rpartition(f"\n{REFERENCES}\n") if f"\n{REFERENCES}\n" in markdown else (markdown, "", "")
    listed = {int(n) for n in re.findall(r"^- \[(\d+)\] \S", references, re.MULTILINE)}
    return sorted({int(n) for n in _MARKER.findall(body)} - listed)


def _line(text: str) -> str:
    return " ".join(text.split())


def _normalise(text: str) -> str:
    """No trailing spaces, no more than one blank line in a row, one line break at the end."""
    text = "\n".join(line.rstrip() for line in text.splitlines())
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"
