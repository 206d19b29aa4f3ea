from __future__ import annotations

import time

import pytest

from envs.warp.citations import PassageBook
from envs.warp.outline import Outline, Section
from envs.warp.render import clean_title, render, unresolved_markers


@pytest.fixture
def book(doc):
    book = PassageBook()
    book.add(doc("doc-a", "Title A", "one", "https://example.org/a"))
    book.add(doc("doc-b", "Title\nB", "two"))
    book.add(doc("doc-c", "", "three"))
    for i, url in enumerate(["https://www.Example.net/b", "https://example.org/Lima_(city)", "https://example.org/利马"]):
        book.add(doc(f"doc-{i}", "", f"more {i}", url))
    return book


def _report(*contents):
    return Outline("Report", [Section(f"S{i}", f"plan {i}", content) for i, content in enumerate(contents, 1)])


def test_a_whole_report(book):
    deep = Section("2.1.1 Deepest", "p", "Third \\cite{textid1}.")
    below = Section("Section-2.1 Below", "p", "Second \\cite{textid1}.  \n\n\n\nNew paragraph.", [deep])
    start = Section("Start", "p", "First \\cite{textid3, textid2}.")
    outline = Outline("1. My report", [start, Section("二、Middle", "p", "Lead.", [below]), Section("End", "What\nis left.")])
    rendered = render(outline, book)
    assert rendered.markdown == (
        "# My report\n\n## 1 Start\n\nFirst [1][2].\n\n## 2 Middle\n\nLead.\n\n### 2.1 Below\n\nSecond [3].\n\nNew paragraph.\n\n"
        "#### 2.1.1 Deepest\n\nThird [3].\n\n## 3 End\n\n*Not written. Plan: What is left.*\n\n"
        "## References\n\n- [1] doc-c\n- [2] Title B. doc-b\n- [3] Title A. https://example.org/a\n"
    )
    assert rendered.references == ["textid3", "textid2", "textid1"] and rendered.removed == []
    assert unresolved_markers(rendered.markdown) == []


def test_markers_are_sorted_and_unique_within_a_command(book):
    rendered = render(_report("A \\cite{textid2}. B \\cite{textid1, textid2,textid1}."), book)
    assert "A [1]. B [1][2]." in rendered.markdown


def test_unknown_keys_are_removed_and_counted(book):
    rendered = render(_report("A \\cite{textid9}. B \\cite{textid1, nonsense}."), book)
    assert "A. B [1].\n" in rendered.markdown and rendered.removed == ["textid9", "nonsense"]


def test_other_cite_commands_are_markers_too(book):
    rendered = render(_report("A \\citep[p. 3]{textid2}, \\nocite{textid1}B \\parencite{x}."), book)
    assert "A [1],B." in rendered.markdown and rendered.removed == ["x"]


def test_a_chinese_report_says_its_own_words_in_chinese(book):
    outline = Outline("第一章", [Section("一、甲", "p", "内容 \\cite{textid1}。"), Section("[3]", "写乙。")])
    markdown = render(outline, book, "zh").markdown
    assert markdown == (
        "# 第一章\n\n## 1 甲\n\n内容 [1]。\n\n## 2 无标题\n\n*尚未撰写。计划：写乙。*\n\n"
        "## 参考文献\n\n- [1] Title A. https://example.org/a\n"
    )
    assert unresolved_markers(markdown) == []
    assert unresolved_markers(markdown.replace("内容 [1]", "内容 [2]")) == [2]


def test_no_citation_no_list(book):
    assert render(_report("Nothing."), book).markdown == "# Report\n\n## 1 S1\n\nNothing.\n"


@pytest.mark.parametrize(
    ("text", "shown", "removed"),
    [
        ("Known [1] fact \\cite{textid1}.", "Known fact [1].", ["[1]"]),
        ("Known [2, 3] fact.", "Known fact.", ["[2, 3]"]),
        ("Nested [[3]7] and [\\cite{x}8] fact.", "Nested and fact.", ["x", "[3]", "[8]", "[7]"]),
        ("Odd [7\\cite{textid1}] fact \\cite{https://fake.example}.", "Odd [7[1]] fact.", ["https://fake.example"]),
        ("See [this page](https://fake.example/x).", "See this page.", ["https://fake.example/x"]),
        ("See [this page](https://example.org/a).", "See this page https://example.org/a.", []),
        ("See [1](https://fake.example/x) here.", "See  here.", ["https://fake.example/x"]),
        ("See https://fake.example/x, or https://example.org/a.", "See, or https://example.org/a.", ["https://fake.example/x"]),
        ("A list [of things] and x[i].", "A list [of things] and x[i].", []),
        ("Shares in [0, 1] over [2019–2023].", "Shares in [0, 1] over [2019–2023].", []),
        ("See https://example.org/a\\cite{textid1}.", "See https://example.org/a[1].", []),
        ("<https://example.org/a>", "<https://example.org/a>", []),
        ("See <https://fake.example/x>.", "See.", ["https://fake.example/x"]),
        ("As section-1.2 says, and intersection-1.", "As says, and intersection-1.", []),
        ("It's <b>5 & 6</b>", "It's <b>5 & 6</b>", []),
        ("See HTTPS://fake.example/x.", "See.", ["HTTPS://fake.example/x"]),
        ("See HTTPS://Example.ORG/a.", "See HTTPS://Example.ORG/a.", []),
        ("See https://example.org/A.", "See.", ["https://example.org/A"]),  # a path is case-sensitive
        ("See [it](HTTPS://example.org/a).", "See it HTTPS://example.org/a.", []),
        ("See www.fake.org/y, or (Www.fake.org).", "See, or ().", ["www.fake.org/y", "Www.fake.org"]),
        ("See www.example.net/b.", "See www.example.net/b.", []),
        ("See www.example.net/c.", "See.", ["www.example.net/c"]),
        ('It says "https://example.org/a".', 'It says "https://example.org/a".', []),
        ("The awww.x of the www. age.", "The awww.x of the www. age.", []),
        ("See https://example.org/Lima_(city).", "See https://example.org/Lima_(city).", []),
        ("See https://example.org/Lima_(town).", "See).", ["https://example.org/Lima_(town"]),
    ],
)
def test_sources_of_the_models_own_are_removed(book, text, shown, removed):
    rendered = render(_report(text), book)
    assert f"\n{shown}\n" in rendered.markdown and rendered.removed == removed
    assert unresolved_markers(rendered.markdown) == []


