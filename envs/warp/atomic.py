"""The single-action environment of Atomic RL: one prompt from a recorded trajectory, one reply, parsed in its context."""

from __future__ import annotations

from typing import Any

from envs.warp.actions import Context, parse_reply
from envs.warp.citations import cited_keys, invented_keys
from envs.warp.limits import Limits
from envs.warp.passages import Retriever, retrieve
from rlcore.environment import Policy
from rlcore.errors import DataFailure
from rlcore.types import Outcome, Query


class AtomicAction:
    """Environment of one action. `Query.data` is a sample of envs.warp.samples."""

    def __init__(self, retriever: Retriever, limits: dict[str, Any] | Limits | None = None) -> None:
        self.retriever = retriever
        self.limits = Limits.of(limits)

    async def run(self, query: Query, policy: Policy) -> Outcome:
        """Play one action.

        data: state, valid, error (a short code or None), has_thought, action (parsed, None when invalid), retrieved (document
        ids of a valid SEARCH, merged to the passage budget), cited (keys of a WRITE in order), invented (those not allowed).
        Raises DataFailure for a query that is not a sample, InfrastructureFailure when the search fails.
        """
        sample = query.data
        try:
            state, cursor, messages = sample["state"], sample["cursor"], sample["messages"]
            context = Context(state, sample["language"], tuple(sample["allowed_keys"]), tuple(sample["expandable"]))
            max_tokens = self.limits.max_tokens(state)
        except (KeyError, AttributeError, TypeError) as error:
            raise DataFailure(f"query {query.id} is not an action sample: {error}") from error
        completion = await policy.generate(messages, max_tokens=max_tokens, span=state)
        reply = parse_reply(completion.text, context, self.limits, completion.finish_reason)
        retrieved, cited = [], []
        if reply.action and state == "search":
            found = await retrieve(self.retriever, reply.action["keywords"], cursor, self.limits)
            retrieved = [document.id for document in found]
        if reply.action and state == "write":
            cited = cited_keys(reply.action["content"])
        invented = invented_keys(reply.action["content"], context.allowed_keys) if cited and reply.action else []
        data = {
            "state": state,
            "valid": reply.valid,
            "error": reply.error,
            "has_thought": reply.thought is not None,
            "action": reply.action,
            "retrieved": retrieved,
            "cited": cited,
            "invented": invented,
        }
        metrics = {"valid": float(reply.valid), "cited": float(len(cited)), "invented": float(len(invented))}
        return Outcome(data, metrics, truncated=reply.error == "length")
