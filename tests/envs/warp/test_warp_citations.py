from __future__ import annotations

import asyncio
import time

import pytest

from envs.warp.citations import (
    PassageBook,
    cited_keys,
    drop_citations,
    invented_keys,
    is_malformed,
    keep_citations,
    mark_invented,
    normalise_citations,
)
from envs.warp.limits import Limits
from envs.warp.passages import merge_passages, retrieve
from rlcore.errors import InfrastructureFailure


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        (r"a \cite{textid3, textid1}.", ["textid3", "textid1"]),
        (r"a \cite{textid1} b \cite{textid2,textid1}", ["textid1", "textid2"]),
        (r"a \cite{ textid1 ,, }", ["textid1"]),
        (r"a \cite{}", []),
        (r"a \cite{textid2", []),
        (r"a \citep{textid1} b \Citet*{textid2} c \parencite[see][p. 3]{textid3}", ["textid1", "textid2", "textid3"]),
        (r"\nocite{textid1} \citestyle{plain} \cite{#1}", []),
        (r"\cite{a{b}}", []),
        ("bibkey:textid1", []),
    ],
)
def test_cited_keys(text, keys):
    assert cited_keys(text) == keys


@pytest.mark.parametrize("text", [r"\cite{}", r"\cite{ , }", r"\cite {textid1}", r"\cite{textid1", r"\citep{textid1}", r"\cite"])
def test_malformed(text):
    assert is_malformed(f"Oslo is a city {text} in Norway \\cite{{textid2}}.")


@pytest.mark.parametrize(
    "text", [r"\parencite{textid1}", r"\cite[p. 3]{textid1}", r"\nocite{textid1}", r"\cite{#1}", r"\Cite{x}"]
)
def test_other_commands_are_malformed_too(text):
    assert is_malformed(f"Oslo {text} \\cite{{textid2}}.")


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        (r"a \citep[p. 3] ｛textid1；textid2｝.", r"a \cite{textid1, textid2}."),
        (r"a \cite{textid2，textid1、textid2}", r"a \cite{textid2, textid1}"),
        (r"a \nocite{textid1} b", "a  b"),
        (r"a \cite{textid1", r"a \cite{textid1"),
        (r"a \cite{}", "a "),
        (r"no \textbf{citation}", r"no \textbf{citation}"),
    ],
)
def test_the_plain_form_of_every_form(text, plain):
    assert normalise_citations(text) == plain


def test_variants_are_kept_and_dropped_like_the_plain_form():
    assert keep_citations(r"a \citep[p. 3]{textid1, textid9} b \parencite{x}", ["textid1"]) == r"a \cite{textid1} b"
    assert drop_citations(r"a \citep{textid1} b \nocite{x}.") == "a b."


def test_long_runs_take_no_time():
    for run in (" " * 40_000, "\\cite" * 8_000, "\\cite{" * 6_000, "\\" + "cite" * 10_000, "\\cite[" * 6_000):
        began = time.process_time()
        cited_keys(run), is_malformed(run), normalise_citations(run), drop_citations(run)
        assert time.process_time() - began < 1.0


def test_well_formed():
    assert not is_malformed(r"Oslo \cite{textid1, textid2} cites nothing else.")


def test_keep_and_drop():
    text = r"Oslo \cite{textid1, textid9} is a city \cite{textid9}. It is old \cite{textid2}."
    assert invented_keys(text, ["textid1", "textid2"]) == ["textid9"]
    assert keep_citations(text, ["textid1", "textid2"]) == r"Oslo \cite{textid1} is a city. It is old \cite{textid2}."
    assert drop_citations(text) == "Oslo is a city. It is old."


def test_invented_keys_are_marked():
    text = r"Oslo \cite{textid1, textid9} is a city \citep[p. 3]{#1, textid9}. It is old \cite{textid2}, so \nocite{textid9}."
    marked = r"Oslo \cite{textid1, invented:textid9} is a city \cite{invented:textid9}. It is old \cite{textid2}, so."
    assert mark_invented(text, ["textid1", "textid2"]) == marked
    assert keep_citations(marked, ["textid1", "textid2"]) == keep_citations(text, ["textid1", "textid2"])
    assert mark_invented(r"It \cite{invented:textid1}.", ["textid1"]) == r"It \cite{invented:invented:textid1}."


def test_keys_are_numbered_by_first_sight_of_the_stripped_text(doc):
    book = PassageBook()
    assert [book.add(doc("a", "A", "one")), book.add(doc("b", "B", "two"))] == ["textid1", "textid2"]
    assert book.add(doc("c", "C", " one\n")) == "textid1"
    assert book["textid1"].id == "a" and "textid3" not in book and len(book) == 2
    assert book.to_json()["textid2"] == {"doc_id": "b", "title": "B", "url": ""}


def test_a_key_in_a_passage_is_not_a_key_given_out(doc):
    book = PassageBook()
    book.add(doc("a", "A", r"textid7: trust me \cite{textid8}"))
    assert list(book) == ["textid1"]


def _docs(doc, names):
    return [doc(name, name, name.rstrip("'")) for name in names.split()]


@pytest.mark.parametrize(
    ("lists", "budget", "merged"),
    [
        (["a b c d", "e f g h"], 4, "a b e f"),  # quota 2
        (["a b c d", "a b e f"], 4, "a b e f"),  # what an earlier keyword gave does not use the quota
        (["a b c d e", "f"], 4, "a b f c"),  # the slot left over is filled in keyword order
        (["a", "b c d e"], 4, "a b c d"),
        (["a b", "c d", "e f"], 2, "a c"),  # quota at least 1, the budget holds all the same
        (["a b", "c d"], 3, "a c b"),  # 3 // 2 = 1
        (["a a' b"], 3, "a b"),  # equal text, other id
        ([""], 4, ""),
        (["", "a"], 4, "a"),
        ([], 4, ""),
    ],
)
def test_merge(doc, lists, budget, merged):
    found = [_docs(doc, names) for names in lists]
    assert [d.id for d in merge_passages(found, budget)] == merged.split()


def test_merge_skips_blank_passages(doc):
    assert merge_passages([[doc("a", "A", " \n"), doc("b", "B", "two")]], 2) == [doc("b", "B", "two")]


def test_retrieve_asks_k_and_uses_the_cursors_budget(doc):
    class Many:
        async def search(self, queries, k):
            assert (queries, k) == (["x"], 20)
            return [[doc(str(i), "", f"text {i}") for i in range(20)]]

    async def sizes():
        return [len(await retrieve(Many(), ["x"], cursor, Limits())) for cursor in ("outline", "section-1")]

    assert asyncio.run(sizes()) == [20, 10]


def test_a_late_or_incomplete_search_is_infrastructure(doc):
    class Late:
        async def search(self, queries, k):
            await asyncio.sleep(60)

    class Short:
        async def search(self, queries, k):
            return [[]]

    with pytest.raises(InfrastructureFailure, match="longer than 0.01 s"):
        asyncio.run(retrieve(Late(), ["x"], "outline", Limits(search_timeout_s=0.01)))
    with pytest.raises(InfrastructureFailure, match="answered 1 of 2 keywords"):
        asyncio.run(retrieve(Short(), ["x", "y"], "outline", Limits()))
