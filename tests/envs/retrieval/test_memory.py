from __future__ import annotations

from types import SimpleNamespace

import psutil
import pytest

from envs.retrieval.memory import check_memory, corpus_bytes, index_bytes
from rlcore.errors import ConfigError


def test_need_and_have_are_both_said(monkeypatch):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=3 * 2**30))
    check_memory({"corpus": 2**30, "vectors": 2 * 2**30})
    with pytest.raises(ConfigError, match=r"about 4.5 GiB of memory \(corpus 1.5, vectors 3\), but only 3 GiB are available"):
        check_memory({"corpus": 3 * 2**29, "vectors": 3 * 2**30})


def test_estimates_follow_the_files(tmp_path):
    (tmp_path / "corpus.jsonl").write_bytes(b"x" * 1000)
    (tmp_path / "index/bm25").mkdir(parents=True)
    (tmp_path / "index/index.faiss").write_bytes(b"x" * 4000)
    (tmp_path / "index/bm25/data.npy").write_bytes(b"x" * 7777)  # counted with the keyword index only
    assert corpus_bytes(tmp_path / "corpus.jsonl", 10) == 1000 + 10 * 450
    assert index_bytes(tmp_path / "index", 10) == 4000 + 10 * 100
    assert index_bytes(tmp_path / "index/bm25", 0) == 7777
