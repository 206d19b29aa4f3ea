"""A judge whose opinion is a function: for each id it is asked about, `say(material, id)` is the number it gives."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from rlcore.judge import JudgeFailed, JudgeReply

_BLOCK = re.compile(r"^([^\n]+):\n<data-([0-9a-f]{16})>\n(.*?)\n</data-\2>$", re.DOTALL | re.MULTILINE)


class ScriptedJudge:
    """`material` holds the prompt's texts by their names ("task", "shown", "text"). `replies` are taken first, one a call: a
    text, or None for a judge that fails. `claims` are what it splits a plan into, or a function of the material. It records
    calls and what was unusable."""

    def __init__(self, say: Callable[[dict[str, str], str], float] = lambda material, id: 1, *, replies=(), claims=()) -> None:
        self.say, self.replies = say, list(replies)
        self.claims = claims if callable(claims) else lambda material: list(claims)
        self.calls: list[dict[str, Any]] = []
        self.refused: list[tuple[str, str, str]] = []

    async def ask(self, messages, *, component, schema=None, max_tokens=None, attempt=0) -> JudgeReply:
        self.calls.append({"messages": messages, "component": component, "schema": schema, "attempt": attempt})
        if self.replies:
            if (text := self.replies.pop(0)) is None:
                raise JudgeFailed("every endpoint is down")
            return JudgeReply(text.removesuffix("<cut>"), "length" if text.endswith("<cut>") else "stop", "scripted", False)
        material = {m[1]: m[3] for m in _BLOCK.finditer(messages[-1]["content"])}
        ids = schema["required"] if schema else []
        reply = {"claims": self.claims(material)} if ids == ["claims"] else {id: self.say(material, id) for id in ids}
        return JudgeReply(json.dumps(reply) if schema else "An answer.", "stop", "scripted", False)

    async def unusable(self, component: str, why: str, reply: JudgeReply) -> None:
        self.refused.append((component, why, reply.text))

    def components(self) -> list[str]:
        return [call["component"] for call in self.calls]
