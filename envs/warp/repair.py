r"""Tolerant reading of a reply (`parsing: tolerant`): what a strict reader would refuse for its form alone is mended here.

    text -> tags in one form, think blocks gone -> the bodies of its actions -> fences gone
         -> JSON: LaTeX's backslashes escaped; full-width punctuation made ASCII, trailing commas gone; the rest by json_repair
         -> WRITE: its text, citations in the plain form

The checks that follow are the strict reader's, so nothing gets in that the contract forbids. What the length limit cut is never
completed: half a plan would pass for a whole one.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from envs.warp.citations import normalise_citations

_TAG = re.compile(r"[<＜]\s{0,3}([/／]?)\s{0,3}(think(?:ing)?|thought|action)\s{0,3}[>＞]", re.IGNORECASE)
_TORN_TAG = re.compile(r"[<＜][/／]?[a-z]{0,8}\s*\Z", re.IGNORECASE)
_FENCE = re.compile(r"```([\w+-]*)[ \t]*\n?(.*?)\n?[ \t]*```", re.DOTALL)
_PROSE_FENCES = ("", "markdown", "md", "text", "txt", "plaintext", "latex", "tex")

# LaTeX commands whose first letter makes a valid JSON escape that a text may also mean: a line break or a tab.
_LINE_BREAK_COMMANDS = (
    "nabla|natural|ncong|ne|nearrow|neg|neq|newline|nexists|ngeq|ngtr|nleq|nless|nmid|nolimits|nonumber|not|notin|nparallel|"
    "nprec|nrightarrow|nsim|nsubseteq|nsucc|nu|nvdash|nwarrow"
)
_TAB_COMMANDS = (
    "tag|tan|tanh|tau|tbinom|text[a-z]{0,6}|tfrac|therefore|theta|thickapprox|tilde|times|tiny|to|top|triangle[a-z]{0,8}|"
    "twoheadrightarrow"
)
_HIDDEN_COMMAND = rf"(?:{_LINE_BREAK_COMMANDS}|{_TAB_COMMANDS}|[bfr][A-Za-z]+)(?![A-Za-z])"
_HIDDEN = re.compile(rf"\\(?:\\|({_HIDDEN_COMMAND}))")
_BACKSLASH = re.compile(rf"\\(?:[\\\"/]|u[0-9a-fA-F]{{4}}|(?P<hidden>{_HIDDEN_COMMAND})|[nrtbf]|(?P<other>.?))", re.DOTALL)

_ASCII = str.maketrans({"｛": "{", "｝": "}", "［": "[", "］": "]", "：": ":", "，": ",", "、": ","})
_CLOSERS = {'"': '"＂', "“": '”“＂"', "”": '”“＂"', "＂": '＂"', "'": "'’", "‘": "’'"}  # by what opened the string
_STRING_ENDS = frozenset(":：,，、}｝]］")
_MAX_DEPTH = 20  # of braces: the deepest outline has 6, and a thousand would take seconds or end the recursion
# Stand for an escaped backslash and quote while json_repair works, which loses some of them (private use characters).
_GUARDS = {"\\": "\ue002", '"': "\ue003", "/": "/"}
_BRACKET = re.compile(r"[][{}]")
_CONTROL = re.compile(r"[\t\r\x0b\x0c\u2028\u2029]+")


class Body(NamedTuple):
    """What one action holds. `closed`: its end is marked; `tagged`: the reply has at least one tag that is about it."""

    text: str
    closed: bool
    tagged: bool


def hides_latex(body: str) -> bool:
    r"""True when JSON's escapes would turn a LaTeX command into a control character: `\nu` read as a line break and "u"."""
    return any(match[1] for match in _HIDDEN.finditer(body))


def split_reply(text: str) -> tuple[str | None, list[Body]]:
    """The first thought and the bodies of all actions, in order; one empty body when there are tags around nothing."""
    text = _TAG.sub(lambda m: f"<{'/' if m[1] else ''}{m[2].lower().replace('thinking', 'think')}>", text)
    text, _ = _take_blocks(text, "think")
    text, thoughts = _take_blocks(text, "thought")
    tagged = bool(thoughts)
    thought = next((t.strip() for t in thoughts if t.strip()), None)
    before, *opened = text.split("<action>")
    if not opened:
        body, end, _ = before.partition("</action>")
        bodies = [Body(body, bool(end), tagged or bool(end))]
        return thought, bodies if body.strip() or bodies[0].tagged else []
    bodies = []
    for part in opened:
        body, end, _ = part.partition("</action>")
        bodies.append(Body(body if end else _TORN_TAG.sub("", body), bool(end), True))
    return thought, [b for b in bodies if b.text.strip()] or bodies[:1]


def _take_blocks(text: str, tag: str) -> tuple[str, list[str]]:
    """The text without its <tag> blocks, and what they held. Without an opening tag the block began with the text; without a
    closing one a thought ends where the action begins, and of anything else only the tag goes."""
    start, end = f"<{tag}>", f"</{tag}>"
    inside: list[str] = []
    if end in text and (start not in text or text.index(end) < text.index(start)):
        head, _, text = text.partition(end)
        inside.append(head.replace("<action>", "").replace("</action>", ""))
    kept = []
    while start in text:
        before, _, rest = text.partition(start)
        block, closed, after = rest.partition(end)
        if not closed:
            block, action, after = rest.partition("<action>")
            block, after = (block, action + after) if tag == "thought" and action else ("", rest)
        kept.append(before)
        inside.append(block)
        text = after
    return "".join([*kept, text]).replace(end, ""), inside


