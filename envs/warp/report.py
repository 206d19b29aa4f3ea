"""The report environment: plays the whole state machine with a policy and returns the rendered report."""

from __future__ import annotations

from typing import Any

from envs.warp.actions import Reply, is_encodable
from envs.warp.citations import cited_keys
from envs.warp.language import CountTokens, count_words, token_counter
from envs.warp.limits import Limits
from envs.warp.machine import WarpState
from envs.warp.passages import Retriever, retrieve
from envs.warp.render import render
from rlcore.environment import Policy
from rlcore.errors import DataFailure, NoRoom
from rlcore.types import Outcome, Query


class Report:
    """Environment of a whole report. `Query.data` needs "question", and may have "language" ("en", "zh").

    Every action is one independent `policy.generate`, its span named after the state, so that a rollout has one sequence for
    each of the outcome's steps, in the same order. `limits` holds every option. Texts are abbreviated by `count_tokens`, or
    by the tokens of a model when `tokenizer` names its folder.
    """

    def __init__(
        self,
        retriever: Retriever,
        limits: dict[str, Any] | Limits | None = None,
        count_tokens: CountTokens = count_words,
        *,
        tokenizer: str | None = None,
    ) -> None:
        self.retriever = retriever
        self.limits = Limits.of(limits)
        self.count_tokens = token_counter(tokenizer) if tokenizer else count_tokens

    async def run(self, query: Query, policy: Policy) -> Outcome:
        """Write one report. Raises DataFailure for a query without a question, InfrastructureFailure when the search fails."""
        machine = start(query, self.limits, self.count_tokens)
        steps = []
        while not machine.done:
            state, cursor, name = machine.state, machine.cursor, machine.hash
            try:
                completion = await policy.generate(machine.prompt(), max_tokens=self.limits.max_tokens(state), span=state)
            except NoRoom:  # this action fails, what is written stays
                reply = Reply(None, "no_room", None)
                machine.apply(reply)
            else:
                reply = await advance(machine, self.retriever, completion.text, completion.finish_reason)
            step = {"state": state, "cursor": cursor, "action": reply.kind, "valid": reply.valid, "error": reply.error}
            steps.append({**step, "state_hash": name})
        return finish(machine, steps)


def start(query: Query, limits: Limits, count_tokens: CountTokens = count_words) -> WarpState:
    """The state machine at the start of a query's report."""
    question = query.data.get("question")
    if not isinstance(question, str) or not question.strip() or not is_encodable(question):
        raise DataFailure(f"query {query.id} has no question")
    return WarpState(question.strip(), limits, query.data.get("language"), count_tokens)


async def advance(machine: WarpState, retriever: Retriever, text: str, finish_reason: str = "stop") -> Reply:
    """Give the machine one reply: parse it, search when it is a valid SEARCH, apply it."""
    reply = machine.parse(text, finish_reason)
    documents = []
    if reply.action is not None and reply.action["name"] == "search":
        documents = await retrieve(retriever, reply.action["keywords"], machine.cursor, machine.limits)
    machine.apply(reply, documents)
    return reply


def finish(machine: WarpState, steps: list[dict[str, Any]]) -> Outcome:
    """The outcome of a machine that is done.

    data: report_markdown (envs.warp.render_html.report_html makes a page of the data), language, outline (JSON, None if never
    planned; its texts as written, keys that their prompts did not show marked), steps, failures (the actions that failed for
    good: step, state, cursor, error), passages {key: {doc_id, title, url}}, invented (how many citations and links the report
    leaves out because no shown passage has them), complete (every section is written, from at least one passage, within the
    step limit).
    """
    if machine.outline is None:
        markdown, references, removed, written = "", [], [], []
    else:
        rendered = render(machine.outline, machine.book, machine.language)
        markdown, references, removed = rendered.markdown, rendered.references, rendered.removed
        written = [section for _, section in machine.outline.walk() if section.content is not None]
    n_sections = sum(1 for _ in machine.outline.walk()) if machine.outline else 0
    complete = not machine.out_of_steps and 0 < n_sections == len(written) and len(machine.book) > 0
    metrics = {
        "complete": float(complete),
        "steps": float(machine.step),
        "valid_share": sum(s["valid"] for s in steps) / len(steps),
        "sections": float(n_sections),
        "expanded": float(sum(s["action"] == "expand" for s in steps)),
        "references": float(len(references)),
        "citations": float(sum(key in machine.book for section in written for key in cited_keys(section.content or ""))),
        "invented": float(len(removed)),
        "failures": float(len(machine.failures)),
    }
    data = {
        "report_markdown": markdown,
        "language": machine.language,
        "outline": machine.outline.to_json() if machine.outline else None,
        "steps": steps,
        "failures": machine.failures,
        "passages": machine.book.to_json(),
        "invented": len(removed),
        "complete": complete,
    }
    return Outcome(data, metrics, truncated=machine.out_of_steps)
