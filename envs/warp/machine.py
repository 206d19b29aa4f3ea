"""The WARP state machine (Writing As Reasoning Policy, arXiv 2602.06540): pure and synchronous.

    search(outline) -> initialize -> search(section) -> write -> ... every section written -> extend --nop--> done
                                          ^                                                   |
                                          +------------------- new subsections ---------------+

The state says which action is due; the model only decides to expand (and where) or to stop. An invalid reply leaves the state as
it was, to be sampled again from the same prompt, and costs a step. After `max_reasks` of them the action is given up: the
section stays unwritten, visibly; without an outline, or in EXTEND, the report ends.

`control: free` lets the model take any action that is possible, whatever is due:

    search       while there is no outline, or a section is due (neither written nor given up)
    initialize   while there is no outline
    write        while a section is due: the first in reading order
    expand       of a written section above the last level and without subsections, within `max_expansions`
    terminate    once no section is due

`control: plan_then_write` plans every level in INITIALIZE, and is done when every section is written.

    machine = WarpState(question)
    while not machine.done:
        reply = machine.parse(model(machine.prompt()))
        machine.apply(reply, documents)     # the documents of a valid search, else nothing
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from envs.warp.actions import Context, Reply, parse_reply
from envs.warp.citations import Document, PassageBook, mark_invented
from envs.warp.language import CountTokens, count_words, detect_language, shorten
from envs.warp.limits import Limits
from envs.warp.outline import Outline, Path, parse_position, state_hash
from envs.warp.prompts import Refusal, build_prompt, wording
from rlcore.environment import Message


class WarpState:
    """One report being written. Read `state` ("search", "initialize", "write", "extend", "done"), `cursor`, `outline`,
    `shown` (keys of the last search's passages), `book`, the counters `step` and `expansions`, and `failures`: the actions that
    failed for good, which are those given up and, in free control, every impossible one.
    """

    def __init__(
        self, question: str, limits: Limits | None = None, language: str | None = None, count_tokens: CountTokens = count_words
    ) -> None:
        self.question = question
        self.limits = limits or Limits()
        self.language = language or detect_language(question)
        self.state = "search"
        self.cursor: str | None = "outline"
        self.outline: Outline | None = None
        self.book = PassageBook()
        self.shown: list[str] = []
        self.step = 0
        self.expansions = 0  # deepening attempts, failed ones included
        self.failures: list[dict[str, Any]] = []  # {"step", "state", "cursor", "error"}
        self.out_of_steps = False
        self._refusal: Refusal | None = None
        self._reasks = 0  # bad replies in a row
        self._given_up: set[str] = set()
        self._short: dict[str, str] = {}
        self._count_tokens = count_tokens
        self._last_written: Path = ()

    @property
    def done(self) -> bool:
        return self.state == "done"

    @property
    def context(self) -> Context:
        """What a reply to the current prompt is checked against."""
        free = self.limits.control == "free"
        expandable = self._expandable() if free or self.state == "extend" else []
        allowed = self.shown if free or self.state == "write" else []
        return Context(self.state, self.language, tuple(allowed), tuple(expandable), self._legal(expandable) if free else None)

    def _expandable(self) -> list[str]:
        if self.outline is None or (self.state != "extend" and self.expansions >= self.limits.max_expansions):
            return []
        return self.outline.expandable(self.limits.max_levels)

    def _legal(self, expandable: Sequence[str]) -> tuple[str, ...]:
        if self.outline is None:
            return ("search", "initialize")
        due = ("search", "write") if self.cursor else ("terminate",)
        return due + (("expand",) if expandable else ())

    @property
    def hash(self) -> str:
        """Names S = (question, outline, passages) together with the action that is due; equal states have equal hashes."""
        outline = self.outline.to_json() if self.outline else None
        shown = [(key, self.book[key].contents.strip()) for key in self.shown]
        refusal = [self._refusal.error] if self._refusal else []  # the prompt shows it
        return state_hash(self.question, self.state, self.cursor, outline, shown, *refusal)

    def prompt(self) -> list[Message]:
        """The messages that ask for the next action."""
        passages = [(key, self.book[key].contents.strip()) for key in self.shown]
        outline = self._view() if self.outline else None
        return build_prompt(
            self.state,
            self.question,
            self.limits,
            cursor=self.cursor,
            outline=outline,
            passages=passages,
            language=self.language,
            refusal=self._refusal,
        )

    def parse(self, text: str, finish_reason: str = "stop") -> Reply:
        """The reply to the current prompt."""
        return parse_reply(text, self.context, self.limits, finish_reason)

    def apply(self, reply: Reply, documents: Sequence[Document] = ()) -> None:
        """Take one step. `documents` are the merged passages that a valid search found."""
        assert not self.done
        self.step += 1
        if reply.action is None:
            assert reply.error is not None
            self._refuse(reply.error)
        else:
            self._refusal, self._reasks = None, 0
            self._act(reply.kind, reply.action, documents)
        if self.step >= self.limits.max_steps and not self.done:
            self.state, self.out_of_steps = "done", True

    def _act(self, kind: str | None, action: dict[str, Any], documents: Sequence[Document]) -> None:
        if kind == "search":
            self.shown = list(dict.fromkeys(self.book.add(d) for d in documents))
            self.state = "initialize" if self.outline is None else "write"
        elif kind == "initialize":
            self.outline = Outline.plan(action["title"], action["sections"])
            self._next_section()
        elif kind == "write":
            self._write(action["content"])
        elif kind == "expand":
            assert self.outline is not None
            self.expansions += self.state != "extend"  # which counted it when it began
            self.outline.expand(action["position"], action["subsections"])
            self._next_section()
        else:
            self.state = "done"

    def _write(self, content: str) -> None:
        assert self.outline is not None and self.cursor is not None
        self.outline.write(self.cursor, mark_invented(content, self.shown))
        self._last_written = parse_position(self.cursor) or ()
        self._next_section()

    def _refuse(self, error: str) -> None:
        limits, attempted = self.limits, self.state
        told = error == "illegal" or limits.show_errors
        self._refusal = Refusal(error, self.context.legal or ()) if told else None
        if attempted == "extend":  # an attempt is one even when it fails
            self.state = "extend" if self.expansions < limits.max_expansions else "done"
            self.expansions += 1
        if error == "illegal" or self.done:
            self._fail(error, attempted)
        self._reasks += 1
        # The prompt that left no room for a reply would leave none again.
        if not self.done and (error == "no_room" or (limits.max_reasks is not None and self._reasks > limits.max_reasks)):
            self._give_up(error)

    def _give_up(self, error: str) -> None:
        if error != "illegal":  # which is on record already
            self._fail(error, self.state)
        self._refusal, self._reasks = None, 0
        if self.outline is None or self.cursor is None:
            self.state = "done"
        else:
            self._given_up.add(self.cursor)
            self._next_section()

    def _fail(self, error: str, state: str) -> None:
        self.failures.append({"step": self.step, "state": state, "cursor": self.cursor, "error": error})

    def _next_section(self) -> None:
        assert self.outline is not None
        self.state, self.cursor, self.shown = "search", self.outline.cursor(self._given_up), []
        if self.cursor is None:
            more = self.limits.control != "plan_then_write" and self.expansions < self.limits.max_expansions
            self.state = "extend" if more else "done"
            self.expansions += more

    def _view(self) -> str:
        """The outline as the current prompt shows it: abbreviated, but with `full_text` the branch (level-1 section) written
        last is whole in WRITE, and everything in EXTEND."""
        assert self.outline is not None
        limits, state, last = self.limits, self.state, self._last_written

        def full(path: Path) -> bool:
            return limits.full_text and (state == "extend" or (state == "write" and path[:1] == last[:1]))

        def short(text: str) -> str:
            if text not in self._short:  # counting with a tokenizer takes time, and texts do not change
                head, tail = limits.abbreviate_head, limits.abbreviate_tail
                self._short[text] = shorten(text, limits.abbreviate_over, head, tail, self._count_tokens)
            return self._short[text]

        draft = limits.condition_on_draft or state == "extend"
        return self.outline.view(short, full, wording(self.language).title, draft)