@pytest.mark.parametrize(
    ("text", "shown", "removed"),
    [
        (
            "见https://fake.org/page，其中指出北京是首都。面积很大。",
            "见，其中指出北京是首都。面积很大。",
            ["https://fake.org/page"],
        ),
        ("见https://example.org/a，其中指出北京是首都。", "见https://example.org/a，其中指出北京是首都。", []),
        ("见（https://fake.org/page）和《年鉴》。", "见（）和《年鉴》。", ["https://fake.org/page"]),
        ("据https://fake.org/page报道，北京是首都。", "据报道，北京是首都。", ["https://fake.org/page"]),
        ("据“https://fake.org/page”报道。", "据“”报道。", ["https://fake.org/page"]),
        ("据www.fake.org/y、HTTP://fake.org/z。", "据、。", ["www.fake.org/y", "HTTP://fake.org/z"]),
        ("https://fake.orgというページ、https://fake.org에서", "というページ、에서", ["https://fake.org", "https://fake.org"]),
        ("见https://example.org/利马，以及正文。", "见https://example.org/利马，以及正文。", []),
        ("见https://example.org/北京，以及正文。", "见北京，以及正文。", ["https://example.org/"]),
    ],
)
def test_an_address_ends_where_chinese_goes_on(book, text, shown, removed):
    rendered = render(_report(text), book, "zh")
    assert f"\n{shown}\n" in rendered.markdown and rendered.removed == removed


def test_markers_nested_without_end_are_gone_in_no_time(book):
    began = time.process_time()
    rendered = render(
        _report("[" * 8000 + "1]" * 8000, " " * 40_000 + "x", "[1" * 9000, "https://" * 4000, "www." * 8000, " www.x" * 6000),
        book,
    )
    assert unresolved_markers(rendered.markdown) == [] and time.process_time() - began < 2


def test_titles_and_plans_cannot_carry_markers(book):
    outline = Outline("On [4]", [Section("A \\cite{textid1} [2]", "plan [3] \\cite{textid1}"), Section("[7]", "p", "Text.")])
    markdown = render(outline, book).markdown
    assert markdown == "# On\n\n## 1 A\n\n*Not written. Plan: plan*\n\n## 2 Untitled\n\nText.\n"


@pytest.mark.parametrize(
    ("title", "clean"),
    [
        ("Section-1 Peru", "Peru"),
        ("section 2.1: Peru", "Peru"),
        ("1. Peru", "Peru"),
        ("2) Peru", "Peru"),
        ("3.4.2 Peru", "Peru"),
        ("1. 2.3 Peru", "Peru"),
        ("## 4. Peru", "Peru"),
        ("第一章 秘鲁", "秘鲁"),
        ("（一）秘鲁", "秘鲁"),
        ("(2) 秘鲁", "秘鲁"),
        ("一、秘鲁", "秘鲁"),
        ("第一次世界大战", "第一次世界大战"),
        ("2020 census", "2020 census"),
        ("3D printing", "3D printing"),
        ("5G networks", "5G networks"),
        ("Sections of society", "Sections of society"),
        ("1.", "1."),
        ("  Peru \n and Chad ", "Peru and Chad"),
    ],
)
def test_titles_lose_their_own_numbering(title, clean):
    assert clean_title(title) == clean


@pytest.mark.parametrize(
    ("markdown", "missing"),
    [
        ("# R\n\nA [1].\n\n## References\n\n- [1] A\n", []),
        ("# R\n\nA [1][3].\n\n## References\n\n- [1] A\n", [3]),
        ("# R\n\nA [1].\n", [1]),
        ("# R\n\nA [1].\n\n## References\n\n- [1] \n", [1]),
        ("# R\n\nA.\n", []),
    ],
)
def test_the_check_finds_markers_that_do_not_resolve(markdown, missing):
    assert unresolved_markers(markdown) == missing


@pytest.mark.parametrize(
    "text", ["Made up \\[7\\].", "Made up &#91;7&#93;.", "Made up &#xE000;7&#xE001;.", "Made up \\[7, 8\\]."]
)
def test_markers_in_disguise_are_removed(book, text):
    rendered = render(_report(f"True \\cite{{textid1}}. {text}"), book)
    assert "[7" not in rendered.markdown and unresolved_markers(rendered.markdown) == []


def test_mathematics_and_other_entities_stay(book):
    text = "Energy \\[E = mc^2\\] and &lt;b&gt; \\cite{textid1}."
    assert "Energy \\[E = mc^2\\] and &lt;b&gt; [1]." in render(_report(text), book).markdown
