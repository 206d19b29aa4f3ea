"""The scripted teacher: plays WARP from a query's `topics`, the oracle that no model is shown.

    topics: [{"title", "plan", "keywords": [...], "doc_ids": [...], "deepen": bool, "subtopics": [{"title", "plan", "keywords",
             "doc_ids"}, ...]}, ...]

One section a topic, subsections for the topics to deepen, and texts made of the found passages' own sentences. Its replies are
what a small model is first trained on, so they are short, and every thought says what decides the action.
"""

from __future__ import annotations

import json
import re
from typing import Any

from envs.warp.citations import cited_keys
from envs.warp.machine import WarpState
from envs.warp.outline import parse_position
from rlcore.errors import DataFailure
from rlcore.types import Query

MAX_SENTENCES = 3
MAX_WORDS = 60

# After a sentence's end, but not after an initial or a usual abbreviation.
_SENTENCE_END = re.compile(r"(?<=[.!?])(?<!\b[A-Z]\.)(?<!\b(?:St|Mt|Dr|Mr|Ms|No|vs)\.)\s+(?=[\"'(]?[A-Z0-9])")


class Teacher:
    """The player of one query. Raises DataFailure when the query has no topics."""

    def __init__(self, query: Query) -> None:
        self.topics: list[dict[str, Any]] = query.data.get("topics") or []
        if not self.topics:
            raise DataFailure(f"query {query.id} has no topics to play from")

    def topic(self, position: str) -> dict[str, Any]:
        """The topic (or subtopic) that the section at a position is about."""
        path = parse_position(position)
        assert path is not None, position
        topic = self.topics[path[0] - 1]
        return topic if len(path) == 1 else topic["subtopics"][path[1] - 1]

    def golden(self, cursor: str) -> list[str]:
        """Ids of the documents a search at this cursor should find: the topic's own, or each topic's first for the outline."""
        if cursor == "outline":
            return list(dict.fromkeys(doc_id for topic in self.topics for doc_id in topic["doc_ids"][:1]))
        return list(self.topic(cursor)["doc_ids"])

    def expansion(self, machine: WarpState) -> tuple[int, dict[str, Any]] | None:
        """(section number, topic) of the first topic still to be deepened, None when that is done."""
        expandable = machine.context.expandable
        for i, topic in enumerate(self.topics, 1):
            if topic["deepen"] and topic["subtopics"] and f"section-{i}" in expandable:
                return i, topic
        return None

    def reply(self, machine: WarpState) -> str:
        """The reply to the machine's current prompt."""
        plays = {"search": self._search, "initialize": self._initialize, "write": self._write, "extend": self._extend}
        thought, action = plays[machine.state](machine)
        body = action if isinstance(action, str) else json.dumps(action, ensure_ascii=False, separators=(",", ":"))
        return f"<thought>{thought}</thought><action>{body}</action>"

    def _search(self, machine: WarpState) -> tuple[str, dict[str, Any]]:
        assert machine.cursor is not None
        limit = machine.limits.max_keywords
        if machine.cursor == "outline":
            names = [topic["title"] for topic in self.topics]
            return f"The question names {len(names)} topics.", {"name": "search", "keywords": names[:limit]}
        topic = self.topic(machine.cursor)
        return f"{machine.cursor} is about {topic['title']}.", {"name": "search", "keywords": topic["keywords"][:limit]}

    def _initialize(self, machine: WarpState) -> tuple[str, dict[str, Any]]:
        names = [topic["title"] for topic in self.topics]
        title = ", ".join(names[:-1]) + " and " + names[-1] if len(names) > 1 else names[0]
        plan = {"name": "init-plan", "title": title, "sections": [_plan(topic) for topic in self.topics]}
        return f"The question names {len(names)} topics, so {len(names)} sections.", plan

    def _extend(self, machine: WarpState) -> tuple[str, dict[str, Any]]:
        due = self.expansion(machine)
        if due is None:
            return "All that the question wants in depth has subsections.", {"name": "nop"}
        i, topic = due
        subsections = [_plan(subtopic) for subtopic in topic["subtopics"]]
        thought = f"{topic['title']} is wanted in depth; section-{i} has no subsections."
        return thought, {"name": "extend-plan", "position": f"section-{i}", "subsections": subsections}

    def _write(self, machine: WarpState) -> tuple[str, str]:
        assert machine.cursor is not None
        title, wanted = self.topic(machine.cursor)["title"], self.golden(machine.cursor)
        if not machine.shown:
            return f"Nothing was found on {title}.", f"The search found no passages on {title}, so this section has no sources."
        keys = [key for doc_id in wanted for key in machine.shown if machine.book[key].id == doc_id]
        keys, others = keys or machine.shown[:1], [key for key in machine.shown if key not in keys]
        text = compose([(key, machine.book[key].contents) for key in keys])
        if len(text) <= machine.limits.min_write_chars:
            text = compose([(key, machine.book[key].contents) for key in (*keys, *others)])
        return f"On {title}: {', '.join(cited_keys(text))}.", text


def _plan(topic: dict[str, Any]) -> dict[str, str]:
    return {"title": topic["title"], "plan": topic["plan"]}


def compose(passages: list[tuple[str, str]]) -> str:
    r"""Up to three sentences of about 60 words from (key, text) passages, each with its `\cite`.

    First sentences of all passages come before second ones when there is no room for all; what is chosen keeps its order.
    """
    sentences = [
        (place, i, sentence, key)
        for i, (key, text) in enumerate(passages)
        for place, sentence in enumerate(_SENTENCE_END.split(" ".join(text.split())))
        if sentence and "#" not in sentence and "\\" not in sentence
    ]
    chosen: list[tuple[int, int, str, str]] = []
    words = 0
    for item in sorted(sentences, key=lambda s: s[:2]):
        n = len(item[2].split())
        if len(chosen) < MAX_SENTENCES and (not chosen or words + n <= MAX_WORDS):
            chosen.append(item)
            words += n
    chosen.sort(key=lambda s: (s[1], s[0]))
    return " ".join(f"{sentence.rstrip('.!?')} \\cite{{{key}}}." for _, _, sentence, key in chosen)
