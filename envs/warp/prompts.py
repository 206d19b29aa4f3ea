"""The prompt of each state: what the state machine knows, then one line that says what to do and in which form.

Every action is an independent prompt of one system and one user message. Inputs go in as they are, nothing is escaped. The
instructions are short on purpose: small models must learn them, and a report repeats them a hundred times.
"""

from __future__ import annotations

from envs.warp.limits import Limits
from rlcore.environment import Message

SYSTEM = "You write a cited research report step by step. Reply: <thought>one short reason</thought><action>...</action>"


def build_prompt(
    state: str, question: str, limits: Limits, *, cursor: str | None, outline: str | None, passages: list[tuple[str, str]]
) -> list[Message]:
    """The messages for one action.

    `outline` is the outline as text (None before there is one), `passages` the (key, text) pairs of the last search.
    """
    parts = [f"Question: {question}"]
    if outline is not None:
        parts.append(outline)
    if state in ("initialize", "write"):
        parts += [f"{key}: {text}" for key, text in passages] or ["The search found no passages."]
    parts.append("Task: " + _TASKS[state](cursor, limits, bool(passages)))
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "\n".join(parts)}]


def _search(cursor: str | None, limits: Limits, found: bool) -> str:
    return f'find passages for {cursor}. Action: {{"name":"search","keywords":["..."]}}, 1-{limits.max_keywords} keywords.'


def _initialize(cursor: str | None, limits: Limits, found: bool) -> str:
    return (
        'plan the report. Action: {"name":"init-plan","title":"...","sections":[{"title":"...","plan":"..."}]}, '
        f"{limits.min_sections}-{limits.max_sections} sections."
    )


def _write(cursor: str | None, limits: Limits, found: bool) -> str:
    sources = "from the passages, citing each as \\cite{textidN}" if found else "saying what is missing, without citations"
    return f"write {cursor} {sources}. Action: its text, no headings."


def _extend(cursor: str | None, limits: Limits, found: bool) -> str:
    return (
        "add subsections where the question wants depth, else stop. "
        'Action: {"name":"extend-plan","position":"section-N","subsections":[{"title":"...","plan":"..."}]}, '
        f'{limits.min_subsections}-{limits.max_subsections} subsections, or {{"name":"nop"}}.'
    )


_TASKS = {"search": _search, "initialize": _initialize, "write": _write, "extend": _extend}
