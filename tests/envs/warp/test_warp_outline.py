from __future__ import annotations

import json

import pytest

from envs.warp.outline import Outline, format_position, parse_position, state_hash


def _items(*titles):
    return [{"title": t, "plan": f"plan of {t}"} for t in titles]


@pytest.fixture
def outline():
    return Outline.plan("Report", _items("A", "B", "C"))


@pytest.mark.parametrize(
    ("position", "path"),
    [
        ("section-1", (1,)),
        ("section-1.2.3", (1, 2, 3)),
        ("section-10", (10,)),
        ("section-0", None),
        ("section-01", None),
        ("section-1.", None),
        ("Section-1", None),
        ("section-1 ", None),
        ("section-1\n", None),
        ("section-²", None),
        ("section-" + "9" * 5000, None),
        ("", None),
    ],
)
def test_positions(position, path):
    assert parse_position(position) == path
    if path:
        assert format_position(path) == position


def test_cursor_is_the_first_unwritten_in_preorder(outline):
    order = []
    outline.expand("section-1", _items("A1", "A2"))
    outline.expand("section-1.1", _items("A11"))
    while (cursor := outline.cursor()) is not None:
        order.append(cursor)
        outline.write(cursor, "text")
    assert order == ["section-1", "section-1.1", "section-1.1.1", "section-1.2", "section-2", "section-3"]


def test_expanding_a_written_section_keeps_its_text(outline):
    for position in ("section-1", "section-2", "section-3"):
        outline.write(position, "text")
    outline.expand("section-2", _items("B1", "B2"))
    assert outline.find("section-2").content == "text"
    assert outline.cursor() == "section-2.1"


def test_expandable_positions(outline):
    assert outline.expandable(3) == []  # only what is written can be deepened
    for position in ("section-1", "section-2", "section-3"):
        outline.write(position, "text")
    assert outline.expandable(3) == ["section-1", "section-2", "section-3"]
    outline.expand("section-2", _items("B1", "B2"))
    assert outline.expandable(3) == ["section-1", "section-3"]  # not twice
    outline.write("section-2.1", "text")
    outline.write("section-2.2", "text")
    assert outline.expandable(3) == ["section-1", "section-2.1", "section-2.2", "section-3"]
    outline.expand("section-2.1", _items("B11", "B12"))
    assert outline.expandable(3) == ["section-1", "section-2.2", "section-3"]  # level 3 never
    assert outline.expandable(2) == ["section-1", "section-3"]


def test_section_10_is_not_below_section_1():
    outline = Outline.plan("R", _items(*(str(i) for i in range(1, 13))))
    outline.write("section-10", "ten")
    assert outline.find("section-1").content is None and outline.find("section-10").content == "ten"
    view = outline.view(lambda text: "short", full=lambda path: path[:1] == (1,))
    assert "section-10 10 [OK] short" in view


def test_find_nothing(outline):
    assert outline.find("section-4") is None and outline.find("section-1.1") is None and outline.find("nonsense") is None


def test_json_round_trip_and_hash(outline):
    outline.write("section-1", "text \\cite{textid1} 奥斯陆")
    outline.expand("section-1", _items("A1", "A2"))
    row = json.loads(json.dumps(outline.to_json()))
    again = Outline.from_json(row)
    assert again == outline
    assert state_hash(again.to_json()) == state_hash(outline.to_json())
    again.write("section-1.1", "x")
    assert state_hash(again.to_json()) != state_hash(outline.to_json())


def test_view(outline):
    outline.write("section-1", "First line.\n\nSecond \\cite{textid1} line.")
    outline.expand("section-1", _items("A1"))
    outline.sections[1].plan = "plan\nof \\cite{textid3} B"
    assert outline.view(str.upper).splitlines() == [
        "Title: Report",
        "section-1 A [OK] FIRST LINE. SECOND LINE.",
        "  section-1.1 A1 [PLAN] plan of A1",
        "section-2 B [PLAN] plan of B",
        "section-3 C [PLAN] plan of C",
    ]
    assert "[OK] First line. Second line." in outline.view(str.upper, full=lambda path: path == (1,))
