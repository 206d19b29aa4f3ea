from __future__ import annotations

import asyncio
from types import SimpleNamespace

import psutil
import pytest

from envs.retrieval.bm25 import KeywordIndex
from envs.retrieval.corpus import Document, corpus_sha256, write_corpus
from envs.retrieval.index import VectorIndex
from envs.retrieval.service import Retriever
from rlcore.errors import ConfigError
from tests.fakes_retrieval import StaticRetriever, WordEncoder

DOCUMENTS = [
    Document("a", "red", "red red blue", "urn:a"),  # passage "red. red red blue": (3, 1) / sqrt(10)
    Document("b", "blue", "green", "urn:b"),  # blue and green: (1, 1) / sqrt(2)
]


@pytest.fixture
def world(tmp_path):
    write_corpus(tmp_path / "corpus.jsonl", DOCUMENTS)
    encoder = WordEncoder()
    vectors = encoder.encode_passages([document.passage for document in DOCUMENTS])
    digest = corpus_sha256(tmp_path / "corpus.jsonl")
    VectorIndex.build(vectors, ["a", "b"], encoder, digest).save(tmp_path / "index")
    KeywordIndex.build(DOCUMENTS, digest).save(tmp_path / "index/bm25")
    return {"index": str(tmp_path / "index"), "corpus": str(tmp_path / "corpus.jsonl"), "encoder": encoder}


@pytest.fixture
def make(world):
    made = []

    def build(**options) -> Retriever:
        made.append(Retriever(**{**world, **options}))
        return made[-1]

    yield build
    world["encoder"].gate.set()
    for retriever in made:
        retriever.close()


def ids(results):
    return [[document.id for document in found] for found in results]


def test_search_ranks_by_cosine_and_returns_documents_with_scores(make):
    found = asyncio.run(make().search(["red", "blue"], 2))
    assert ids(found) == [["a", "b"], ["b", "a"]]
    red, blue = found
    assert [document.score for document in red] == pytest.approx([3 / 10**0.5, 0.0])
    assert [document.score for document in blue] == pytest.approx([1 / 2**0.5, 1 / 10**0.5])
    assert (red[0].title, red[0].contents, red[0].url) == ("red", "red red blue", "urn:a")


def test_k_limits_and_may_exceed_the_store(make):
    retriever = make()
    assert ids(asyncio.run(retriever.search(["blue"], 1))) == [["b"]]
    assert ids(asyncio.run(retriever.search(["blue"], 9))) == [["b", "a"]]
    with pytest.raises(ValueError, match="k must be at least 1, got 0"):
        asyncio.run(retriever.search(["blue"], 0))


def test_blank_queries_find_nothing_and_ask_nothing(make, world):
    retriever = make()
    assert asyncio.run(retriever.search([], 3)) == []
    assert ids(asyncio.run(retriever.search([" ", "red", ""], 1))) == [[], ["a"], []]
    assert world["encoder"].calls == [["red"]]


def test_requests_at_the_same_time_share_one_encoder_call(make, world):
    retriever = make()

    async def ask():
        return await asyncio.gather(
            *(retriever.search([query, "blue"], k) for query, k in [("red", 1), ("green", 2), ("red", 1)])
        )

    first, second, third = asyncio.run(ask())
    assert ids(first) == [["a"], ["b"]] and ids(second) == [["b", "a"], ["b", "a"]] and ids(third) == ids(first)
    assert world["encoder"].calls == [["red", "blue", "green", "blue"]]  # blue twice: for k=1 and for k=2


def test_queries_that_arrive_while_another_batch_is_encoded_wait_in_one_batch(make, world):
    retriever, encoder = make(), world["encoder"]

    async def ask():
        encoder.gate.clear()
        first = asyncio.create_task(retriever.search(["red"], 1))
        assert await asyncio.to_thread(encoder.called.wait, 20)
        later = []
        for query in ("blue", "green", "red"):
            later.append(asyncio.create_task(retriever.search([query], 1)))
            await asyncio.sleep(0.02)  # longer than a batch's window
        encoder.gate.set()
        return await asyncio.gather(first, *later)

    assert [ids(found) for found in asyncio.run(ask())] == [[["a"]], [["b"]], [["b"]], [["a"]]]
    assert encoder.calls == [["red"], ["blue", "green"]]  # the second "red" shared the first one's answer


def test_the_event_loop_is_free_while_encoding(make, world):
    retriever, encoder = make(), world["encoder"]

    async def ask():
        encoder.gate.clear()
        search = asyncio.create_task(retriever.search(["red"], 1))
        assert await asyncio.to_thread(encoder.called.wait, 20)
        for _ in range(5):
            await asyncio.sleep(0.001)  # would never return if encoding held the loop: the gate is opened below
        assert not search.done()
        encoder.gate.set()
        return await search

    assert ids(asyncio.run(ask())) == [["a"]]


def test_the_cache_answers_without_the_encoder_and_forgets_the_least_recently_used(make, world):
    retriever, encoder = make(cache_size=2), world["encoder"]

    async def ask(*queries):
        for query in queries:
            await retriever.search([query], 1)

    asyncio.run(ask("red", "blue", " red "))
    assert encoder.calls == [["red"], ["blue"]]
    asyncio.run(ask("green", "red"))  # green drives out blue: red was used later
    assert encoder.calls == [["red"], ["blue"], ["green"]]
    asyncio.run(ask("blue"))
    assert encoder.calls[-1] == ["blue"]


