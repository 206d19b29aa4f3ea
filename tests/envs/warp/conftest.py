"""A small world for the WARP tests: twelve documents, a word-overlap search, one query with its oracle, a scripted policy."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import pytest

from rlcore.types import Query

# For small models and short contexts: prompts of about 300 tokens.
COMPACT: dict[str, Any] = {
    "per_keyword_k": 4,
    "outline_passages": 4,
    "section_passages": 4,
    "abbreviate_over": 0,  # of a written section, "[OK] ..." is all that is shown
    "abbreviate_head": 0,
    "abbreviate_tail": 0,
    "full_text": False,
    "search_tokens": 96,
    "initialize_tokens": 320,
    "write_tokens": 224,
    "extend_tokens": 224,
}


@dataclass(frozen=True)
class Doc:
    id: str
    title: str
    contents: str
    url: str = ""


def _corpus() -> list[Doc]:
    facts = {
        "peru-overview": "Peru is a country on the west coast of South America. Its capital Lima has about ten million people.",
        "peru-economy": "The economy of Peru rests on copper, gold and fish meal. Peru is among the largest copper producers.",
        "norway-overview": "Norway is a kingdom in northern Europe with a long coast. The capital of Norway is Oslo.",
        "norway-economy": "The economy of Norway depends on oil, gas and fish. Norway saves oil income in a large state fund.",
        "norway-oslo": "Oslo is the largest city of Norway and lies at the end of a fjord. Oslo hosts the Nobel Peace Prize.",
        "norway-bergen": "Bergen is a port city on the rainy west coast of Norway. Bergen was a trading post of the Hanse.",
        "norway-tromso": "Tromso is a city of Norway north of the Arctic Circle. Tromso has a university and an old cathedral.",
        "chad-overview": "Chad is a landlocked country in the centre of Africa. The capital of Chad is the city of N'Djamena.",
        "chad-economy": "The economy of Chad depends on oil, cotton and cattle. Most people in Chad live from farming.",
        "chad-lake": "Lake Chad has lost most of its surface since 1960. Lake Chad feeds millions of people in four countries.",
        "peru-andes": "The Andes cross Peru from north to south. The highest mountain of Peru is Huascaran with 6768 metres.",
        "norway-fjords": "The fjords of Norway were cut by glaciers. The longest fjord of Norway is the Sognefjord.",
    }
    urls = {"norway-oslo": "https://example.org/oslo"}
    return [Doc(i, i.replace("-", " ").title(), text, urls.get(i, "")) for i, text in facts.items()]


@dataclass
class Overlap:
    """Ranks documents by the number of distinct words shared with the query, ties by corpus order."""

    documents: list[Doc]
    calls: list[tuple[list[str], int]] = field(default_factory=list)

    async def search(self, queries: list[str], k: int) -> list[list[Doc]]:
        self.calls.append((queries, k))
        return [self._one(set(re.findall(r"\w+", q.lower())), k) for q in queries]

    def _one(self, words: set[str], k: int) -> list[Doc]:
        scores = [(len(words & set(re.findall(r"\w+", d.contents.lower()))), d) for d in self.documents]
        return [d for score, d in sorted(scores, key=lambda s: -s[0])[:k] if score]


@dataclass
class Text:
    text: str
    finish_reason: str = "stop"


@dataclass
class Scripted:
    """A policy that gives prepared replies in order and records what it was asked."""

    replies: list[Any]
    asked: list[dict[str, Any]] = field(default_factory=list)

    async def generate(self, messages: list[dict[str, str]], *, max_tokens: int | None = None, span: str | None = None) -> Text:
        self.asked.append({"messages": messages, "max_tokens": max_tokens, "span": span})
        reply = self.replies[(len(self.asked) - 1) % len(self.replies)]
        return reply if isinstance(reply, Text) else Text(reply)

    def conversation(self, messages: list[dict[str, str]]) -> Any:
        raise AssertionError("WARP prompts are independent")


def _topic(title: str, plan: str, keywords: list[str], doc_ids: list[str], subtopics: list[dict] | None = None) -> dict[str, Any]:
    topic = {"title": title, "plan": plan, "keywords": keywords, "doc_ids": doc_ids}
    return topic if subtopics is None else {**topic, "deepen": bool(subtopics), "subtopics": subtopics}


QUESTION = "Write a report on Peru, Norway and Chad, with the cities of Norway in more depth."


def _query() -> Query:
    cities = [
        _topic("Oslo", "What Oslo is known for.", ["Oslo largest city"], ["norway-oslo"]),
        _topic("Bergen", "What Bergen is known for.", ["Bergen port city"], ["norway-bergen"]),
    ]
    norway = ["norway-overview", "norway-economy"]
    topics = [
        _topic("Peru", "The country and its capital.", ["Peru country capital Lima"], ["peru-overview"], []),
        _topic("Norway", "The kingdom and its cities.", ["Norway kingdom capital"], norway, cities),
        _topic("Chad", "The country and its capital.", ["Chad landlocked country"], ["chad-overview"], []),
    ]
    return Query("q0001", {"question": QUESTION, "language": "en", "split": "train", "topics": topics})


@pytest.fixture
def corpus() -> list[Doc]:
    return _corpus()


@pytest.fixture
def retriever(corpus: list[Doc]) -> Overlap:
    return Overlap(corpus)


@pytest.fixture
def query() -> Query:
    return _query()


@pytest.fixture
def scripted() -> type[Scripted]:
    return Scripted


@pytest.fixture
def doc() -> type[Doc]:
    return Doc


@pytest.fixture
def cut() -> type[Text]:
    return Text
