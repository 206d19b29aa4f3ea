"""Rules that need no reference: format, language, counts and length. Every score lies in [0, 1].

What a rule counts is what is left of a text after rewards/screen.py, so that repeating, padding or pasting cannot lift a short
text into a range; what it limits is the whole text.
"""

from __future__ import annotations

from collections.abc import Sequence

from envs.warp.citations import count_citations, drop_citations
from envs.warp.language import CJK, language_ok

Range = tuple[int, int]  # both ends included


def format_score(valid: bool, has_thought: bool) -> float:
    """1.0 for a valid action with a thought before it, 0.5 for one without (it still acts), 0.0 for an invalid one."""
    return (1.0 if has_thought else 0.5) if valid else 0.0


def length(text: str) -> int:
    """Length in words, a Chinese or Japanese character counting as one word; citations and free-standing signs count nothing."""
    text = drop_citations(text)
    words = CJK.sub(" ", text).split()
    return len(CJK.findall(text)) + sum(any(c.isalnum() for c in word) for word in words)


def plan_basics(nodes: Sequence[dict[str, str]], language: str, count: Range) -> float:
    """The share that holds of two rules for planned sections {"title", "plan"}: their number (sections of the same title are one
    for the least, and many for the most), and their language."""
    text = " ".join(f"{node['title']} {node['plan']}" for node in nodes)
    distinct = len({" ".join(node["title"].casefold().split()) for node in nodes})
    return _share(count[0] <= distinct and len(nodes) <= count[1], language_ok(text, language))


def write_basics(content: str, kept: str, language: str, words: Range, citations: Range) -> float:
    r"""The share that holds of three rules for a written section: length in words, number of \cite commands, language.

    `kept` is what is left of the content after screening: the least length and the language are asked of it.
    """
    return _share(
        words[0] <= length(kept) and length(content) <= words[1],
        citations[0] <= count_citations(content) <= citations[1],
        language_ok(drop_citations(kept), language),
    )


def _share(*rules: bool) -> float:
    return sum(rules) / len(rules)
