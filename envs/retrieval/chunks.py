"""Long texts cut into passages that overlap a little, at sentence ends where there are any."""

from __future__ import annotations

import re
from bisect import bisect_right

from rlcore.errors import ConfigError

SENTENCE_END = re.compile(
    r"""(?<=[.!?])[ ](?![a-z])        # a stop and a space, unless a small letter follows ("e.g. this")
      | (?<=[.!?]["')\]])[ ](?![a-z]) # the same with a closing quote
      | (?<=[。！？])(?![”’」』）])     # Chinese and Japanese stops need no space
      | (?<=[。！？][”’」』）])
      | \n                            # the end of a paragraph""",
    re.VERBOSE,
)


def chunk(text: str, size: int = 512, overlap: int = 50) -> list[str]:
    """Passages of at most `size` characters in the text's order; no text, no passages.

    A passage ends at the last sentence or paragraph end in its second half, else between two words, else at `size`. The next
    one repeats up to `overlap` characters, from the start of a word. White space becomes single spaces. Raises ConfigError
    unless `size` is at least 2 and `overlap` below half of it.
    """
    if size < 2 or not 0 <= overlap < size / 2:
        raise ConfigError(f"chunk size {size} must be at least 2, and overlap {overlap} from 0 to below half of it")
    text = re.sub(r"\s*\n\s*\n\s*|(\s+)", lambda space: " " if space[1] else "\n", text.strip())
    ends = [match.end() for match in SENTENCE_END.finditer(text)]
    chunks = []
    start = 0
    while start < len(text):
        end = _end(text, ends, start, size)
        chunks.append(text[start:end].strip().replace("\n", " "))
        if end == len(text):
            break
        start = _word_start(text, end - overlap, end)
    return chunks


def _end(text: str, ends: list[int], start: int, size: int) -> int:
    limit, half = start + size, start + (size + 1) // 2
    if limit >= len(text):
        return len(text)
    last = bisect_right(ends, limit) - 1
    if last >= 0 and ends[last] >= half:
        return ends[last]
    space = max(text.rfind(" ", half, limit + 1), text.rfind("\n", half, limit + 1))
    return space if space >= 0 else limit


def _word_start(text: str, earliest: int, end: int) -> int:
    """The first start of a word at or after `earliest`; `earliest` itself where there are no spaces; at most `end`."""
    if text[earliest - 1].isspace():
        return earliest
    space = re.search(r"\s", text[earliest:end])
    return earliest + space.end() if space else earliest
