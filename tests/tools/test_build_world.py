from __future__ import annotations

import json
import os
import subprocess
import sys
from io import StringIO

import pytest
from rich.console import Console

from envs.retrieval.corpus import corpus_sha256, read_corpus
from envs.retrieval.index import VectorIndex, check_index
from tests.envs.retrieval import entities
from tests.fakes_retrieval import WordEncoder
from tools import build_world as tool


class ManyWords(WordEncoder):
    """Wide enough for every word of the small world. `built` counts how often an encoder was made."""

    built = 0

    def __init__(self, name: str, threads: int):
        super().__init__(dimension=4000)
        self.name = name
        ManyWords.built += 1


@pytest.fixture
def build(monkeypatch, tmp_path):
    monkeypatch.setattr(tool, "SentenceEncoder", ManyWords)
    monkeypatch.setattr(tool, "geography", entities.geography)
    monkeypatch.setattr(tool, "elements", entities.elements)

    def run(name: str = "world", **settings) -> str:
        screen = StringIO()
        arguments = {"size": "small", "seed": 0, "encoder_name": "minilm", "threads": 1, **settings}
        tool.build_world(tmp_path / name, console=Console(file=screen, width=200), **arguments)
        return screen.getvalue()

    return run


def contents(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_two_builds_of_a_seed_are_the_same_bytes_and_complete(build, tmp_path):
    screen = build("one")
    build("two")
    one, two = contents(tmp_path / "one"), contents(tmp_path / "two")
    files = {"corpus.jsonl", "queries.jsonl", "world.json", "index/index.faiss", "index/ids.json", "index/meta.json"}
    assert set(one) == files and one == two
    assert "recall@4" in screen and "encoding documents" in screen and "in all" in screen
    documents = read_corpus(tmp_path / "one/corpus.jsonl")
    queries = [json.loads(line) for line in one["queries.jsonl"].splitlines()]
    world = json.loads(one["world.json"])
    assert world["documents"] == len(documents) and (world["train"], world["heldout"]) == (24, 12) and len(queries) == 36
    meta = check_index(tmp_path / "one/index", "minilm", corpus_sha256=corpus_sha256(tmp_path / "one/corpus.jsonl"))
    assert meta.count == len(documents)


def test_a_world_that_is_there_is_left_alone_and_another_one_replaces_it(build, tmp_path):
    build()
    before, made = contents(tmp_path / "world"), ManyWords.built
    assert "nothing to do" in build()
    assert contents(tmp_path / "world") == before and ManyWords.built == made
    assert "nothing to do" not in build(seed=1)
    after = contents(tmp_path / "world")
    assert json.loads(after["world.json"])["seed"] == 1 and after["queries.jsonl"] != before["queries.jsonl"]
    assert after["corpus.jsonl"] == before["corpus.jsonl"]


def test_a_damaged_world_is_built_again(build, tmp_path):
    build()
    (tmp_path / "world/index/meta.json").unlink()  # as after an interrupted build
    assert "nothing to do" not in build()
    with (tmp_path / "world/corpus.jsonl").open("a") as file:
        file.write("\n")
    assert "nothing to do" not in build()
    read_corpus(tmp_path / "world/corpus.jsonl")


def test_recall_counts_golden_documents_among_the_first_four():
    encoder = WordEncoder()
    names = ["red", "blue", "green", "white", "black", "grey"]
    index = VectorIndex.build(encoder.encode_passages(names), names, encoder, "hash")
    found = {"keywords": ["red"], "doc_ids": ["red"], "subtopics": []}
    half = {"keywords": ["blue"], "doc_ids": ["blue", "grey"], "subtopics": []}  # grey is the last of five ties at 0
    assert tool.oracle_recall([{"topics": [found]}], index, encoder) == 1.0
    assert tool.oracle_recall([{"topics": [{**found, "subtopics": [half]}]}], index, encoder) == pytest.approx(2 / 3)


def test_the_command_refuses_an_unknown_size(capsys):
    with pytest.raises(SystemExit):
        tool.main(["--out", "x", "--size", "huge"])
    assert "huge" in capsys.readouterr().err


@pytest.mark.slow
def test_another_process_with_other_hashes_makes_the_same_texts():
    code = "from tools.build_world import build_texts; from hashlib import sha256;"
    code += "print(sha256(repr(build_texts('small', 0)).encode()).hexdigest())"
    digests = set()
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, timeout=100
        )
        digests.add(done.stdout)
    assert len(digests) == 1


@pytest.mark.slow
def test_the_real_encoder_finds_the_oracles_documents_in_the_small_world(tmp_path):
    import asyncio

    from envs.retrieval.service import Retriever

    tool.main(["--out", str(tmp_path / "world"), "--size", "small", "--threads", "2"])
    assert json.loads((tmp_path / "world/world.json").read_text())["oracle_recall@4"] >= 0.95
    retriever = Retriever(str(tmp_path / "world/index"), str(tmp_path / "world/corpus.jsonl"), threads=2)
    try:
        found = asyncio.run(retriever.search(["uses of helium", "Where do people speak Portuguese in South America?"], 3))
    finally:
        retriever.close()
    assert found[0][0].id == "element-He-uses" and 0.5 < found[0][0].score <= 1.0 + 1e-5
    assert "country-BR-languages" in [document.id for document in found[1]]
