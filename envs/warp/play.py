"""One query played to its end by a teacher, which gives a sample for every action and every draft on the way.

    query --(teacher, search)--> samples [S]: search, initialize, search, write, ..., write | expand, search, write, ... | ...
                                                                                D_1         |                         D_2

A draft is the report whenever nothing planned is unwritten: D_1 before the first decision to expand or to stop, D_{i+1} after the
i-th expansion (arXiv 2602.06540).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from envs.warp.actions import Reply
from envs.warp.citations import cited_keys
from envs.warp.journal import Journal
from envs.warp.language import CountTokens, count_words
from envs.warp.limits import Limits
from envs.warp.machine import WarpState
from envs.warp.passages import Retriever
from envs.warp.report import advance, finish, start
from envs.warp.samples import Sample
from envs.warp.teacher import Teacher
from rlcore.errors import InfrastructureFailure
from rlcore.types import Query, RewardResult, Trajectory

Score = Callable[[Trajectory], Awaitable[RewardResult]]


@dataclass(slots=True)
class Draft:
    """D_i: the report after the first `actions` samples, in Markdown, with `sections[l]` sections at level l + 1. `score` is None
    where drafts are not scored."""

    actions: int
    sections: list[int]
    report: str
    score: float | None


@dataclass(slots=True)
class Played:
    """A query's samples and drafts, in order. `stop` is the teacher's TERMINATE, for the draft that turns out to be the best.
    Plain JSON data by `asdict`; `from_json` is the inverse."""

    query_id: str
    split: str
    samples: list[Sample]
    drafts: list[Draft]
    stop: str

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> Played:
        return cls(**{**row, "drafts": [Draft(**draft) for draft in row["drafts"]]})


async def play(
    query: Query,
    teacher: Teacher,
    retriever: Retriever,
    limits: Limits | None = None,
    *,
    count_tokens: CountTokens = count_words,
    score: Score | None = None,
    journal: Journal | None = None,
) -> Played:
    """Play one query. With `score` (the report reward) every draft gets one, and the step limit may end a deepening midway: the
    teacher goes on for as long as it can. `journal` remembers replies and scores.

    Raises ValueError when a reply is invalid (a scripted teacher's oracle does not fit the limits) or no report gets complete,
    DataFailure for a query that cannot be played, and InfrastructureFailure when search, model or reward fail.
    """
    machine, journal = start(query, limits or Limits(), count_tokens), journal or Journal(None)
    samples: list[Sample] = []
    drafts: list[Draft] = []
    found: list[list[str]] = []  # keys of the passages that each search found
    while not machine.done:
        sample = _question(machine, query)
        output = await journal.once(f"reply {machine.step} {sample['state_hash']}", lambda: teacher.reply(machine))
        reply = await advance(machine, retriever, output)
        if reply.error:
            raise ValueError(f"the teacher's reply in state {sample['state']} is invalid ({reply.error}): {output}")
        answer = {"action": reply.kind, "output": output, "reference": _reference(sample["cursor"], reply, teacher, query)}
        samples.append({**sample, **answer, "id": f"{query.id}/{machine.step}-{reply.kind}"})
        if reply.kind == "search":
            found.append(list(machine.shown))
        if reply.kind == "write" and machine.cursor is None:
            drafts.append(await _draft(len(drafts) + 1, machine, samples, query, score, journal))
    if machine.out_of_steps and not (score and drafts):
        raise ValueError(f"the report is not complete after limits.max_steps={machine.limits.max_steps}")
    _fill_golden(samples, found, machine)
    return Played(query.id, samples[0]["split"], samples, drafts, teacher.stop(machine.language))


async def _draft(
    number: int, machine: WarpState, samples: list[Sample], query: Query, score: Score | None, journal: Journal
) -> Draft:
    """The machine's report as D_number. A draft whose score cannot be had ends the query: the best would not be known."""
    names = ("state", "cursor", "action", "state_hash")
    outcome = finish(machine, [{**{name: s[name] for name in names}, "valid": True, "error": None} for s in samples])

    async def ask() -> float:
        assert score is not None
        result = await score(Trajectory(query, f"draft:{query.id}", number, outcome=outcome))
        if result.value is None:
            raise InfrastructureFailure(f"draft {number} has no score: {result.reason}")
        return result.value

    value = await journal.once(f"score {number} {machine.hash}", ask) if score else None
    return Draft(len(samples), _levels(outcome.data["outline"]["sections"]), outcome.data["report_markdown"], value)


def _levels(sections: list[dict[str, Any]]) -> list[int]:
    """How many sections there are at each level."""
    counts = []
    while sections:
        counts.append(len(sections))
        sections = [child for section in sections for child in section["subsections"]]
    return counts


def _question(machine: WarpState, query: Query) -> Sample:
    """The part of a sample that is known before the reply."""
    context = machine.context
    return {
        "query_id": query.id,
        "split": query.data.get("split", "train"),
        "language": machine.language,
        "state": machine.state,
        "question": machine.question,
        "cursor": machine.cursor,
        "messages": machine.prompt(),
        "passages": [{"key": key, "text": machine.book[key].contents.strip()} for key in machine.shown],
        "allowed_keys": list(context.allowed_keys),
        "expandable": list(context.expandable),
        "state_hash": machine.hash,
    }


def _reference(cursor: str | None, reply: Reply, teacher: Teacher, query: Query) -> dict[str, Any]:
    """What a reward compares a model's action with."""
    assert reply.action is not None
    if reply.kind == "search":
        assert cursor is not None
        return {"golden_doc_ids": teacher.golden(cursor)}
    if reply.kind == "initialize":
        titles = [section["title"] for section in reply.action["sections"]]
        topics = [topic["title"] for topic in query.data.get("topics") or []]
        return {"titles": titles, "required": topics or titles}
    if reply.kind == "write":
        return {"citations": cited_keys(reply.action["content"])}
    return {"decision": reply.kind, "position": reply.action.get("position")}


def _fill_golden(samples: list[Sample], found: list[list[str]], machine: WarpState) -> None:
    """Name the golden documents of the searches that have none yet: those of the found passages that the section's text cites
    (for the outline, the texts of the first level), or all that were found when it cites none of them."""
    cited: dict[str, list[str]] = {s["cursor"]: s["reference"]["citations"] for s in samples if s["action"] == "write"}
    cited["outline"] = [key for cursor, keys in cited.items() if "." not in cursor for key in keys]
    searches = [sample for sample in samples if sample["action"] == "search"]
    for sample, keys in zip(searches, found, strict=True):
        if sample["reference"]["golden_doc_ids"] is None:
            used = [key for key in keys if key in cited.get(sample["cursor"], [])] or keys
            sample["reference"]["golden_doc_ids"] = list(dict.fromkeys(machine.book[key].id for key in used))
