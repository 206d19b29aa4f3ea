from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from envs.warp.citations import PassageBook
from envs.warp.outline import Outline, Section
from envs.warp.render_html import render_html, report_html


class Page(HTMLParser):
    """Every tag with its attributes, and the text outside the style sheet."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.text = [], ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data

    def all(self, tag):
        return [attrs for name, attrs in self.tags if name == tag]


@pytest.fixture
def book(doc):
    book = PassageBook()
    book.add(doc("doc-a", "Title <A> & co", "one", "https://example.org/a?x=1&y=2"))
    book.add(doc("doc-b", "", "two"))
    book.add(doc("doc-c", "Bad", "three", "javascript:alert(1)"))
    return book


def _page(book, *contents):
    return render_html(Outline("Report", [Section(f"S{i}", "a plan", text) for i, text in enumerate(contents, 1)]), book)


def test_headings_markers_and_references(book):
    below = Section("2.1 Below", "p", "Both \\cite{textid2, textid1}.")
    outline = Outline(
        "R <1> & 2",
        [Section("Start", "p", "First \\cite{textid1}.\n\nSecond *one*."), Section("End", "<b>left</b>", None, [below])],
    )
    page = Page(render_html(outline, book))
    headings = [(tag, attrs.get("id")) for tag, attrs in page.tags if tag in ("h1", "h2", "h3")]
    assert headings == [("h1", None), ("h2", "section-1"), ("h2", "section-2"), ("h3", "section-2.1"), ("h2", None)]
    assert "R <1> & 2" in page.text and "1 Start" in page.text and "2.1 Below" in page.text
    assert [a["href"] for a in page.all("a")] == ["#ref-1", "#ref-1", "#ref-2", "https://example.org/a?x=1&y=2"]
    assert [li["id"] for li in page.all("li")] == ["ref-1", "ref-2"]
    assert "Title <A> & co. https://example.org/a?x=1&y=2" in page.text and "doc-b" in page.text
    assert page.all("p")[-2] == {"class": "unwritten"} and "Not written. Plan: <b>left</b>" in page.text
    assert len(page.all("em")) == 1 and len(page.all("b")) == 0


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        "![x](https://fake.example/x.png)",
        "![x][r]\n\n[r]: https://fake.example/x.png",
        "[x](javascript:alert(1))",
        "<javascript:alert(1)>",
        '[x](<a b> "t")',
        "<style>@import url(https://fake.example)</style>",
        "&lt;script&gt; `<script>`",
        "# Heading\n\nText\n===\n\nMore\n---",
        "\ue0009\ue001",
    ],
)
def test_nothing_of_the_texts_becomes_more_than_text(book, text):
    page = Page(_page(book, f"{text}\n\nEnd \\cite{{textid1}}."))
    allowed = {"html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "a", "ol", "li", "code", "hr", "pre"}
    assert {tag for tag, _ in page.tags} <= allowed
    assert [a["href"] for a in page.all("a")] == ["#ref-1", "https://example.org/a?x=1&y=2"]
    assert len(page.all("style")) == 1 and [len(page.all(h)) for h in ("h1", "h2")] == [1, 2]
    assert not any(name in ("src", "style") or name.startswith("on") for _, attrs in page.tags for name in attrs)


def test_only_web_addresses_become_links(book):
    page = Page(_page(book, "Bad \\cite{textid3}."))
    assert [a["href"] for a in page.all("a")] == ["#ref-1"] and "Bad. javascript:alert(1)" in page.text


def test_every_marker_resolves_and_invented_ones_are_gone(book):
    page = _page(book, "A \\cite{textid9} [7] \\cite{textid2}.", "B \\citep{textid1} https://fake.example.")
    targets, ids = set(re.findall(r'href="#(ref-\d+)"', page)), set(re.findall(r'id="(ref-\d+)"', page))
    assert targets == ids == {"ref-1", "ref-2"} and "fake" not in page and "[7]" not in page and "textid" not in page


def test_tables_and_fences_are_rendered(book):
    page = Page(_page(book, "| a | b |\n|---|---|\n| 1 | \\cite{textid1} |\n\n```\nx < y\n```"))
    assert len(page.all("td")) == 2 and "x < y" in page.text and page.all("a")[0]["href"] == "#ref-1"


def test_a_report_that_was_never_planned_has_no_page():
    assert report_html({"outline": None, "passages": {}, "language": "en"}) == ""
