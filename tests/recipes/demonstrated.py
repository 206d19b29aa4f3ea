"""WARP actions of known quality whatever the policy says: a random model never writes one that a judge could be asked about."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from envs.warp.atomic import AtomicAction
from rewards.probe import ProbeItem, probe_items
from rlcore.environment import Policy
from rlcore.types import Outcome, Query

KEYS = ("textid1", "textid2")


class Demonstrated(AtomicAction):
    """The real environment, in which the action is that of the sample once the policy has been asked."""

    def __init__(self) -> None:
        super().__init__(None)  # type: ignore[arg-type]  # nothing is searched for

    async def run(self, query: Query, policy: Policy) -> Outcome:
        async def generate(messages: Any, **options: Any) -> Any:
            await policy.generate(messages, **options)
            return SimpleNamespace(text=query.data["output"], finish_reason="stop")

        return await super().run(query, SimpleNamespace(generate=generate))  # type: ignore[arg-type]


def queries(split: str) -> list[Query]:
    """The texts of rewards/probe.yaml as sections, and to train on its plans as outlines too."""
    actions = ("write", "initialize") if split == "train" else ("write",)
    return [Query(f"{split}/{action}/{item.id}", sample(action, item)) for item in probe_items() for action in actions]


def sample(action: str, item: ProbeItem) -> dict[str, Any]:
    lines = [line.replace("：", ":").partition(":") for line in item.good_plan.splitlines()]
    sections = [{"title": title, "plan": plan} for title, _, plan in lines]
    reply = {
        "write": {"name": "write", "content": item.good},
        "initialize": {"name": "init-plan", "title": item.question, "sections": sections},
    }[action]
    prompt = "\n".join([item.question, *(f"{key}: {text}" for key, text in item.passages.items())])
    return {
        "action": action,
        "state": action,
        "language": item.language,
        "question": item.question,
        "cursor": "section-1" if action == "write" else "outline",
        "messages": [{"role": "user", "content": prompt}],
        "output": f"<thought>So it is.</thought><action>{json.dumps(reply, ensure_ascii=False)}</action>",
        "passages": [{"key": key, "text": text} for key, text in item.passages.items()],
        "allowed_keys": list(KEYS),
        "expandable": [],
        "reference": {"citations": list(KEYS), "required": [section["title"] for section in sections]},
    }
