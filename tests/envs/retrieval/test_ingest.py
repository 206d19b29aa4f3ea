from __future__ import annotations

import json
import os

import pytest

from envs.retrieval.ingest import ingest
from rlcore.errors import ConfigError
from tests.fakes_retrieval import pdf_bytes


@pytest.fixture
def folder(tmp_path):
    """One file of each type, one corrupt PDF, one empty file, a copy, and what is not for reading."""
    files = {
        "apples.txt": "Apples grow on trees.".encode("utf-8-sig"),
        "sub/pears notes.md": b"Some words first.\n# All about pears #\nPears are *green*.",
        "plums.html": b"<html><head><title>Plum\n page</title><style>p {}</style></head><body><nav>Home</nav><h1>Plums</h1>"
        b"<p>Plums are <b>bl</b>ue.</p><p>They fall.</p><script>evil()</script></body></html>",
        "cherry.pdf": pdf_bytes(["Cherries are red and hand-", "picked."], title="On cherries"),
        "broken.pdf": b"%PDF-1.4 nothing of a document",
        "scan.pdf": pdf_bytes([]),
        "empty.txt": b" \n",
        "latin.txt": "Bl\u00fcte".encode("latin-1"),
        "copy of apples.txt": b"Apples grow on trees.",
        "picture.png": b"\x89PNG",
        ".hidden/secret.txt": b"Not to be read.",
    }
    for name, content in files.items():
        path = tmp_path / "mine" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return tmp_path / "mine"


def test_a_folder_of_every_type(folder):
    found = ingest(folder)
    rows = {document.id: (document.title, document.contents, document.url) for document in found.documents}
    assert rows == {
        "cherry.pdf": ("On cherries", "Cherries are red and handpicked.", "file:cherry.pdf"),
        "apples.txt": ("apples", "Apples grow on trees.", "file:apples.txt"),
        "plums.html": ("Plum page", "Home Plums Plums are blue. They fall.", "file:plums.html"),
        "sub/pears notes.md": (
            "All about pears",
            "Some words first. All about pears Pears are *green*.",
            "file:sub/pears%20notes.md",
        ),
    }
    assert found.duplicates == 1
    assert found.problems.keys() == {"broken.pdf", "scan.pdf", "empty.txt", "latin.txt", "picture.png"}
    assert found.problems["broken.pdf"].startswith("cannot be read: Pdf")
    assert found.problems["scan.pdf"] == "holds no text (scanned pages?)"
    assert found.problems["empty.txt"] == "holds no text"
    assert found.problems["latin.txt"].startswith("cannot be read: UnicodeDecodeError")
    assert found.problems["picture.png"] == "not one of .txt, .md, .html, .htm, .pdf"


def test_long_texts_become_numbered_passages_that_share_title_and_url(tmp_path):
    (tmp_path / "long.txt").write_text("One sentence here. Another sentence here.")
    found = ingest(tmp_path, size=24, overlap=0)
    assert [(d.id, d.title, d.contents, d.url) for d in found.documents] == [
        ("long.txt#1", "long", "One sentence here.", "file:long.txt"),
        ("long.txt#2", "long", "Another sentence here.", "file:long.txt"),
    ]


def test_jsonl_rows_with_and_without_their_own_names(tmp_path):
    rows = [
        json.dumps({"id": "p1", "title": "Lima", "contents": "Lima is a city.", "url": "urn:1", "more": 1}),
        json.dumps({"contents": "利马是一座城市。"}, ensure_ascii=False),
        json.dumps({"id": "p1", "contents": "Another text."}),
        json.dumps({"id": "p2", "contents": "Lima is a city."}),
        "{torn",
        json.dumps(["contents"]),
        json.dumps({"id": "p3", "contents": " "}),
        json.dumps({"id": 4, "contents": "A text."}),
        "",
    ]
    (tmp_path / "mine.jsonl").write_text("\n".join(rows))
    found = ingest(tmp_path / "mine.jsonl")
    assert [(d.id, d.title, d.contents, d.url) for d in found.documents] == [
        ("p1", "Lima", "Lima is a city.", "urn:1"),
        ("mine.jsonl:2", "mine.jsonl:2", "利马是一座城市。", "file:mine.jsonl#2"),
    ]
    assert found.duplicates == 1
    assert {where: reason.split(" (")[0] for where, reason in found.problems.items()} == {
        "mine.jsonl: p1": "the id was used before, for other contents",
        "mine.jsonl:5": "not JSON",
        "mine.jsonl:6": "not an object with a key `contents`",
        "mine.jsonl:7": "contents must be a non-blank string, got ' '",
        "mine.jsonl:8": "id must be a non-blank string, got 4",
    }


def test_a_source_without_text_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="neither a folder nor a .jsonl file"):
        ingest(tmp_path / "nowhere")
    (tmp_path / "empty.txt").touch()
    with pytest.raises(ConfigError, match=r"holds no text; left out: \{'empty.txt': 'holds no text'\}"):
        ingest(tmp_path)


def test_what_fits_no_file_is_reported_and_left_out(tmp_path):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "good.txt").write_text("Good text.")
    with open(os.fsencode(mine) + b"/r\xe9sum\xe9.txt", "w") as file:
        file.write("Not to be named.")
    found = ingest(mine)
    assert [d.id for d in found.documents] == ["good.txt"] and list(found.problems.values()) == ["its name is not UTF-8"]
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"contents": "Good."}\n{"contents": "Half \\ud83d of one."}\n')
    found = ingest(rows)
    assert [d.contents for d in found.documents] == ["Good."] and list(found.problems) == ["rows.jsonl:2"]
