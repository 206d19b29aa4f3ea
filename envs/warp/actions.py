"""From a model's reply to an action: a reply is either one well-formed action or one of `ERRORS`. Nothing raises.

A reply is `<thought>...</thought><action>...</action>`; the first of each counts, and a missing thought does not invalidate the
action. The action is JSON with exactly these keys, or for WRITE the section's Markdown text itself:

    search       {"name": "search", "keywords": [text, ...]}
    initialize   {"name": "init-plan", "title": text, "sections": [{"title": text, "plan": text}, ...]}
    extend       {"name": "extend-plan", "position": "section-1.2", "subsections": [{"title": text, "plan": text}, ...]}
                 or {"name": "nop"}
    write        parsed as {"name": "write", "content": text}

With `parsing: strict` JSON is not repaired: what trains a format must not forgive its errors. `json.loads` does turn LaTeX
such as "\\times" into a tab and "imes", so such escapes are refused, and so are control characters in titles, keywords and
plans (in plans all but the line break). `parsing: tolerant` reads the same actions through envs/warp/repair.py and checks
them the same.

In free control a text that starts with a brace is JSON, and any other a WRITE.
"""

from __future__ import annotations

import json
import re
import unicodedata
from dataclasses import dataclass
from typing import Any

from envs.warp.citations import cited_keys, count_citations, drop_citations, is_malformed
from envs.warp.language import language_ok
from envs.warp.limits import Limits
from envs.warp.repair import Body, each_text, hides_latex, read_json, read_text, split_reply

# Every way a reply can fail, which is all that a failure is recorded as. The last is a prompt that left no room for a reply.
ERRORS = (
    *("length", "missing_action", "bad_text", "bad_json", "bad_name", "bad_keys", "illegal", "bad_position"),
    *("no_keywords", "too_many_keywords", "too_few_sections", "too_many_sections", "too_few_subsections", "too_many_subsections"),
    *("too_short", "heading", "raw_key", "bad_citation", "too_many_citations", "no_citation", "wrong_language", "no_room"),
)
KINDS = {"search": "search", "init-plan": "initialize", "write": "write", "extend-plan": "expand", "nop": "terminate"}

_RAW_KEY = re.compile(r"bibkey|textid[0-9]", re.IGNORECASE)
_OFFERED = {"search": ("search",), "initialize": ("init-plan",), "extend": ("extend-plan", "nop"), "write": ()}
_FREE = ("search", "init-plan", "extend-plan", "nop")
_SURROGATE = re.compile("[\ud800-\udfff]")
_TAG = re.compile(r"</?(?:thought|action|think)>")  # within an action: the reply opened or closed one too many
_BRACE = re.compile(r"\s*(?:```\w*\s*)?[{｛]")
_KEYS = {
    "search": {"name", "keywords"},
    "init-plan": {"name", "title", "sections"},
    "extend-plan": {"name", "position", "subsections"},
    "nop": {"name"},
}


@dataclass(frozen=True, slots=True)
class Context:
    """What decides whether a reply is valid besides the limits."""

    state: str
    language: str = "en"
    allowed_keys: tuple[str, ...] = ()  # citation keys shown in the prompt of a WRITE
    expandable: tuple[str, ...] = ()  # positions an extend-plan may name
    legal: tuple[str, ...] | None = None  # free control: which of the five actions are possible; None: the state's own only


@dataclass(frozen=True, slots=True)
class Reply:
    """A parsed reply: `action` when it is valid, otherwise `error`, a short code."""

    action: dict[str, Any] | None
    error: str | None
    thought: str | None

    @property
    def valid(self) -> bool:
        return self.action is not None

    @property
    def kind(self) -> str | None:
        """Which of the five actions it is, None when invalid."""
        return KINDS[self.action["name"]] if self.action else None


def parse_reply(text: str, context: Context, limits: Limits, finish_reason: str = "stop") -> Reply:
    """Parse a reply in its context. A reply cut off by its token limit ("length") is invalid, or, when tolerant, unless an
    action was finished before.

    An invented citation key does not invalidate a WRITE: the citation reward and the renderer deal with it.
    """
    if limits.parsing == "tolerant":
        return _tolerant(text, context, limits, finish_reason == "length")
    thought = (_between(text, "<thought>", "</thought>") or "").strip() or None
    if finish_reason == "length":
        return Reply(None, "length", thought)
    body = _between(text, "<action>", "</action>")
    if body is None:
        return Reply(None, "missing_action", thought)
    if not is_encodable(text) or _TAG.search(body):
        return Reply(None, "bad_text", thought)
    if context.state == "write" if context.legal is None else not _BRACE.match(body):
        return _text_reply(body, thought, context, limits)
    action = _load(body)
    if action is not None and hides_latex(body):
        return Reply(None, "bad_text", thought)
    return _json_reply(action, thought, context, limits)


def _tolerant(text: str, context: Context, limits: Limits, cut: bool) -> Reply:
    """The first valid action of the reply, otherwise what is wrong with its first."""
    if not is_encodable(text):
        return Reply(None, "bad_text", None)
    thought, bodies = split_reply(text)
    replies = [_tolerant_body(body, thought, context, limits) for body in bodies if body.closed or not cut]
    empty = Reply(None, "length" if cut else "missing_action", thought)
    return next((reply for reply in replies if reply.valid), replies[0] if replies else empty)


