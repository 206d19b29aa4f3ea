"""The teachers, who play WARP for others to learn from.

`ScriptedTeacher` plays from a query's `topics`, the oracle that no model is shown:

    topics: [{"title", "plan", "keywords": [...], "doc_ids": [...], "deepen": bool, "subtopics": [{"title", "plan", "keywords",
             "doc_ids"}, ...]}, ...]

One section a topic, subsections for the topics to deepen, and texts made of the found passages' own sentences. Its replies are
what a small model is first trained on, so they are short, and every thought says what decides the action.

`ModelTeacher` asks a language model with the very prompts that its pupil will get.

`force` makes a teacher expand at every deepening for as long as anything can be expanded, whether the question wants it or not;
envs/warp/pruning.py then finds the draft at which it should have stopped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Protocol

from envs.warp.citations import cited_keys, invented_keys
from envs.warp.machine import WarpState
from envs.warp.outline import parse_position
from rlcore.environment import Policy
from rlcore.errors import DataFailure
from rlcore.types import Query

MAX_SENTENCES = 3
MAX_WORDS = 60

_DEEP_ENOUGH = "All that the question wants in depth has subsections."
_STOP = {
    "en": "The report answers the question; more subsections would not make it better.",
    "zh": "报告已经回答了问题，再增加小节不会更好。",
}
_GO_ON = {
    "en": "Do not stop yet: expand the section that gains most from it.",
    "zh": "现在还不要结束：请扩展最值得深入的一节。",
}

# After a sentence's end, but not after an initial or a usual abbreviation.
_SENTENCE_END = re.compile(r"(?<=[.!?])(?<!\b[A-Z]\.)(?<!\b(?:St|Mt|Dr|Mr|Ms|No|vs)\.)\s+(?=[\"'(]?[A-Z0-9])")


class Teacher(Protocol):
    """The player of one query."""

    async def reply(self, machine: WarpState) -> str:
        """The reply to the machine's current prompt."""
        ...

    def golden(self, cursor: str) -> list[str] | None:
        """Ids of the documents that a search at this cursor should find; None: those that the texts will cite."""
        ...

    def stop(self, language: str) -> str:
        """A TERMINATE in this teacher's style, for the step at which it should have stopped."""
        ...


class ScriptedTeacher:
    """The player of one query's topics. Raises DataFailure when the query has none.

    Forced, it goes on with the topics that the question does not want in depth: by their subtopics, or where they have none by
    their own keywords, one subsection each. Such a subsection repeats what its section says, so a report gets no better by it.
    """

    def __init__(self, query: Query, force: bool = False) -> None:
        self.force = force
        self.topics: list[dict[str, Any]] = query.data.get("topics") or []
        if not self.topics:
            raise DataFailure(f"query {query.id} has no topics to play from")

    def topic(self, position: str) -> dict[str, Any]:
        """The topic (or subtopic) that the section at a position is about."""
        path = parse_position(position)
        assert path is not None, position
        topic = self.topics[path[0] - 1]
        return topic if len(path) == 1 else _subtopics(topic)[path[1] - 1]

    def golden(self, cursor: str) -> list[str]:
        """The topic's own documents, or each topic's first for the outline."""
        if cursor == "outline":
            return list(dict.fromkeys(doc_id for topic in self.topics for doc_id in topic["doc_ids"][:1]))
        return list(self.topic(cursor)["doc_ids"])

    def expansion(self, machine: WarpState) -> tuple[int, dict[str, Any]] | None:
        """(section number, topic) of the first topic still to be deepened, None when that is done."""
        expandable = machine.context.expandable
        left = [(i, topic) for i, topic in enumerate(self.topics, 1) if f"section-{i}" in expandable]
        wanted = [(i, topic) for i, topic in left if topic["deepen"] and topic["subtopics"]]
        least = machine.limits.min_subsections
        spare = [(i, topic) for i, topic in left if self.force and len(_subtopics(topic)) >= least]
        return next(iter(wanted + spare), None)

    def stop(self, language: str) -> str:
        return _reply(_DEEP_ENOUGH, {"name": "nop"})

    async def reply(self, machine: WarpState) -> str:
        plays: dict[str, Callable[[WarpState], tuple[str, dict[str, Any] | str]]] = {
            "search": self._search,
            "initialize": self._initialize,
            "write": self._write,
            "extend": self._extend,
        }
        thought, action = plays[machine.state](machine)
        assert isinstance(action, str | dict)
        return _reply(thought, action)

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
            return _DEEP_ENOUGH, {"name": "nop"}
        i, topic = due
        subsections = [_plan(subtopic) for subtopic in _subtopics(topic)]
        reason = "is wanted in depth" if topic["deepen"] else "can be divided"
        thought = f"{topic['title']} {reason}; section-{i} has no subsections."
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