def read_text(body: Body) -> str:
    """The section's text of a WRITE: without a fence around all of it, citations in the plain form."""
    text = body.text.strip()
    # Counted first: the expression takes cubic time over long runs of spaces.
    fenced = text.count("```") == 2 and text.startswith("```") and text.endswith("```")
    fence = _FENCE.fullmatch(re.sub(r"[ \t]{9,}", " " * 8, text)) if fenced else None
    if fence and fence[1].lower() in _PROSE_FENCES:
        text = fence[2]
    elif text.count("```") == 1 and text.startswith("```"):  # the closing fence fell outside the tags
        text = text.partition("\n")[2]
    return normalise_citations(text).strip()


def read_json(body: Body) -> Any:
    """The action's JSON object, None where there is none that can be read.

    An object that is whole is taken as it stands, whatever surrounds it; only then are its punctuation and the rest repaired.
    """
    text = _BACKSLASH.sub(_escape, body.text)
    if _depth(text) > _MAX_DEPTH:
        return None
    value = _first_object(text)
    if value is not None:
        return each_text(value, _tidy)
    guarded = re.sub(r"\\([\\\"/])", lambda m: _GUARDS[m[1]], re.sub("[\ue002\ue003]", "", text))
    structured = _ascii_structure(guarded)
    value = _first_object(structured)
    return each_text(_repaired(structured, body.closed) if value is None else value, lambda t: _tidy(_unguarded(t)))


def _first_object(text: str) -> Any:
    """The first JSON object with a "name" in the text, None when there is none that is whole."""
    decoder = json.JSONDecoder(strict=False)  # line breaks and tabs may stand in strings as themselves
    at = text.find("{")
    for _ in range(8):  # prose has few braces; more would only cost time
        if at < 0:
            return None
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            value, end = None, at + 1
        if isinstance(value, dict) and "name" in value:
            return value
        at = text.find("{", end)
    return None


def _repaired(text: str, closed: bool) -> Any:
    import json_repair  # a third of a second, which strict parsing need not pay

    start, last = text.find("{"), text.rfind("}")
    whole = last > start and not text[last + 1 :].strip(" \n`")
    if start < 0 or not (closed or whole):
        return None
    try:
        value = json_repair.loads(text[start : last + 1] if last > start else text[start:], skip_json_loads=True)
    except ValueError:
        return None
    return next((v for v in value if isinstance(v, dict)), None) if isinstance(value, list) else value


def _depth(text: str) -> int:
    """How deep brackets nest; one too many that closes opens no room for more."""
    step = {"{": 1, "[": 1, "}": -1, "]": -1}
    return max(itertools.accumulate((step[c] for c in _BRACKET.findall(text)), lambda depth, s: max(0, depth + s), initial=0))


def _escape(match: re.Match[str]) -> str:
    """Doubles a backslash that is LaTeX's, not JSON's."""
    text = match[0]
    if match["hidden"]:
        return "\\" + text
    if match["other"] is not None:
        return "'" if match["other"] == "'" else "\\" + text
    return text


def _ascii_structure(text: str) -> str:
    """JSON's punctuation and quotes in ASCII where they stand outside strings, without trailing commas. A quote ends a string
    only before punctuation (or the end), so that quotation marks inside a value stay."""
    out: list[str] = []
    i, last = 0, -1  # `last`: of what is not space in `out`
    while i < len(text):
        closers = _CLOSERS.get(text[i])
        if closers is None:
            sign = text[i].translate(_ASCII)
            if not sign.isspace():
                if sign in "}]" and last >= 0 and out[last] == ",":
                    out[last] = ""
                last = len(out)
            out.append(sign)
            i += 1
            continue
        end = _string_end(text, i + 1, closers)
        inner = text[i + 1 : end]
        if text[i] == '"' and len(inner) > 2 and inner[0] == inner[-1] == '"':  # ""doubled""
            inner = inner[1:-1]
        last = len(out)
        out.append('"' + inner.replace('"', _GUARDS['"']) + '"')
        i = end + 1
    return "".join(out)


def _string_end(text: str, start: int, closers: str) -> int:
    """Where the string that begins at `start` ends: at its first closing quote before punctuation, or with the text."""
    for i in range(start, len(text)):
        if text[i] in closers:
            following = text[i + 1 : i + 20].lstrip()
            if not following or following[0] in _STRING_ENDS:
                return i
    return len(text)


def _unguarded(text: str) -> str:
    return text.replace(_GUARDS["\\"], "\\").replace(_GUARDS['"'], '"')


def _tidy(text: str) -> str:
    """Tabs and other breaks within lines become spaces, escaped surrogate pairs the character they stand for."""
    return _CONTROL.sub(" ", text).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def each_text(value: Any, change: Callable[[str], str]) -> Any:
    """JSON data with every text in it changed, keys excepted."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [each_text(item, change) for item in value]
    if isinstance(value, dict):
        return {key: each_text(item, change) for key, item in value.items()}
    return value
