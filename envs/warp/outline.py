"""The report under construction: a tree of sections, each planned or written, at most three levels deep.

Positions are strings, "section-1", "section-1.2", "section-1.2.3", one-based, and are only ever compared as tuples of numbers.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field
from typing import Any

from envs.warp.citations import drop_citations

_POSITION = re.compile(r"section-([1-9][0-9]{0,3}(?:\.[1-9][0-9]{0,3})*)")

Path = tuple[int, ...]


def parse_position(position: str) -> Path | None:
    """ "section-1.2" -> (1, 2); None for anything that is not exactly a position."""
    match = _POSITION.fullmatch(position)
    return tuple(int(part) for part in match[1].split(".")) if match else None


def format_position(path: Path) -> str:
    """(1, 2) -> "section-1.2"."""
    return "section-" + ".".join(map(str, path))


@dataclass(slots=True)
class Section:
    """One node: planned while `content` is None, written afterwards. Its children are written after it. In `content` a key that
    its prompt did not show is marked (envs.warp.citations.mark_invented)."""

    title: str
    plan: str
    content: str | None = None
    children: list[Section] = field(default_factory=list)
    _line: tuple[str, str] = field(default=("", ""), init=False, repr=False, compare=False)  # a text and what `line` made of it

    def line(self, text: str) -> str:
        """Its plan or content on one line, without citations. Kept, because every prompt of a report asks for every section."""
        if self._line[0] != text:
            self._line = text, " ".join(drop_citations(text).split())
        return self._line[1]

    @classmethod
    def plan_of(cls, item: dict[str, Any]) -> Section:
        return cls(item["title"], item["plan"], None, [cls.plan_of(i) for i in item.get("subsections", [])])

    def to_json(self) -> dict[str, Any]:
        subsections = [child.to_json() for child in self.children]
        return {"title": self.title, "plan": self.plan, "content": self.content, "subsections": subsections}

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> Section:
        return cls(row["title"], row["plan"], row["content"], [cls.from_json(c) for c in row["subsections"]])


@dataclass(slots=True)
class Outline:
    """The report's title and its sections."""

    title: str
    sections: list[Section]

    @classmethod
    def plan(cls, title: str, sections: list[dict[str, Any]]) -> Outline:
        """A fresh outline from an init-plan's {"title", "plan"} items, which may hold "subsections" of the same kind."""
        return cls(title, [Section.plan_of(s) for s in sections])

    def walk(self) -> Iterator[tuple[Path, Section]]:
        """Every section with its path, parents first, left to right."""
        stack: list[tuple[tuple[int, ...], Section]] = [((i,), s) for i, s in reversed(list(enumerate(self.sections, 1)))]
        while stack:
            path, section = stack.pop()
            yield path, section
            stack += [((*path, i), s) for i, s in reversed(list(enumerate(section.children, 1)))]

    def find(self, position: str) -> Section | None:
        """The section at a position, None where there is none."""
        path = parse_position(position)
        return next((section for p, section in self.walk() if p == path), None)

    def cursor(self, given_up: Container[str] = ()) -> str | None:
        """The position of the first section that is neither written nor given up, None when there is none."""
        due = (format_position(path) for path, section in self.walk() if section.content is None)
        return next((position for position in due if position not in given_up), None)

    def expandable(self, max_levels: int) -> list[str]:
        """Positions that may get subsections: written, above the last level and without any yet."""
        rows = self.walk()
        return [format_position(path) for path, s in rows if s.content is not None and len(path) < max_levels and not s.children]

    def write(self, position: str, content: str) -> None:
        """Fill the section at a position that exists and is not written."""
        section = self.find(position)
        assert section is not None and section.content is None, position
        section.content = content

    def expand(self, position: str, subsections: list[dict[str, str]]) -> None:
        """Give the section at an expandable position its subsections. Its own text stays, as their lead text."""
        section = self.find(position)
        assert section is not None and not section.children, position
        section.children = [Section.plan_of(s) for s in subsections]

    def to_json(self) -> dict[str, Any]:
        """{"title", "sections": [{"title", "plan", "content", "subsections": [...]}, ...]}; `from_json` is the inverse."""
        return {"title": self.title, "sections": [s.to_json() for s in self.sections]}

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> Outline:
        return cls(row["title"], [Section.from_json(s) for s in row["sections"]])

    def view(
        self,
        shorten: Callable[[str], str],
        full: Callable[[Path], bool] = lambda path: False,
        title: str = "Title: {}",
        draft: bool = True,
    ) -> str:
        """What a prompt shows: one line per section, "section-1.2 Title [PLAN] plan" or "... [OK] text".

        Texts lose their citations, whose passages the prompt does not show, and go through `shorten` unless `full(path)`.
        With `draft` false a written section shows its plan instead of its text.
        """
        lines = [title.format(self.title)]
        for path, section in self.walk():
            written = section.content if draft else None
            text = section.line(section.plan if written is None else written)
            if written is not None and not full(path):
                text = shorten(text)
            status = "PLAN" if section.content is None else "OK"
            lines.append(f"{'  ' * (len(path) - 1)}{format_position(path)} {section.title} [{status}] {text}")
        return "\n".join(lines)


def state_hash(*parts: Any) -> str:
    """16 hexadecimal digits that name JSON data: equal data has equal hashes."""
    text = json.dumps(parts, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