def _tolerant_body(body: Body, thought: str | None, context: Context, limits: Limits) -> Reply:
    action = None if context.legal is None and context.state == "write" else read_json(body)
    named = isinstance(action, dict) and action.get("name") in _FREE
    if context.state == "write" if context.legal is None else not (named or _BRACE.match(body.text)):
        # Without any tag it may be an apology, or reasoning: no part of a report.
        return _text_reply(read_text(body), thought, context, limits) if body.tagged else Reply(None, "missing_action", thought)
    return _json_reply(action, thought, context, limits)


def _text_reply(content: str, thought: str | None, context: Context, limits: Limits) -> Reply:
    illegal = context.legal is not None and "write" not in context.legal
    error = "illegal" if illegal else _write_error(content.strip(), context, limits)
    return Reply(None, error, thought) if error else Reply({"name": "write", "content": content.strip()}, None, thought)


def _json_reply(action: Any, thought: str | None, context: Context, limits: Limits) -> Reply:
    error = _json_error(action, context, limits)
    # Stripped only now: a tab that was "\\times" must not go unseen because the title begins with it.
    return Reply(None, error, thought) if error else Reply(each_text(action, str.strip), None, thought)


def _between(text: str, start: str, end: str) -> str | None:
    _, opened, rest = text.partition(start)
    inner, closed, _ = rest.partition(end)
    return inner if opened and closed else None


def _load(body: str) -> Any:
    """The JSON value, None where there is none. ValueError also covers overlong integers, RecursionError deep nesting."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _json_error(action: Any, context: Context, limits: Limits) -> str | None:
    if not isinstance(action, dict):
        return "bad_json"
    name = action.get("name")
    if name not in (_OFFERED[context.state] if context.legal is None else _FREE):
        return "bad_name"
    if context.legal is not None and KINDS[name] not in context.legal:
        return "illegal"
    if set(action) != _KEYS[name]:
        return "bad_keys"
    if name == "search":
        return _search_error(action["keywords"], limits)
    if name == "init-plan":
        if not isinstance(action["title"], str):
            return "bad_keys"
        if not _is_line(action["title"]):
            return "bad_text"
        return _outline_error(action["sections"], action["title"], context, limits)
    if name == "extend-plan":
        if action["position"] not in context.expandable:
            return "bad_position"
        low, high = limits.min_subsections, limits.max_subsections
        return _plan_error(action["subsections"], "", "subsections", low, high, context, limits)
    return None


def _search_error(keywords: Any, limits: Limits) -> str | None:
    if not isinstance(keywords, list) or not all(isinstance(k, str) for k in keywords):
        return "bad_keys"
    if not keywords:
        return "no_keywords"
    if not all(_is_line(k) for k in keywords):
        return "bad_text"
    return "too_many_keywords" if limits.hard_mode and len(keywords) > limits.max_keywords else None


def _outline_error(sections: Any, title: str, context: Context, limits: Limits) -> str | None:
    """Check an init-plan's sections, and in `plan_then_write` the "subsections" that they may have, level by level."""
    due = [(sections, "sections", limits.min_sections, limits.max_sections)]
    for depth in range(1, limits.max_levels + 1):
        below = []
        for items, what, low, high in due:
            if limits.control == "plan_then_write" and depth < limits.max_levels and isinstance(items, list):
                low_, high_ = limits.min_subsections, limits.max_subsections
                parents = [i for i in items if isinstance(i, dict) and i.get("subsections", []) != []]
                below += [(i["subsections"], "subsections", low_, high_) for i in parents]
                items = [{k: v for k, v in i.items() if k != "subsections"} if isinstance(i, dict) else i for i in items]
            error = _plan_error(items, title, what, low, high, context, limits)
            if error:
                return error
        due = below
    return None


def _plan_error(items: Any, title: str, what: str, low: int, high: int, context: Context, limits: Limits) -> str | None:
    """Check the {"title", "plan"} items of an init-plan or an extend-plan."""
    if not isinstance(items, list) or not all(isinstance(i, dict) and set(i) == {"title", "plan"} for i in items):
        return "bad_keys"
    if not all(isinstance(text, str) for item in items for text in item.values()):
        return "bad_keys"
    if not all(_is_line(item["title"]) and _is_line(item["plan"].replace("\n", " ")) for item in items):
        return "bad_text"
    if len(items) < (low if limits.hard_mode else 1):
        return f"too_few_{what}"
    if not limits.hard_mode:
        return None
    if len(items) > high:
        return f"too_many_{what}"
    text = " ".join([title, *(text for item in items for text in item.values())])
    return _language_error(text, context, limits)


def _write_error(content: str, context: Context, limits: Limits) -> str | None:
    if not content:
        return "too_short"
    if is_malformed(content):
        return "bad_citation"
    if not limits.hard_mode:
        return None
    bare = drop_citations(content)
    if "#" in content:
        return "heading"
    if _RAW_KEY.search(bare):
        return "raw_key"
    if len(content) <= limits.min_write_chars:
        return "too_short"
    if count_citations(content) > limits.max_citations:
        return "too_many_citations"
    # A prompt without passages leaves nothing that could be cited.
    if limits.citation_required and context.allowed_keys and not cited_keys(content):
        return "no_citation"
    return _language_error(bare, context, limits)


def _language_error(text: str, context: Context, limits: Limits) -> str | None:
    ok = language_ok(text, context.language, min_cjk=limits.min_cjk, max_cjk=limits.max_cjk)
    return None if ok else "wrong_language"


def is_encodable(text: str) -> bool:
    """False for half of a surrogate pair, which JSON's \\u escapes can smuggle in and no file can hold."""
    return _SURROGATE.search(text) is None


def _is_line(text: str) -> bool:
    """True for text that is not blank and fits on a line: no control character, line separator or half surrogate."""
    return bool(text.strip()) and not any(unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") for c in text)
