"""Words and scripts: which language a text is in, and how it is counted and cut. Chinese and Japanese have no spaces, so each of
their characters counts as a word; everything else counts by whitespace.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from rlcore.errors import ConfigError

CountTokens = Callable[[str], int]

_IDEOGRAPHS = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f"
_CJK = f"\u3040-\u30ff{_IDEOGRAPHS}"  # with kana: scripts that are written without spaces
CJK = re.compile(f"[{_CJK}]")
CJK_LANGUAGES = ("zh", "ja")
_IDEOGRAPH = re.compile(f"[{_IDEOGRAPHS}]")
_WORD = re.compile(f"[{_CJK}]|[^\\s{_CJK}]+")


def count_words(text: str) -> int:
    """Whitespace-separated words, each Chinese or Japanese character counting as one. The default `CountTokens`."""
    return sum(1 for _ in _WORD.finditer(text))


@lru_cache(maxsize=4)
def token_counter(model: str) -> CountTokens:
    """A `CountTokens` that counts as the model's tokenizer does. `model` is a folder with its tokenizer.json.

    Raises ConfigError when there is none.
    """
    from tokenizers import Tokenizer

    path = Path(model) / "tokenizer.json"
    if not path.is_file():
        raise ConfigError(f"tokenizer={model!r} is not a folder with a tokenizer.json")
    tokenizer = Tokenizer.from_file(str(path))
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)


def detect_language(text: str) -> str:
    """ "zh" when the text has any Chinese character, else "en"."""
    return "zh" if _IDEOGRAPH.search(text) else "en"


def language_ok(text: str, language: str, *, min_cjk: float = 0.6, max_cjk: float = 0.05) -> bool:
    """True when the share of Chinese and Japanese characters among the text's letters suits the language.

    "zh" and "ja" need a share above `min_cjk`, any other language one below `max_cjk` (foreign names may be quoted). Digits,
    spaces and punctuation of either script are not letters, so "2020-2023" suits every language but those two, where a text must
    have something of theirs. Citations are letters: leave them out before.
    """
    letters = sum(map(str.isalpha, text))
    share = sum(map(str.isalpha, CJK.findall(text))) / letters if letters else 0.0
    return share > min_cjk if language in CJK_LANGUAGES else share < max_cjk


def shorten(text: str, over: int, head: int, tail: int, count_tokens: CountTokens = count_words) -> str:
    """A text of more than `over` tokens becomes its first `head` tokens, " ... " and its last `tail`; others are unchanged.

    Cuts fall between words (or Chinese characters), so a part may be a little shorter than asked when words have several tokens.
    """
    if count_tokens(text) <= over:
        return text
    words = list(_WORD.finditer(text))
    n_head = _largest(len(words), lambda n: count_tokens(text[: words[n - 1].end()]) <= head)
    n_tail = _largest(len(words) - n_head, lambda n: count_tokens(text[words[-n].start() :]) <= tail)
    start = text[: words[n_head - 1].end()] if n_head else ""
    end = text[words[-n_tail].start() :] if n_tail else ""
    return f"{start} ... {end}".strip()


def _largest(high: int, fits: Callable[[int], bool]) -> int:
    """The largest n in 0..high with fits(n), for a test that holds up to some n and fails after it. n = 0 always fits."""
    low = 0
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
