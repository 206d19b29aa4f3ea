"""From outline to one HTML page that needs nothing else: no script, font, image or style from elsewhere, and everything escaped.

Texts are Markdown without raw HTML, links, images and headings of their own: the only links are from a marker to its entry in
the reference list, and from there to the document's address.
"""

from __future__ import annotations

import html
import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from envs.warp.outline import Outline
from envs.warp.render import CLOSE, ENGLISH, LABELS, OPEN, Source, Sources, lay_out

_MARKER = re.compile(f"{OPEN}(\\d+){CLOSE}")
_OFF = ["image", "link", "autolink", "reference", "heading", "lheading"]
_PAGE = """<!DOCTYPE html>
<html lang="{language}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
body {{ max-width: 46rem; margin: 2rem auto; padding: 0 1rem; font: 1rem/1.6 serif; color: #222; }}
h1, h2, h3, h4 {{ line-height: 1.25; }}
a {{ color: #15569b; text-decoration: none; }}
table {{ border-collapse: collapse; }}
th, td {{ border: 1px solid #bbb; padding: .2rem .6rem; }}
.unwritten {{ color: #a33; font-style: italic; border-left: 3px solid #a33; padding-left: .6rem; }}
</style>
</head>
<body>
{body}
</body>
</html>
"""


@dataclass(frozen=True, slots=True)
class _Stored:
    id: str
    title: str
    url: str


def report_html(data: dict[str, Any]) -> str:
    """The page of a finished report: `data` is the report environment's `Outcome.data`. "" when nothing was ever planned."""
    if data["outline"] is None:
        return ""
    sources = {key: _Stored(row["doc_id"], row["title"], row["url"]) for key, row in data["passages"].items()}
    return render_html(Outline.from_json(data["outline"]), sources, data["language"])


def render_html(outline: Outline, book: Sources, language: str = "en") -> str:
    """The page: numbered headings, `[n]` linked to the reference list, unwritten sections marked."""
    from markdown_it import MarkdownIt

    markdown = MarkdownIt("commonmark", {"html": False}).enable("table").disable(_OFF)
    labels = LABELS.get(language, ENGLISH)
    layout = lay_out(outline, book, labels)
    lines = [f"<h1>{html.escape(layout.title)}</h1>"]
    for part in layout.parts:
        number, level = ".".join(map(str, part.path)), len(part.path) + 1
        lines.append(f'<h{level} id="section-{number}">{number} {html.escape(part.title)}</h{level}>')
        if part.written:
            lines.append(_MARKER.sub(r'<a href="#ref-\1">[\1]</a>', markdown.render(part.text)).strip())
        else:
            lines.append(f'<p class="unwritten">{html.escape(labels.not_written.format(part.text))}</p>')
    if layout.references:
        lines += [f"<h2>{labels.references}</h2>", "<ol>"]
        lines += [_entry(book[key], n) for n, key in enumerate(layout.references, 1)]
        lines.append("</ol>")
    return _PAGE.format(language=html.escape(language), title=html.escape(layout.title), body="\n".join(lines))


def _entry(document: Source, number: int) -> str:
    url = document.url.strip()
    where = html.escape(url or document.id)
    if _is_web(url):
        where = f'<a href="{where}" rel="noopener noreferrer">{where}</a>'
    title = html.escape(" ".join(document.title.split()))
    return f'<li id="ref-{number}">{title}{". " if title else ""}{where}</li>'


def _is_web(url: str) -> bool:
    try:
        return urlsplit(url).scheme in ("http", "https")
    except ValueError:
        return False
