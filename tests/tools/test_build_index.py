from __future__ import annotations

import asyncio
from io import StringIO

import pytest
from rich.console import Console

from envs.retrieval.corpus import read_corpus
from envs.retrieval.index import check_index
from envs.retrieval.service import Retriever
from envs.warp.limits import Limits
from envs.warp.play import play
from envs.warp.report import Report
from envs.warp.teacher import ScriptedTeacher
from rlcore.errors import ConfigError
from rlcore.types import Query
from tests.envs.warp.conftest import COMPACT, Scripted
from tests.fakes_retrieval import WordEncoder, pdf_bytes
from tools import build_index as tool


@pytest.fixture
def build(monkeypatch, tmp_path):
    """Runs the tool from tmp_path/mine to tmp_path/out with an encoder that lives on; returns what was printed."""
    encoder = WordEncoder(dimension=64)
    monkeypatch.setattr(tool, "SentenceEncoder", lambda name, passage_prompt="": encoder)

    def run(**options) -> str:
        screen = StringIO()
        tool.build_index(tmp_path / "mine", tmp_path / "out", Console(file=screen, width=200), **options)
        return screen.getvalue()

    run.encoder = encoder
    return run


@pytest.fixture
def mine(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/apples.txt").write_text("Apples grow on trees.")
    (tmp_path / "mine/pears.md").write_text("# Pears\n\nPears are green.")
    (tmp_path / "mine/plums.html").write_text("<title>Plums</title><p>Plums are blue.")
    (tmp_path / "mine/cherries.pdf").write_bytes(pdf_bytes(["Cherries are red."], title="Cherries"))
    (tmp_path / "mine/broken.pdf").write_bytes(b"%PDF-1.4 nothing of a document")
    (tmp_path / "mine/empty.txt").touch()
    return tmp_path / "mine"


def search(tmp_path, encoder, query, **options):
    retriever = Retriever(str(tmp_path / "out/index"), str(tmp_path / "out/corpus.jsonl"), encoder, **options)
    (found,) = asyncio.run(retriever.search([query], 1))
    retriever.close()
    return found[0].id


def test_own_documents_are_found_and_bad_ones_are_reported(build, mine, tmp_path):
    screen = build(bm25=True)
    assert "left out broken.pdf: cannot be read" in screen and "left out empty.txt: holds no text" in screen
    assert "4 passages, 4 of them new; 0 duplicates dropped, 2 files or lines left out" in screen
    for query, id in [
        ("green pears", "pears.md"),
        ("cherries", "cherries.pdf"),
        ("plums", "plums.html"),
        ("trees", "apples.txt"),
    ]:
        for ranking in ("dense", "bm25", "hybrid"):
            assert search(tmp_path, build.encoder, query, ranking=ranking) == id


def test_a_report_cites_own_documents(build, mine, tmp_path):
    build()
    retriever = Retriever(str(tmp_path / "out/index"), str(tmp_path / "out/corpus.jsonl"), build.encoder)
    subjects = {"Pears": "pears.md", "Plums": "plums.html", "Cherries": "cherries.pdf"}
    rest = {"plan": "What they are like.", "deepen": False, "subtopics": []}
    topics = [{"title": title, "keywords": [title.lower()], "doc_ids": [id], **rest} for title, id in subjects.items()]
    query = Query("q1", {"question": "Write about pears, plums and cherries.", "language": "en", "topics": topics})

    async def write():
        played = await play(query, ScriptedTeacher(query), retriever, Limits.of(COMPACT))
        return await Report(retriever, COMPACT).run(query, Scripted([sample["output"] for sample in played.samples]))

    data = asyncio.run(write()).data
    retriever.close()
    assert data["complete"] and data["invented"] == 0
    assert {passage["doc_id"] for passage in data["passages"].values()} >= set(subjects.values())
    body, _, references = data["report_markdown"].partition("## References")
    assert "Cherries are red [" in body
    assert [id for id in subjects.values() if f"file:{id}" not in references] == [], data["report_markdown"]


def test_only_what_is_new_is_encoded_and_what_has_gone_is_forgotten(build, mine, tmp_path):
    build()
    before = {path.name: path.read_bytes() for path in (tmp_path / "out/index").iterdir()}
    build.encoder.passages.clear()
    assert "4 passages, 0 of them new" in build()
    assert {path.name: path.read_bytes() for path in (tmp_path / "out/index").iterdir()} == before
    (mine / "apples.txt").write_text("Apples are sold at markets.")
    (mine / "pears.md").unlink()
    assert "3 passages, 1 of them new" in build()
    assert build.encoder.passages == ["apples. Apples are sold at markets."]
    assert set(read_corpus(tmp_path / "out/corpus.jsonl")) == {"apples.txt", "plums.html", "cherries.pdf"}
    assert search(tmp_path, build.encoder, "markets") == "apples.txt"


@pytest.mark.parametrize(("most", "kind"), [(4, "flat"), (3, "hnsw")])
def test_many_passages_get_an_index_that_does_not_look_at_all_of_them(build, mine, tmp_path, monkeypatch, most, kind):
    monkeypatch.setattr("envs.retrieval.index.FLAT_UP_TO", most)
    assert f"corpus and {kind} index" in build() and check_index(tmp_path / "out/index").kind == kind
    assert search(tmp_path, build.encoder, "markets")


@pytest.mark.parametrize("kind", ["ivf", "hnsw"])
def test_another_kind_of_index_is_built_from_the_same_vectors(build, mine, tmp_path, kind):
    build()
    build.encoder.passages.clear()
    build(kind=kind)
    assert build.encoder.passages == [] and check_index(tmp_path / "out/index").kind == kind
    assert "0 of them new" in build(kind="flat")


def test_a_torn_build_is_encoded_anew(build, mine, tmp_path):
    build()
    (tmp_path / "out/index/meta.json").unlink()
    screen = build()
    assert "encoding everything anew: no index at" in screen and "4 of them new" in screen


def test_the_command_line_reports_a_wrong_source(tmp_path, capsys):
    with pytest.raises(SystemExit):
        tool.main([str(tmp_path / "nowhere"), "--out", str(tmp_path / "out")])
    assert "nowhere is neither a folder nor a .jsonl file" in capsys.readouterr().err
    with pytest.raises(ConfigError):
        tool.build_index(tmp_path / "nowhere", tmp_path / "out", Console())
