"""From a model's reply to an action, strictly: a reply is either one well-formed action or a short error code. Nothing raises.

A reply is `<thought>...</thought><action>...</action>`; the first of each counts, and a missing thought does not invalidate the
action. The action is JSON with exactly these keys, or for WRITE the section's Markdown text itself:

    search       {"name": "search", "keywords": [text, ...]}
    initialize   {"name": "init-plan", "title": text, "sections": [{"title": text, "plan": text}, ...]}
    extend       {"name": "extend-plan", "position": "section-1.2", "subsections": [{"title": text, "plan": text}, ...]}
                 or {"name": "nop"}
    write        parsed as {"name": "write", "content": text}

JSON is not repaired: what trains a format must not forgive its errors. `json.loads` does turn LaTeX such as "\\times" into a tab
and "imes", so control characters in titles, keywords and plans are refused (in plans all but the line break).
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

_RAW_KEY = re.compile(r"bibkey|textid[0-9]", re.IGNORECASE)
_OFFERED = {"search": ("search",), "initialize": ("init-plan",), "extend": ("extend-plan", "nop"), "write": ()}
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
        names = {"init-plan": "initialize", "extend-plan": "expand", "nop": "terminate"}
        return names.get(self.action["name"], self.action["name"]) if self.action else None


def parse_reply(text: str, context: Context, limits: Limits, finish_reason: str = "stop") -> Reply:
    """Parse a reply in its context. A reply cut off by its token limit ("length") is invalid whatever it holds.

    An invented citation key does not invalidate a WRITE: the citation reward and the renderer deal with it.
    """
    thought = (_between(text, "<thought>", "</thought>") or "").strip() or None
    if finish_reason == "length":
        return Reply(None, "length", thought)
    body = _between(text, "<action>", "</action>")
    if body is None:
        return Reply(None, "missing_action", thought)
    if not _encodable(text):
        return Reply(None, "bad_text", thought)
    if context.state == "write":
        action, error = {"name": "write", "content": body}, _write_error(body.strip(), context, limits)
    else:
        action = _load(body)
        error = _json_error(action, context, limits)
    # Stripped only now: a tab that was "\\times" must not go unseen because the title begins with it.
    return Reply(None, error, thought) if error else Reply(_stripped(action), None, thought)


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


def _stripped(value: Any) -> Any:
    """A checked action with every text in it stripped of surrounding white space."""
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, list):
        return [_stripped(item) for item in value]
    if isinstance(value, dict):
        return {key: _stripped(item) for key, item in value.items()}
    return value


def _json_error(action: Any, context: Context, limits: Limits) -> str | None:
    if not isinstance(action, dict):
        return "bad_json"
    name = action.get("name")
    if name not in _OFFERED[context.state]:
        return "bad_name"
    if set(action) != _KEYS[name]:
        return "bad_keys"
    if name == "search":
        return _search_error(action["keywords"], limits)
    if name == "init-plan":
        if not isinstance(action["title"], str):
            return "bad_keys"
        if not _is_line(action["title"]):
            return "bad_text"
        low, high = limits.min_sections, limits.max_sections
        return _plan_error(action["sections"], action["title"], "sections", low, high, context, limits)
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


def _encodable(text: str) -> bool:
    """False for half of a surrogate pair, which JSON's \\u escapes can smuggle in and no file can hold."""
    return not any("\ud800" <= c <= "\udfff" for c in text)


def _is_line(text: str) -> bool:
    """True for text that is not blank and fits on a line: no control character, line separator or half surrogate."""
    return bool(text.strip()) and not any(unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") for c in text)
