"""How many actions per second the WARP environment itself can take: a policy and a retriever that answer at once.

    python -m tools.bench_warp --reports 5

Prints one JSON line for each configuration: actions, seconds of CPU time, actions per second and core.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any

from envs.warp.report import Report
from rlcore.types import Query

WORDS = "The survey of the coast records how towns, ports and fishing grounds changed over the last hundred years of trade."


@dataclass(frozen=True)
class _Document:
    id: str
    title: str
    contents: str
    url: str


class Retriever:
    """Twenty new passages of about 80 words for every keyword."""

    def __init__(self) -> None:
        self.served = 0

    async def search(self, queries: list[str], k: int) -> list[list[_Document]]:
        return [[self._document() for _ in range(k)] for _ in queries]

    def _document(self) -> _Document:
        self.served += 1
        return _Document(f"d{self.served}", f"Document {self.served}", f"{self.served} " + WORDS * 4, "")


@dataclass(frozen=True)
class _Text:
    text: str
    finish_reason: str = "stop"


@dataclass
class Policy:
    """A long report: 7 sections, then `expansions` deepenings of 4 subsections, every text about 400 words with citations."""

    expansions: int
    prompt_characters: int = 0
    keys: list[str] = field(default_factory=list)

    async def generate(self, messages: list[dict[str, str]], *, max_tokens: int | None = None, span: str | None = None) -> _Text:
        prompt = messages[1]["content"]
        self.prompt_characters += len(prompt)
        body = self._write(prompt) if span == "write" else json.dumps(self._action(span, prompt))
        return _Text(f"<thought>The next step.</thought><action>{body}</action>")

    def conversation(self, messages: list[dict[str, str]]) -> Any:
        raise NotImplementedError("WARP's prompts are independent")

    def _write(self, prompt: str) -> str:
        key = next(line for line in prompt.splitlines() if line.startswith("textid")).partition(":")[0]
        return f"{WORDS} {WORDS} \\cite{{{key}}} " * 10

    def _action(self, state: str | None, prompt: str) -> dict[str, Any]:
        def items(n: int) -> list[dict[str, str]]:
            return [{"title": f"Part {i}", "plan": WORDS} for i in range(n)]

        if state == "search":
            return {"name": "search", "keywords": ["coast", "ports", "trade"]}
        if state == "initialize":
            return {"name": "init-plan", "title": "Coasts", "sections": items(7)}
        leaves = [line.split()[0] for line in prompt.splitlines() if line.lstrip().startswith("section-")]
        open_leaves = [p for p in leaves if p.count(".") < 2 and not any(q.startswith(p + ".") for q in leaves)]
        if self.expansions == 0 or not open_leaves:
            return {"name": "nop"}
        self.expansions -= 1
        return {"name": "extend-plan", "position": open_leaves[0], "subsections": items(4)}


def measure(limits: dict[str, Any], reports: int) -> dict[str, Any]:
    """Play whole reports and time them, in seconds of CPU time of this process."""
    environment = Report(Retriever(), {**limits, "max_steps": 140})
    actions = 0
    began = time.process_time()
    for i in range(reports):
        outcome = asyncio.run(environment.run(Query(f"b{i}", {"question": "How did the coasts change?"}), Policy(expansions=8)))
        assert outcome.data["complete"], outcome.data["failures"]
        actions += len(outcome.data["steps"])
    seconds = time.process_time() - began
    return {"options": limits, "actions": actions, "cpu_s": round(seconds, 2), "actions_per_s": round(actions / seconds)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reports", type=int, default=5, help="reports of 88 actions for each configuration")
    arguments = parser.parse_args()
    for limits in ({}, {"parsing": "tolerant", "prompts": "detailed"}):
        print(json.dumps(measure(limits, arguments.reports)))


if __name__ == "__main__":
    main()
