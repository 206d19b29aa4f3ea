"""The prompt of each state: what the state machine knows, then one line that says what to do and in which form.

Every action is an independent prompt of one system and one user message. Inputs go in as they are, nothing is escaped; but a
passage stands on one line, after its key, so that no line of a document can pass for another entry or for the task. The compact
instructions are short on purpose: small models must learn them, and a report repeats them a hundred times. `prompts:
detailed` adds the rules that a model needs which was not trained on them. The texts are in envs/warp/wording.py.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import lru_cache
from string import Template
from typing import Any

from envs.warp.limits import Limits
from envs.warp.wording import ENGLISH, WORDINGS, Wording
from rlcore.environment import Message

SYSTEM = ENGLISH.system


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why the last reply was not accepted: its error, and the actions that would have been possible (free control)."""

    error: str
    legal: tuple[str, ...] = ()


def wording(language: str) -> Wording:
    """The texts of a language; English for every language that has none."""
    return WORDINGS.get(language, ENGLISH)


def build_prompt(
    state: str,
    question: str,
    limits: Limits,
    *,
    cursor: str | None,
    outline: str | None,
    passages: list[tuple[str, str]],
    language: str = "en",
    refusal: Refusal | None = None,
) -> list[Message]:
    """The messages for one action.

    `outline` is the outline as text (None before there is one), `passages` the (key, text) pairs of the last search, `refusal`
    what was wrong with the last reply to this prompt, when the model is to know.
    """
    words, free = wording(language), limits.control == "free"
    parts = [words.question.format(question)]
    if outline is not None:
        parts.append(outline)
    if state in ("initialize", "write"):
        parts += [f"{key}: {' '.join(text.split())}" for key, text in passages] or [words.nothing]
    if refusal is not None:
        parts.append(words.refused.format(_fill(words.errors[refusal.error], limits, legal=", ".join(refusal.legal))))
    task = "free" if free else _task(state, limits, bool(passages))
    parts.append(words.task.format(_fill(words.tasks[task], limits, cursor=cursor or "", due=f"{state} {cursor or ''}".strip())))
    if limits.prompts == "detailed":
        for topic in ("search", "initialize", "write", "extend") if free else (state,):
            parts.append(_fill(words.rules[topic], limits))
        parts.append(words.rules["always"])
    return [{"role": "system", "content": words.system}, {"role": "user", "content": "\n".join(parts)}]


def _task(state: str, limits: Limits, found: bool) -> str:
    if state == "initialize" and limits.control == "plan_then_write":
        return "plan_all"
    return "write_unsourced" if state == "write" and not found else state


def _fill(text: str, limits: Limits, **values: str) -> str:
    return Template(text).substitute(_numbers(limits), **values)


@lru_cache(maxsize=64)
def _numbers(limits: Limits) -> dict[str, Any]:
    return asdict(limits)
