from __future__ import annotations

import pytest

from envs.warp.language import count_words, detect_language, language_ok, shorten, token_counter
from envs.warp.report import Report
from rlcore.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "language", "ok"),
    [
        ("Oslo is the capital.", "en", True),
        ("2020-2023", "en", True),
        ("", "en", True),
        ("Oslo 是挪威的首都", "en", False),
        ("挪威的首都是奥斯陆。", "zh", True),
        ("the capital of Norway", "zh", False),
        ("", "zh", False),
        ("中文中文中文 abcd", "zh", False),  # 6 of 10 letters: 0.6 is not above 0.6
        ("中文中文中文中 abcd", "zh", True),  # 7 of 11
        ("abcdefghijklmnopqrs 中", "en", False),  # 1 of 20 letters: 0.05 is not below 0.05
        ("abcdefghijklmnopqrst 中", "en", True),  # 1 of 21
        ("利马 Lima 2024!", "zh", False),  # 2 of 6
        ("東京は日本の首都です", "ja", True),
        ("ラーメン", "ja", True),
        ("Größe und Fläche", "de", True),
    ],
)
def test_language_ok(text, language, ok):
    assert language_ok(text, language) is ok


def test_detect_language():
    assert detect_language("What is 北京?") == "zh"
    assert detect_language("What is Zürich?") == "en"


def test_a_chinese_character_is_a_word():
    assert count_words("one  two\nthree") == 3
    assert count_words("奥斯陆 is 首都") == 6
    assert count_words("東京タワー") == 5
    assert count_words("") == 0


def test_shorten_keeps_head_and_tail():
    text = " ".join(str(i) for i in range(151))
    short = shorten(text, 150, 100, 50)
    assert short == " ".join(map(str, range(100))) + " ... " + " ".join(map(str, range(101, 151)))
    assert shorten(text, 151, 100, 50) == text
    assert shorten("a b c d", 3, 2, 0) == "a b ..."
    assert shorten("a b c d", 0, 0, 0) == "..."
    assert shorten("挪威的首都是奥斯陆", 5, 2, 1) == "挪威 ... 陆"


def test_shorten_counts_with_the_given_function():
    # Tokens are characters here: 5 of head hold "aa bb" (5 characters), 2 of tail "ee".
    assert shorten("aa bb cc dd ee", 10, 5, 2, len) == "aa bb ... ee"
    # No word fits into one token of head.
    assert shorten("aa bb cc", 3, 1, 2, len) == "... cc"


def test_texts_are_cut_by_the_models_own_tokens(tmp_path, retriever):
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\S"), "isolated")  # a token for every sign, spaces between them too
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    count = Report(retriever, tokenizer=str(tmp_path)).count_tokens
    assert count("ab cd") == 5 and count is token_counter(str(tmp_path))
    assert shorten("aa bb cc dd ee", 10, 5, 2, count) == "aa bb ... ee"
    with pytest.raises(ConfigError, match="is not a folder with a tokenizer.json"):
        Report(retriever, tokenizer=str(tmp_path / "none"))