class ModelTeacher:
    """A language model as the player of one query.

    `ask(name)` gives the policy for one call; the name (query, state, attempt) is what a seed may be made of. What counts is the
    action that was parsed, written out anew, so a sample holds nothing that parsing had to overlook. A reply that is invalid,
    has no thought or cites what was not shown is asked for again, up to `attempts` times in all; then DataFailure.
    """

    def __init__(self, query: Query, ask: Callable[[str], Policy], attempts: int, force: bool = False) -> None:
        self.query_id, self.ask, self.attempts, self.force = query.id, ask, attempts, force

    def golden(self, cursor: str) -> None:
        return None

    def stop(self, language: str) -> str:
        return _reply(_STOP["zh" if language == "zh" else "en"], {"name": "nop"})

    async def reply(self, machine: WarpState) -> str:
        forced = self.force and machine.state == "extend"
        if forced and not machine.context.expandable:
            return self.stop(machine.language)
        messages = machine.prompt()
        if forced:  # only the teacher is told; the sample has the prompt as a pupil will see it
            order = _GO_ON["zh" if machine.language == "zh" else "en"]
            messages = [*messages[:-1], {**messages[-1], "content": f"{messages[-1]['content']}\n{order}"}]
        problem: str | None = None
        for attempt in range(self.attempts):
            policy = self.ask(f"{self.query_id}/{machine.step}/{machine.hash}/{attempt}")
            limit = machine.limits.max_tokens(machine.state)
            completion = await policy.generate(messages, max_tokens=limit, span=machine.state)
            reply = machine.parse(completion.text, completion.finish_reason)
            if reply.action is None:
                problem = reply.error
            elif reply.thought is None:
                problem = "missing_thought"
            elif forced and reply.kind == "terminate":
                problem = "stopped"
            elif reply.kind == "write" and invented_keys(reply.action["content"], machine.shown):
                problem = "invented_citation"
            else:
                output = _reply(reply.thought, reply.action["content"] if reply.kind == "write" else reply.action)
                if machine.parse(output).action == reply.action:
                    return output
                problem = "ambiguous"  # written out anew it reads otherwise, as with a tag inside a thought or a title
        raise DataFailure(f"no usable reply in {self.attempts} attempts at {machine.state} {machine.cursor or ''}: {problem}")


def _reply(thought: str, action: dict[str, Any] | str) -> str:
    """A reply in the one format; a WRITE's action is its text."""
    body = action if isinstance(action, str) else json.dumps(action, ensure_ascii=False, separators=(",", ":"))
    return f"<thought>{thought}</thought><action>{body}</action>"


def _subtopics(topic: dict[str, Any]) -> list[dict[str, Any]]:
    """The topic's subtopics; where it has none, its own keywords as such."""
    return topic["subtopics"] or [
        {"title": keyword[:1].upper() + keyword[1:], "plan": f"Cover the {keyword}.", "keywords": [keyword], "doc_ids": [doc_id]}
        for keyword, doc_id in zip(topic["keywords"], topic["doc_ids"], strict=False)
    ]


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
