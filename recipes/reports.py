"""One report written to a file, in steps that survive an interruption.

    environment --generate--> journal --(new)--> model       <name>.md, .html    the report
                <--search---- journal --(new)--> retriever   <name>.state.json   every answer so far, written whole after each

An environment is a deterministic function of the answers it gets. So an interrupted report goes on by playing it again from the
answers on file, without asking model or search for any of them; the n-th request uses the seed `seed + n`, whenever it is made.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from envs.retrieval.corpus import Document
from envs.warp.render import unresolved_markers
from envs.warp.render_html import report_html
from rlcore.config import Config
from rlcore.endpoint import EndpointReply
from rlcore.environment import Environment, Message
from rlcore.errors import ConfigError, DataFailure, NoRoom
from rlcore.evaluation import EVALUATION_SEED
from rlcore.files import write_atomic
from rlcore.policy import RecordingPolicy
from rlcore.runtime import Runtime
from rlcore.sampling import Sampling
from rlcore.types import Outcome, Query, Trajectory

Ask = Callable[[list[Message], int | None, int], Awaitable[EndpointReply]]  # (messages, max_tokens, seed)


class Journal:
    """The answers to a report's requests in their order, and the file that holds them.

    `settings` says what the answers depend on (question, model, seed, limits ...); `known` is how many answers were on file.
    Raises ConfigError for a file of other settings: its answers would not be those of this report.
    """

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self.path, self.settings = path, settings
        self.entries: list[dict[str, Any]] = []
        self.requests = 0
        if path.is_file():
            saved = json.loads(path.read_text(encoding="utf-8"))
            if saved["settings"] != settings:
                keys = saved["settings"].keys() | settings.keys()
                other = sorted(key for key in keys if saved["settings"].get(key) != settings.get(key))
                raise ConfigError(
                    f"{path} was begun with another {', '.join(other)}; name another file, or delete it to start anew"
                )
            self.entries = saved["entries"]
        self.known = len(self.entries)

    async def once(self, request: Any, ask: Callable[[int], Awaitable[Any]]) -> Any:
        """The answer (plain JSON data) to the next request: the one on file, else that of `ask(number of the request)`.

        Raises ConfigError when the file has the answer to another request: something the report depends on has changed.
        """
        number, name = self.requests, hashlib.sha256(json.dumps(request).encode()).hexdigest()[:16]
        self.requests += 1
        if number < len(self.entries):
            entry = self.entries[number]
            if entry["request"] != name:
                raise ConfigError(
                    f"{self.path}: request {number} is not the one that was answered (another corpus, or another version of the "
                    "environment); delete the file to start anew"
                )
            if "failure" in entry:
                raise NoRoom(entry["failure"])
            return entry["answer"]
        try:
            answer = await ask(number)
        except NoRoom as error:  # the environment goes on with it, as with an answer; anything else is worth asking again
            self._append({"request": name, "failure": str(error)})
            raise
        self._append({"request": name, "answer": answer})
        return answer

    def _append(self, entry: dict[str, Any]) -> None:
        self.entries.append(entry)
        write_atomic(self.path, json.dumps({"settings": self.settings, "entries": self.entries}, ensure_ascii=False))


class JournalledPolicy:
    """A policy for independent prompts that answers from the journal. `watch(span)` is called before every request."""

    def __init__(self, ask: Ask, journal: Journal, seed: int, watch: Callable[[str], None]) -> None:
        self._ask, self._journal, self._seed, self._watch = ask, journal, seed, watch

    async def generate(self, messages: list[Message], *, max_tokens: int | None = None, span: str | None = None) -> EndpointReply:
        self._watch(span or "")

        async def ask(number: int) -> dict[str, str]:
            reply = await self._ask(messages, max_tokens, (self._seed + number) % 2**31)
            return {"text": reply.text, "finish_reason": reply.finish_reason}

        return EndpointReply(**await self._journal.once(["generate", messages, max_tokens], ask))

    def conversation(self, messages: list[Message]) -> Any:
        raise DataFailure("a report is written in independent prompts, not in a conversation")


class JournalledRetriever:
    """A retriever that answers from the journal."""

    def __init__(self, retriever: Any, journal: Journal) -> None:
        self._retriever, self._journal = retriever, journal

    async def search(self, queries: Sequence[str], k: int) -> list[list[Document]]:
        async def ask(number: int) -> list[list[dict[str, Any]]]:
            return [[asdict(document) for document in found] for found in await self._retriever.search(queries, k)]

        answer = await self._journal.once(["search", list(queries), k], ask)
        return [[Document(**document) for document in found] for found in answer]


async def write_report(
    query: Query,
    make: Callable[[Any], Environment],
    retriever: Any,
    ask: Ask,
    path: Path,
    settings: dict[str, Any],
    seed: int = EVALUATION_SEED,
    watch: Callable[[str], None] = lambda span: None,
) -> Outcome:
    """Write the report of `make(retriever)` on a query to `path` (Markdown, and HTML beside it); goes on where it stopped.

    Raises ConfigError when the state is another report's, and what the environment raises.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    journal = Journal(path.with_suffix(".state.json"), {"question": query.data.get("question"), "seed": seed, **settings})
    policy = JournalledPolicy(ask, journal, seed, watch)
    outcome = await make(JournalledRetriever(retriever, journal)).run(query, policy)
    markdown = outcome.data["report_markdown"]
    assert not unresolved_markers(markdown), "the renderer wrote a marker without a reference"
    write_atomic(path, markdown)
    write_atomic(path.with_suffix(".html"), report_html(outcome.data))
    return outcome


def describe(outcome: Outcome) -> str:
    """One line on a report."""
    m = outcome.metrics
    state = "complete" if m["complete"] else "incomplete"
    return (
        f"{state}; {m['steps']:.0f} actions, {m['sections']:.0f} sections, {m['citations']:.0f} citations, "
        f"{m['references']:.0f} references, {m['invented']:.0f} invented ones removed"
    )


def report_settings(config: Config, model: str) -> dict[str, Any]:
    """What a report's answers depend on besides its question and seed."""
    e, services = config.evaluate, {name: asdict(service) for name, service in config.env.services.items()}
    settings = {"model": model, "env": config.env.args, "services": services}
    return settings | {"temperature": e.report_temperature, "max_tokens": e.max_tokens}


def ask_engines(runtime: Runtime, query: Query) -> Ask:
    """Completions by the runtime's engines, sampled as `evaluate` says for reports; an environment's own limit goes first."""
    config = runtime.config
    sampling = Sampling(temperature=config.evaluate.report_temperature, max_tokens=config.evaluate.max_tokens)

    async def ask(messages: list[Message], max_tokens: int | None, seed: int) -> EndpointReply:
        policy = RecordingPolicy(
            runtime.engines,
            runtime.renderer,
            replace(sampling, seed=seed, max_tokens=max_tokens or sampling.max_tokens),
            config.model.max_model_len,
            Trajectory(query, f"report:{query.id}", 0),
            config.cluster.call_timeout_s,
        )
        reply = await policy.generate(messages)
        return EndpointReply(reply.text, reply.finish_reason)

    return ask
