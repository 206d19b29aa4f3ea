"""A plug-in in one file: an environment, its queries and its reward. The task: answer with as many vowels as possible."""

from __future__ import annotations

import random

from rlcore.environment import Policy
from rlcore.types import Outcome, Query, RewardResult, Trajectory, scored

SUBJECTS = {"train": ["rain", "stone", "bread", "night", "glass", "wind"], "heldout": ["snow", "iron"]}


def queries(split: str, count: int, seed: int) -> list[Query]:
    """`count` queries of the split ("train" or "heldout"), the same ones for the same seed."""
    chosen = random.Random(seed).choices(SUBJECTS[split], k=count)
    return [Query(f"{split}-{i}", {"question": f"Sing of {subject}, in vowels."}) for i, subject in enumerate(chosen)]


class Vowels:
    """One question, one reply of at most `max_tokens` tokens. A reply cut there is complete: there is no end to reach."""

    def __init__(self, max_tokens: int = 32) -> None:
        self.max_tokens = max_tokens

    async def run(self, query: Query, policy: Policy) -> Outcome:
        messages = [{"role": "user", "content": query.data["question"]}]
        reply = await policy.generate(messages, max_tokens=self.max_tokens)
        return Outcome({"reply": reply.text})


def score(trajectory: Trajectory) -> RewardResult:
    """The share of vowels among the reply's characters; below 20 characters, out of 20, so that silence does not pay."""
    reply = trajectory.outcome.data["reply"].casefold()
    return scored(sum(reply.count(vowel) for vowel in "aeiou") / max(len(reply), 20))
