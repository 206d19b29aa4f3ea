r"""From outline to Markdown: numbered headings, `[n]` markers numbered by first appearance, and the list they refer to.

The list is filled from the passage book alone. Whatever looks like a source and is not in it is removed and counted: unknown
`\cite` keys, literal "[7]" markers, and web addresses ("https://", "www.") of no retrieved passage. `lay_out` does that for every
output format; envs/warp/render_html.py writes the other one.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from envs.warp.citations import PassageBook, drop_citations, map_citations
from envs.warp.outline import Outline, Path, Section


class Source(Protocol):
    """What the reference list needs of a document."""

    @property
    def id(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def url(self) -> str: ...


Sources = PassageBook | Mapping[str, Source]


@dataclass(frozen=True, slots=True)
class Labels:
    """What a report says in its own words."""

    references: str
    untitled: str
    not_written: str


ENGLISH = Labels("References", "Untitled", "Not written. Plan: {}")
LABELS = {"en": ENGLISH, "zh": Labels("参考文献", "无标题", "尚未撰写。计划：{}")}

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
_GAP = r"(?<![ \t])[ \t]*"  # entered at its start only: trying every space of a long run takes quadratic time
_MENTION = re.compile(_GAP + r"\bsection-\d+(?:\.\d+)*\b", re.IGNORECASE)
_MARKER = re.compile(r"\[(\d+)\]")
# A list that starts with 0 or a year is an interval or a period, such as [0, 1] and [2019-2023].
_LITERAL_MARKER = re.compile(_GAP + r"\[(?!(?:0|\d{4,})\s*[,–-])\d+(?:\s*[,–-]\s*\d+)*\]")
_ESCAPED_MARKER = re.compile(r"\\\[(\d+(?:\s*[,–-]\s*\d+)*)\\?\]")
_ENTITY = re.compile(r"&#?\w{1,10};")
OPEN, CLOSE = "\ue000", "\ue001"  # around our own markers' numbers, until the model's are gone (private use characters)
_LINK = re.compile(r"!?\[([^\[\]]*)\]\(([^()\s]*)\)")
# Scripts without spaces, and their punctuation, go on right after an address.
_CJK = "\u2014\u2018-\u201d\u2026\u3000-\u9fff\uac00-\ud7af\uf900-\ufaff\ufe30-\ufe4f\uff00-\uffef\U00020000-\U0003134f"
_ENDS = f'\\s<>")\\]{OPEN}{_CJK}'
_URL = re.compile(rf"{_GAP}<?((?:https?://|(?<![a-z0-9_.@-])www\.)[^{_ENDS}]*[^{_ENDS}.,;:!?])>?", re.IGNORECASE)
_HOST = re.compile(r"^[^/?#]*(?://[^/?#]*)?")  # with the scheme, where there is one


@dataclass(frozen=True, slots=True)
class Rendered:
    """A report's Markdown, the cited keys in the order of their numbers, and what was removed because no passage has it."""

    markdown: str
    references: list[str]
    removed: list[str]


def _bracket(match: re.Match[str]) -> str:
    """An entity that stands for a bracket or for one of our own marks, as that; any other as it is."""
    character = html.unescape(match[0])
    return character if character in ("[", "]", OPEN, CLOSE) else match[0]


class _Citations:
    """Numbers keys as they appear, over the whole report."""

    def __init__(self, book: Sources) -> None:
        self.book = book
        urls = [_folded(book[key].url) for key in book]
        self.urls = {*urls, *(url.partition("://")[2] for url in urls)} - {""}  # "www." is also written without a scheme
        self.longest = max(map(len, self.urls), default=0)
        self.numbers: dict[str, int] = {}
        self.removed: list[str] = []

    def markers(self, keys: list[str]) -> str:
        known = [key for key in keys if key in self.book]
        self.removed += [key for key in keys if key not in self.book]
        numbers = [self.numbers.setdefault(key, len(self.numbers) + 1) for key in known]
        return "".join(f"{OPEN}{n}{CLOSE}" for n in sorted(numbers))

    def text(self, text: str) -> str:
        """The text, its markers' numbers between OPEN and CLOSE, without made-up sources and mentions of positions."""
        text = _ESCAPED_MARKER.sub(r"[\1]", _ENTITY.sub(_bracket, text))  # Markdown would show these as markers
        text = map_citations(text.replace(OPEN, "").replace(CLOSE, ""), self.markers)
        text = _LINK.sub(self._link, _MENTION.sub("", text))
        text = _URL.sub(self._address, text)
        for _ in range(9):  # "[[3]7]" leaves another one behind
            if not _LITERAL_MARKER.search(text):
                return text
            text = _LITERAL_MARKER.sub(lambda m: self._drop(m[0].strip()), text)
        return text.replace("[", "")  # nested without an end

    def _link(self, match: re.Match[str]) -> str:
        label = "" if match[1].strip().isdigit() else match[1]
        return f"{label} {match[2]}" if _folded(match[2]) in self.urls else label + self._drop(match[2])

    def _address(self, match: re.Match[str]) -> str:
        """An address stays when a passage has it, which may go on where this one seems to end: ".../Lima_(city)", ".../利马"."""
        text, least = _folded(match.string[match.start(1) : match.start(1) + self.longest]), len(match[1])
        known = any(len(url) >= least and text.startswith(url) for url in self.urls)
        return match[0] if known else self._drop(match[1])

    def _drop(self, what: str) -> str:
        self.removed.append(what)
        return ""


