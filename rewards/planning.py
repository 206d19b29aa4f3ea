"""Rule-based reward of an outline: do its section titles cover the topics that were asked for?"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from envs.warp.language import CJK


def coverage(titles: Sequence[str], required: Sequence[str]) -> float:
    """The share of `required` names that appear as whole words in some title, without regard to case, width or spacing.

    Chinese and Japanese are written without spaces, so a name in them only has to be contained. "Niger" is not in "Nigeria",
    but "Guinea" is in "Guinea-Bissau": a hyphen ends a word. Raises ValueError when nothing is required.
    """
    if not required:
        raise ValueError("required must name at least one topic")
    normal = [_normal(title) for title in titles]
    return sum(any(_pattern(name).search(title) for title in normal) for name in required) / len(required)


def _normal(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def _pattern(name: str) -> re.Pattern[str]:
    name = _normal(name)
    if not name:
        raise ValueError("required names must not be empty")
    before = "" if CJK.match(name[0]) else r"(?<!\w)"
    after = "" if CJK.match(name[-1]) else r"(?!\w)"
    return re.compile(before + re.escape(name) + after)
