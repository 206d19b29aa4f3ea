from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from envs.retrieval.index import VectorIndex, check_index
from rlcore.errors import ConfigError

ENCODER = SimpleNamespace(name="fake", passage_prompt="", dimension=2)
# Angles of 0, 90 and about 53 degrees: their cosines with (1, 0) are 1, 0 and 0.6.
VECTORS = np.array([[1, 0], [0, 1], [0.6, 0.8]], dtype=np.float32)


def saved(path, vectors=VECTORS, ids=("east", "north", "between")):
    index = VectorIndex.build(vectors, ids, ENCODER, "hash")
    index.save(path)
    return index


def test_search_gives_ids_by_cosine(tmp_path):
    saved(tmp_path / "index")
    index = VectorIndex.load(tmp_path / "index", ENCODER, "hash")
    (east,), (north,) = index.search(np.array([[1, 0]]), 1), index.search(np.array([[0, 1]]), 1)
    assert [id for id, _ in east] == ["east"] and [id for id, _ in north] == ["north"]
    both = index.search(np.array([[1, 0], [0, 1]]), 2)
    assert [[id for id, _ in hits] for hits in both] == [["east", "between"], ["north", "between"]]
    assert [score for _, score in both[0]] == pytest.approx([1.0, 0.6])
    assert [score for _, score in both[1]] == pytest.approx([1.0, 0.8])


def test_k_beyond_the_store_and_an_empty_store(tmp_path):
    index = saved(tmp_path / "index")
    assert [id for id, _ in index.search(np.array([[1, 0]]), 50)[0]] == ["east", "between", "north"]
    saved(tmp_path / "empty", np.zeros((0, 2)), ())
    empty = VectorIndex.load(tmp_path / "empty", ENCODER, "hash")
    assert empty.search(np.array([[1, 0], [0, 1]]), 5) == [[], []]
    assert index.search(np.zeros((0, 2)), 5) == []
    with pytest.raises(ValueError, match="k must be at least 1, got 0"):
        index.search(np.array([[1, 0]]), 0)


def ring(count):
    """`count` unit vectors around the circle, in order, and their ids."""
    angles = 2 * np.pi * np.arange(count) / count
    return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32), [f"at{i}" for i in range(count)]


@pytest.mark.parametrize("kind", ["flat", "ivf", "hnsw"])
def test_every_kind_finds_the_neighbours_and_gives_its_vectors_back(tmp_path, kind):
    vectors, ids = ring(300)
    VectorIndex.build(vectors, ids, ENCODER, "hash", kind).save(tmp_path)
    index = VectorIndex.load(tmp_path, ENCODER, "hash")
    assert index.meta.kind == check_index(tmp_path).kind == kind
    for hits, row in zip(index.search(vectors[[0, 77]], 3), (0, 77), strict=True):
        assert hits[0][0] == f"at{row}" and hits[0][1] == pytest.approx(1.0)
        assert {id for id, _ in hits[1:]} == {f"at{(row - 1) % 300}", f"at{row + 1}"}
        assert hits[1][1] == pytest.approx(np.cos(2 * np.pi / 300), abs=1e-6)
    np.testing.assert_array_equal(index.vectors(), vectors)


@pytest.mark.parametrize("kind", ["ivf", "hnsw"])
def test_every_kind_can_be_empty_tiny_and_asked_for_too_many(tmp_path, kind):
    saved_empty = VectorIndex.build(np.zeros((0, 2)), (), ENCODER, "hash", kind)
    saved_empty.save(tmp_path)
    assert VectorIndex.load(tmp_path, ENCODER, "hash").search(np.array([[1, 0]]), 5) == [[]]
    tiny = VectorIndex.build(VECTORS, ("east", "north", "between"), ENCODER, "hash", kind)
    assert [id for id, _ in tiny.search(np.array([[1, 0]]), 50)[0]] == ["east", "between", "north"]


def test_a_breadth_is_what_is_looked_into(tmp_path):
    vectors, ids = ring(300)
    VectorIndex.build(vectors, ids, ENCODER, "hash", "ivf").save(tmp_path / "ivf")  # 300 // 40 = 7 cells
    narrow = VectorIndex.load(tmp_path / "ivf", ENCODER, "hash", breadth=1)
    (hits,) = narrow.search(vectors[:1], 300)
    assert hits[0][0] == "at0" and 10 < len(hits) < 100  # one cell of seven, and no place filled with nothing
    assert len(VectorIndex.load(tmp_path / "ivf", ENCODER, "hash", breadth=7).search(vectors[:1], 300)[0]) == 300
    saved(tmp_path / "flat")
    with pytest.raises(ConfigError, match="breadth=4 is for an index of kind ivf or hnsw"):
        VectorIndex.load(tmp_path / "flat", ENCODER, "hash", breadth=4)
    with pytest.raises(ConfigError, match="breadth=0 must be at least 1"):
        VectorIndex.load(tmp_path / "ivf", ENCODER, "hash", breadth=0)


