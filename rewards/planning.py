"""Rule-based reward of an outline: do its section titles cover the topics that were asked for?"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from envs.warp.language import CJK


def coverage(titles: Sequence[str], required: Sequence[str]) -> float:
    """The share of `required` names that can be given a title of their own in which they appear as whole words, without regard to
    case, width or spacing.

    A title is worth one name at most, and the same title once: one that lists them all plans nothing. The share is that of the
    largest matching of names and titles. Not caught: as many different lists as there are names. Chinese and Japanese are written
    without spaces, so a name in them only has to be contained. "Niger" is not in "Nigeria", but "Guinea" is in "Guinea-Bissau":
    a hyphen ends a word. Raises ValueError when nothing is required.
    """
    if not required:
        raise ValueError("required must name at least one topic")
    normal = dict.fromkeys(map(_normal, titles))
    fitting = [[i for i, title in enumerate(normal) if _pattern(name).search(title)] for name in required]
    return _largest_matching(fitting) / len(required)


def _largest_matching(fitting: Sequence[Sequence[int]]) -> int:
    """How many names can have a title of their own, when `fitting` holds the titles of each: augmenting paths (Kuhn, 1955)."""
    owner: dict[int, int] = {}

    def place(name: int, tried: set[int]) -> bool:
        for title in fitting[name]:
            if title not in tried:
                tried.add(title)
                if title not in owner or place(owner[title], tried):
                    owner[title] = name
                    return True
        return False

    return sum(place(name, set()) for name in range(len(fitting)))


def _normal(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def _pattern(name: str) -> re.Pattern[str]:
    name = _normal(name)
    if not name:
        raise ValueError("required names must not be empty")
    before = "" if CJK.match(name[0]) else r"(?<!\w)"
    after = "" if CJK.match(name[-1]) else r"(?!\w)"
    return re.compile(before + re.escape(name) + after)
