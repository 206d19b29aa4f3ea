"""Rules that need no reference: format, language, counts and length. Every score lies in [0, 1]."""

from __future__ import annotations

import re
from collections.abc import Sequence

Range = tuple[int, int]  # both ends included

CJK = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]")  # kana and ideographs, written without spaces
CJK_LANGUAGES = ("zh", "ja")
_CITE = re.compile(r"\\cite\{[^}]*\}")
_NOT_LANGUAGE = re.compile(r"[\s\x21-\x40\x5b-\x60\x7b-\x7e]+")  # space, ASCII punctuation and digits


def format_score(valid: bool, has_thought: bool) -> float:
    """1.0 for a valid action with a thought before it, 0.5 for one without (it still acts), 0.0 for an invalid one."""
    return (1.0 if has_thought else 0.5) if valid else 0.0


def language_ok(text: str, language: str) -> bool:
    """Is the text in the query's language? Judged by its share of CJK characters, citations, ASCII digits and signs left out.

    Chinese and Japanese need a share above 0.6, every other language one below 0.05 (foreign names may be quoted).
    """
    letters = _NOT_LANGUAGE.sub("", _CITE.sub("", text))
    share = len(CJK.findall(letters)) / max(len(letters), 1)
    return share > 0.6 if language in CJK_LANGUAGES else share < 0.05


def length(text: str) -> int:
    """Length in words, a CJK character counting as one word; citations and free-standing signs count nothing."""
    text = _CITE.sub(" ", text)
    words = CJK.sub(" ", text).split()
    return len(CJK.findall(text)) + sum(any(c.isalnum() for c in word) for word in words)


def plan_basics(nodes: Sequence[dict[str, str]], language: str, count: Range) -> float:
    """The share that holds of two rules for planned sections {"title", "plan"}: their number, and their language."""
    text = " ".join(f"{node['title']} {node['plan']}" for node in nodes)
    return _share(_within(len(nodes), count), language_ok(text, language))


def write_basics(content: str, language: str, words: Range, citations: Range) -> float:
    r"""The share that holds of three rules for a written section: length in words, number of \cite commands, language."""
    return _share(
        _within(length(content), words), _within(len(_CITE.findall(content)), citations), language_ok(content, language)
    )


def _within(value: int, limits: Range) -> bool:
    return limits[0] <= value <= limits[1]


def _share(*rules: bool) -> float:
    return sum(rules) / len(rules)
