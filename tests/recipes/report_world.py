"""Whole reports without a model: four documents, and a writer whose replies follow from the kind of action and the prompt."""

from __future__ import annotations

import json
import re
from typing import Any

from envs.retrieval.corpus import Document
from rlcore.types import Query
from tests.fakes_retrieval import StaticRetriever

FACTS = {
    "Peru": "The capital of Peru is Lima and its continent is South America.",
    "Chad": "The capital of Chad is the city of N'Djamena in central Africa.",
    "Oman": "The capital of Oman is Muscat and its continent is Asia.",
    "Lima": "Lima is the capital of Peru and has 7,737,002 inhabitants.",
}
QUESTION = "Write a report on Peru, Chad and Oman, and go deeper into Lima."
QUERY = Query("q1", {"question": QUESTION, "language": "en"})
EXPANDED = ["section-1", "section-2", "section-3", "section-1.1"]  # in the order in which the writer deepens


def retriever(**_: Any) -> StaticRetriever:
    return StaticRetriever([Document(name.lower(), name, text, f"https://example.org/{name}") for name, text in FACTS.items()])


def nodes(*titles: str) -> list[dict[str, str]]:
    return [{"title": title, "plan": f"What is known of {title}."} for title in titles]


def reply(state: str, prompt: str, note: str = "", expansions: int = 0) -> str:
    """A valid reply; `note` goes into the texts, `expansions` is how many the report has had so far (EXTEND only)."""
    action: Any = {"name": "search", "keywords": ["capital of Peru", "capital of Chad"]}
    if state == "initialize":
        action = {"name": "init-plan", "title": "Three countries", "sections": nodes("Peru", "Chad", "Oman")}
    elif state == "extend":
        position = EXPANDED[expansions]
        action = {"name": "extend-plan", "position": position, "subsections": nodes(f"{position} A", f"{position} B")}
    body = json.dumps(action)
    if state == "write":
        key = re.findall(r"textid\d+", prompt)[0]
        body = f"The capital of Peru is Lima and its continent is South America \\cite{{{key}}}. {note}"
    return f"<thought>next</thought><action>{body}</action>"


NOP = '<thought>enough</thought><action>{"name":"nop"}</action>'