def test_an_unknown_kind_names_the_known_ones():
    with pytest.raises(ConfigError, match="index kind 'lsh' must be one of flat, ivf, hnsw"):
        VectorIndex.build(VECTORS, ("a", "b", "c"), ENCODER, "hash", "lsh")


def test_an_index_from_before_there_were_kinds_is_a_flat_one(tmp_path):
    saved(tmp_path)
    meta = json.loads((tmp_path / "meta.json").read_text())
    assert meta.pop("kind") == "flat"
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    assert VectorIndex.load(tmp_path, ENCODER, "hash").meta.kind == "flat"
    for wrong in ({**meta, "new": 1}, {name: meta[name] for name in meta if name != "count"}):
        (tmp_path / "meta.json").write_text(json.dumps(wrong))
        with pytest.raises(ConfigError, match="must have exactly the keys"):
            check_index(tmp_path)


def test_wrong_widths_name_both_values(tmp_path):
    index = saved(tmp_path / "index")
    with pytest.raises(ValueError, match=r"\[Q, 2\], got \[1, 3\]"):
        index.search(np.ones((1, 3)), 1)
    with pytest.raises(ValueError, match=r"\[N, 2\] for encoder 'fake', got \[3, 4\]"):
        VectorIndex.build(np.ones((3, 4)), ["a", "b", "c"], ENCODER, "hash")
    wider = SimpleNamespace(name="fake", passage_prompt="", dimension=384)
    with pytest.raises(ConfigError, match="dimension 2, but 384 is wanted"):
        VectorIndex.load(tmp_path / "index", wider, "hash")


def test_build_refuses_bad_ids_and_unnormalised_vectors():
    with pytest.raises(ValueError, match="3 vectors need as many different ids, got 2"):
        VectorIndex.build(VECTORS, ["a", "b"], ENCODER, "hash")
    with pytest.raises(ValueError, match="got 3 \\(2 different\\)"):
        VectorIndex.build(VECTORS, ["a", "b", "a"], ENCODER, "hash")
    with pytest.raises(ValueError, match="lengths from 2 to 2"):
        VectorIndex.build(VECTORS * 2, ["a", "b", "c"], ENCODER, "hash")


@pytest.mark.parametrize(
    ("wanted", "complaint"),
    [
        ({"encoder": "minilm"}, "encoder 'fake', but 'minilm' is wanted"),
        ({"dimension": 384}, "dimension 2, but 384 is wanted"),
        ({"corpus_sha256": "other"}, "corpus_sha256 'hash', but 'other' is wanted"),
        ({"passage_prompt": "passage: "}, "passage_prompt '', but 'passage: ' is wanted"),
    ],
)
def test_check_index_refuses_other_settings(tmp_path, wanted, complaint):
    saved(tmp_path / "index")
    with pytest.raises(ConfigError, match=complaint):
        check_index(tmp_path / "index", **wanted)


@pytest.mark.parametrize(("field", "value"), [("metric", "l2"), ("normalised", False)])
def test_check_index_refuses_another_metric(tmp_path, field, value):
    saved(tmp_path / "index")
    meta = json.loads((tmp_path / "index/meta.json").read_text())
    (tmp_path / "index/meta.json").write_text(json.dumps({**meta, field: value}))
    with pytest.raises(ConfigError, match=f"has {field} {value!r}"):
        check_index(tmp_path / "index", "fake", 2)


def test_a_missing_index_names_the_command_that_builds_it(tmp_path):
    with pytest.raises(ConfigError, match=f"python -m tools.build_world --out {tmp_path}"):
        check_index(tmp_path / "index", "minilm", 384)


def test_check_index_imports_neither_faiss_nor_torch(tmp_path):
    saved(tmp_path / "index")
    code = (
        "import sys; from envs.retrieval.index import check_index; import envs.retrieval.service, envs.retrieval.encoder;"
        f"assert check_index({str(tmp_path / 'index')!r}, 'fake', 2).count == 3;"
        "heavy = {'faiss', 'torch', 'sentence_transformers'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_torn_index_is_refused(tmp_path):
    saved(tmp_path / "index")
    (tmp_path / "index/ids.json").write_text(json.dumps(["east", "north"]))
    with pytest.raises(ConfigError, match="torn"):
        VectorIndex.load(tmp_path / "index", ENCODER, "hash")
    (tmp_path / "index/ids.json").write_text(json.dumps(["east", "north", "north"]))
    with pytest.raises(ConfigError, match="torn"):
        VectorIndex.load(tmp_path / "index", ENCODER, "hash")


def test_the_vectors_file_is_checked_against_meta(tmp_path):
    saved(tmp_path / "index")
    import faiss

    other = faiss.IndexFlatL2(2)
    other.add(VECTORS)
    faiss.write_index(other, str(tmp_path / "index/index.faiss"))
    with pytest.raises(ConfigError, match="dimension 2 and metric 1"):
        VectorIndex.load(tmp_path / "index", ENCODER, "hash")