@dataclass(frozen=True, slots=True)
class Part:
    """One section: its path, its clean title, and its text with markers, or its plan when it is not written."""

    path: Path
    title: str
    text: str
    written: bool


@dataclass(frozen=True, slots=True)
class Layout:
    """A report before it has a format: `references` are the cited keys in the order of their numbers."""

    title: str
    parts: list[Part]
    references: list[str]
    removed: list[str]


def lay_out(outline: Outline, book: Sources, labels: Labels) -> Layout:
    """Number the citations and remove what has no source."""
    citations = _Citations(book)
    title = _title(outline.title, citations, labels)
    parts = [
        Part(path, _title(section.title, citations, labels), _text(section, citations), section.content is not None)
        for path, section in outline.walk()
    ]
    return Layout(title, parts, list(citations.numbers), citations.removed)


def render(outline: Outline, book: Sources, language: str = "en") -> Rendered:
    """The whole report. A section that was never written shows its plan in italics."""
    labels = LABELS.get(language, ENGLISH)
    layout = lay_out(outline, book, labels)
    lines = [f"# {layout.title}"]
    for part in layout.parts:
        number = ".".join(map(str, part.path))
        text = part.text if part.written else f"*{labels.not_written.format(part.text)}*"
        lines += [f"{'#' * (len(part.path) + 1)} {number} {part.title}", text.replace(OPEN, "[").replace(CLOSE, "]")]
    if layout.references:
        entries = (_entry(book[key], n) for n, key in enumerate(layout.references, 1))
        lines += [f"## {labels.references}", "\n".join(entries)]
    return Rendered(_normalise("\n\n".join(lines)), layout.references, layout.removed)


def _text(section: Section, citations: _Citations) -> str:
    return citations.text(section.content) if section.content is not None else _line(citations.text(drop_citations(section.plan)))


def _title(title: str, citations: _Citations, labels: Labels) -> str:
    return clean_title(citations.text(drop_citations(title))) or labels.untitled


def _folded(url: str) -> str:
    """The address with scheme and host in lower case, where case says nothing."""
    return _HOST.sub(lambda match: match[0].casefold(), url)


def _entry(document: Source, number: int) -> str:
    return f"- [{number}] " + ". ".join(filter(None, [_line(document.title), _line(document.url) or document.id]))


def clean_title(title: str) -> str:
    """The title on one line without a numbering of its own ("Section-1", "3.4.2", "（一）"), unless it is nothing else."""
    line = _line(title)
    return _NUMBERING.sub("", line) or line


def unresolved_markers(markdown: str) -> list[int]:
    """Numbers that the text of a rendered report cites but its reference list does not have. [] when every marker resolves."""
    headings = [f"\n## {labels.references}\n" for labels in LABELS.values()]
    heading = next((h for h in headings if h in markdown), None)
    body, _, references = markdown.rpartition(heading) if heading else (markdown, "", "")
    listed = {int(n) for n in re.findall(r"^- \[(\d+)\] \S", references, re.MULTILINE)}
    return sorted({int(n) for n in _MARKER.findall(body)} - listed)


def _line(text: str) -> str:
    return " ".join(text.split())


def _normalise(text: str) -> str:
    """No trailing spaces, no more than one blank line in a row, one line break at the end."""
    text = "\n".join(line.rstrip() for line in text.splitlines())
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"