def test_without_a_cache_every_search_is_encoded(make, world):
    retriever = make(cache_size=0)
    assert ids(asyncio.run(retriever.search(["red"], 1))) == ids(asyncio.run(retriever.search(["red"], 1))) == [["a"]]
    assert len(world["encoder"].calls) == 2


def test_an_encoder_error_reaches_every_asker_and_the_next_search_works(make, world):
    retriever, encoder = make(), world["encoder"]

    async def ask():
        too_many_words = " ".join(f"w{i}" for i in range(40))  # beyond the fake's 16 axes
        results = await asyncio.gather(
            retriever.search([too_many_words], 1), retriever.search(["red"], 1), return_exceptions=True
        )
        assert [type(result) for result in results] == [IndexError, IndexError]
        return await retriever.search(["red"], 1)

    assert ids(asyncio.run(ask())) == [["a"]]
    assert len(encoder.calls) == 2


def test_a_cancelled_asker_does_not_take_the_answer_from_others(make, world):
    retriever, encoder = make(), world["encoder"]

    async def ask():
        encoder.gate.clear()
        cancelled = asyncio.create_task(retriever.search(["red"], 1))
        other = asyncio.create_task(retriever.search(["red"], 1))
        assert await asyncio.to_thread(encoder.called.wait, 20)
        cancelled.cancel()
        await asyncio.sleep(0.001)
        encoder.gate.set()
        return await other

    assert ids(asyncio.run(ask())) == [["a"]]
    assert encoder.calls == [["red"]]


def test_an_index_of_another_encoder_or_corpus_is_refused(world, tmp_path):
    with pytest.raises(ConfigError, match="encoder 'words', but 'minilm' is wanted"):
        Retriever(world["index"], world["corpus"], "minilm")
    write_corpus(tmp_path / "corpus.jsonl", DOCUMENTS[:1])
    with pytest.raises(ConfigError, match="corpus_sha256"):
        Retriever(**world)
    with pytest.raises(ConfigError, match="no index at"):
        Retriever(str(tmp_path / "nowhere"), world["corpus"], world["encoder"])


def test_keyword_search_needs_no_encoder(make, world):
    retriever = make(ranking="bm25", encoder="a model that does not exist")
    found = asyncio.run(retriever.search(["Green", "violet", "blue"], 5))
    assert ids(found) == [["b"], [], ["b", "a"]]  # b's passage is the shorter one
    assert found[0][0].score > 0 and world["encoder"].calls == []


def test_hybrid_search_joins_ranks(make):
    retriever = make(ranking="hybrid")
    (found,) = asyncio.run(retriever.search(["red"], 2))
    assert ids([found]) == [["a", "b"]]  # cosine: a, b; keywords: a only
    assert [document.score for document in found] == pytest.approx([2 / 61, 1 / 62])
    assert ids(asyncio.run(retriever.search(["red"], 1))) == [["a"]]


def test_rankings_that_cannot_be_given_are_refused(make, tmp_path):
    with pytest.raises(ConfigError, match="ranking='best' must be one of dense, bm25, hybrid"):
        make(ranking="best")
    (tmp_path / "index/bm25/meta.json").unlink()
    for ranking in ("bm25", "hybrid"):
        with pytest.raises(ConfigError, match="no keyword index at"):
            make(ranking=ranking)
    assert ids(asyncio.run(make().search(["red"], 1))) == [["a"]]


def test_an_empty_store_finds_nothing(tmp_path):
    write_corpus(tmp_path / "corpus.jsonl", [])
    digest, encoder = corpus_sha256(tmp_path / "corpus.jsonl"), WordEncoder()
    VectorIndex.build(encoder.encode_passages([]), [], encoder, digest).save(tmp_path / "index")
    KeywordIndex.build([], digest).save(tmp_path / "index/bm25")
    for ranking in ("dense", "bm25", "hybrid"):
        retriever = Retriever(str(tmp_path / "index"), str(tmp_path / "corpus.jsonl"), encoder, ranking=ranking)
        assert asyncio.run(retriever.search(["red", "blue"], 3)) == [[], []]
        retriever.close()


def test_what_does_not_fit_into_memory_is_refused_before_it_is_loaded(make, monkeypatch, tmp_path):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1000))
    (tmp_path / "index/index.faiss").unlink()  # would be missed on loading
    with pytest.raises(ConfigError, match=r"the search service needs about .* GiB of memory \(corpus .*, vectors .*\), but only"):
        make()


def test_the_static_retriever_ranks_by_shared_words():
    retriever = StaticRetriever([*DOCUMENTS, Document("c", "Blue", "and green, and red", "urn:c")])
    found = asyncio.run(retriever.search(["GREEN red", "violet"], 2))
    assert ids(found) == [["c", "a"], []]
    assert [document.score for document in found[0]] == [2.0, 1.0]
    assert retriever.queries == ["GREEN red", "violet"]
