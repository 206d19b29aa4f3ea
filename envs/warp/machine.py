"""The WARP state machine (Writing As Reasoning Policy, arXiv 2602.06540): pure and synchronous.

    search(outline) -> initialize -> search(section) -> write -> ... every section written -> extend --nop--> done
                                          ^                                                   |
                                          +------------------- new subsections ---------------+

The machine decides which action comes next; the model only decides to expand (and where) or to stop. An invalid reply leaves
the state as it was, to be sampled again from the same prompt, and costs a step.

    machine = WarpState(question)
    while not machine.done:
        reply = machine.parse(model(machine.prompt()))
        machine.apply(reply, documents)     # the documents of a valid search, else nothing
"""

from __future__ import annotations

from collections.abc import Sequence

from envs.warp.actions import Context, Reply, parse_reply
from envs.warp.citations import Document, PassageBook, invented_keys, keep_citations
from envs.warp.language import CountTokens, count_words, detect_language, shorten
from envs.warp.limits import Limits
from envs.warp.outline import Outline, Path, parse_position, state_hash
from envs.warp.prompts import build_prompt
from rlcore.environment import Message


class WarpState:
    """One report being written. Read `state` ("search", "initialize", "write", "extend", "done"), `cursor`, `outline`,
    `shown` (keys of the last search's passages), `book`, and the counters `step`, `expansions`, `invented`.
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
        self.invented = 0  # citation keys removed from texts because their prompt did not show them
        self.out_of_steps = False
        self._count_tokens = count_tokens
        self._last_written: Path = ()

    @property
    def done(self) -> bool:
        return self.state == "done"

    @property
    def context(self) -> Context:
        """What a reply to the current prompt is checked against."""
        expandable = self.outline.expandable(self.limits.max_levels) if self.state == "extend" and self.outline else []
        allowed = self.shown if self.state == "write" else []
        return Context(self.state, self.language, tuple(allowed), tuple(expandable))

    @property
    def hash(self) -> str:
        """Names S = (question, outline, passages) together with the action that is due; equal states have equal hashes."""
        outline = self.outline.to_json() if self.outline else None
        shown = [(key, self.book[key].contents.strip()) for key in self.shown]
        return state_hash(self.question, self.state, self.cursor, outline, shown)

    def prompt(self) -> list[Message]:
        """The messages that ask for the next action."""
        passages = [(key, self.book[key].contents.strip()) for key in self.shown]
        outline = self._view() if self.outline else None
        return build_prompt(self.state, self.question, self.limits, cursor=self.cursor, outline=outline, passages=passages)

    def parse(self, text: str, finish_reason: str = "stop") -> Reply:
        """The reply to the current prompt."""
        return parse_reply(text, self.context, self.limits, finish_reason)

    def apply(self, reply: Reply, documents: Sequence[Document] = ()) -> None:
        """Take one step. `documents` are the merged passages that a valid search found."""
        assert not self.done
        self.step += 1
        if self.state == "search":
            self._search(reply, documents)
        elif self.state == "initialize":
            self._initialize(reply)
        elif self.state == "write":
            self._write(reply)
        else:
            self._extend(reply)
        if self.step >= self.limits.max_steps and not self.done:
            self.state, self.out_of_steps = "done", True

    def _search(self, reply: Reply, documents: Sequence[Document]) -> None:
        if reply.valid:
            self.shown = list(dict.fromkeys(self.book.add(d) for d in documents))
            self.state = "initialize" if self.cursor == "outline" else "write"

    def _initialize(self, reply: Reply) -> None:
        if reply.action:
            self.outline = Outline.plan(reply.action["title"], reply.action["sections"])
            self._next_section()

    def _write(self, reply: Reply) -> None:
        if not reply.action:
            return
        assert self.outline is not None and self.cursor is not None
        content = reply.action["content"]
        self.invented += len(invented_keys(content, self.shown))
        self.outline.write(self.cursor, keep_citations(content, self.shown))
        self._last_written = parse_position(self.cursor) or ()
        self._next_section()
        if self.cursor is None:
            self.state = "extend" if self.expansions < self.limits.max_expansions else "done"
            self.expansions += self.state == "extend"

    def _extend(self, reply: Reply) -> None:
        if not reply.action:
            self.state = "extend" if self.expansions < self.limits.max_expansions else "done"
            self.expansions += 1
        elif reply.action["name"] == "nop":
            self.state = "done"
        else:
            assert self.outline is not None
            self.outline.expand(reply.action["position"], reply.action["subsections"])
            self._next_section()

    def _next_section(self) -> None:
        assert self.outline is not None
        self.state, self.cursor, self.shown = "search", self.outline.cursor(), []

    def _view(self) -> str:
        """The outline as the current prompt shows it: abbreviated, but with `full_text` the branch (level-1 section) written
        last is whole in WRITE, and everything in EXTEND."""
        assert self.outline is not None
        limits, state, last = self.limits, self.state, self._last_written

        def full(path: Path) -> bool:
            return limits.full_text and (state == "extend" or (state == "write" and path[:1] == last[:1]))

        def short(text: str) -> str:
            return shorten(text, limits.abbreviate_over, limits.abbreviate_head, limits.abbreviate_tail, self._count_tokens)

        return self.outline.view(short, full)
