"""A user's own files as plain text: .txt, .md, .html and .pdf. Nothing here opens a connection.

pypdf reads PDF and Beautiful Soup reads HTML: both are pure Python and well kept, and neither throws away text as extractors
made for the web do (a note that looks like a menu to them is still the user's note).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path

# Elements that end a line of text; the words of others (such as <b>) belong to the line around them.
BLOCKS = [
    "address", "article", "aside", "blockquote", "br", "dd", "div", "dt", "figcaption", "footer", "h1", "h2", "h3", "h4", "h5",
    "h6", "header", "hr", "li", "main", "nav", "ol", "p", "pre", "section", "table", "td", "th", "tr", "ul",
]  # fmt: skip
NOT_TEXT = ["script", "style", "template", "noscript", "title"]


def read_file(path: Path) -> tuple[str, str]:
    """A file's title (its own, or its name) and its text, by the ending of its name.

    Raises ValueError, saying why, for a file that cannot be read or holds no text. PDF readers meet every kind of broken file
    and raise every kind of error; all of them mean this.
    """
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise ValueError(f"not one of {', '.join(READERS)}")
    try:
        title, text = reader(path)
    except Exception as error:
        raise ValueError(f"cannot be read: {type(error).__name__}: {error}") from error
    title, text = (re.sub("[\0\ud800-\udfff]", "", part) for part in (title, text))  # cannot be written as UTF-8, or are noise
    if not text.strip():
        raise ValueError("holds no text" + (" (scanned pages?)" if path.suffix.lower() == ".pdf" else ""))
    return " ".join(title.split()) or path.stem, text


def _plain(path: Path) -> tuple[str, str]:
    return "", path.read_text(encoding="utf-8-sig")


def _markdown(path: Path) -> tuple[str, str]:
    text = path.read_text(encoding="utf-8-sig")
    heading = re.search(r"^# +(.+?)[ #]*$", text, re.MULTILINE)
    return heading[1] if heading else "", re.sub(r"^#{1,6} +(.+?)[ #]*$", r"\n\1\n", text, flags=re.MULTILINE)


def _html(path: Path) -> tuple[str, str]:
    from bs4 import BeautifulSoup

    soup = BeautifulSoup(path.read_bytes(), "html.parser")
    title = soup.title.get_text() if soup.title else ""
    for element in soup(NOT_TEXT):
        element.decompose()
    for element in soup(BLOCKS):
        element.insert_before("\n\n")
        element.insert_after("\n\n")
    return title, soup.get_text()


def _pdf(path: Path) -> tuple[str, str]:
    from pypdf import PdfReader

    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # what it cannot mend is raised
    reader = PdfReader(path)
    text = "\n\n".join(page.extract_text() for page in reader.pages)
    title = str(reader.metadata.title or "") if reader.metadata else ""
    return title, re.sub(r"(?<=[a-z])-\n(?=[a-z])", "", text)  # words that were hyphenated at the end of a line


READERS: dict[str, Callable[[Path], tuple[str, str]]] = {
    ".txt": _plain,
    ".md": _markdown,
    ".html": _html,
    ".htm": _html,
    ".pdf": _pdf,
}
