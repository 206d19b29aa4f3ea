"""Where a teacher that was forced to expand should have stopped (arXiv 2602.06540):

i* = the earliest argmax_i s(D_i);  what follows D_{i*} is dropped, and the decision after it becomes TERMINATE
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from envs.warp.play import Draft, Played
from envs.warp.samples import Sample
from envs.warp.tables import Schema

DRAFTS: Schema = {
    "query_id": "string",
    "split": "string",
    "draft": "int32",  # i of D_i, from 1
    "score": "float64",  # null where drafts are not scored
    "kept": "bool",  # the training samples end at this draft
    "actions": "json",  # how many of each would train it, the TERMINATE after it included
    "sections": ["int32"],  # at each level
    "report": "string",  # Markdown
}


def best_draft(scores: Sequence[float]) -> int:
    """The index of the largest score, the earliest among equals (to the rounding of a mean)."""
    top = max(scores)
    return next(i for i, score in enumerate(scores) if score >= top - 1e-9)


def kept_draft(played: Played) -> int:
    """The index of the draft at which training samples end: the best where drafts are scored, else the last."""
    scores = [draft.score for draft in played.drafts if draft.score is not None]
    assert len(scores) in (0, len(played.drafts))
    return best_draft(scores) if scores else len(played.drafts) - 1


def prune(played: Played) -> list[Sample]:
    """The samples up to the best draft, and TERMINATE in place of the decision that followed it.

    Where no decision followed, because the draft is the last one that the limits allow, the machine stops by itself.
    """
    return _until(played, played.drafts[kept_draft(played)])


def unpruned(played: Played) -> list[Sample]:
    """The samples up to the last draft: all but those of a deepening that the step limit cut off."""
    last = played.drafts[-1].actions
    return [s for i, s in enumerate(played.samples) if i < last or s["action"] == "terminate"]


def draft_rows(played: Played) -> list[dict[str, Any]]:
    """The drafts as rows of DRAFTS."""
    kept = kept_draft(played)
    return [
        {
            "query_id": played.query_id,
            "split": played.split,
            "draft": i + 1,
            "score": draft.score,
            "kept": i == kept,
            "actions": dict(sorted(Counter(s["action"] for s in _until(played, draft)).items())),
            "sections": draft.sections,
            "report": draft.report,
        }
        for i, draft in enumerate(played.drafts)
    ]


def _until(played: Played, draft: Draft) -> list[Sample]:
    """The samples up to a draft, and the decision to stop there."""
    samples, following = played.samples[: draft.actions], played.samples[draft.actions :]
    if not following:
        return samples
    decision = following[0]
    assert decision["state"] == "extend", decision["id"]
    if decision["action"] == "terminate":
        return [*samples, decision]
    name = decision["id"].removesuffix(decision["action"]) + "terminate"
    answer = {"id": name, "action": "terminate", "output": played.stop}
    return [*samples, {**decision, **answer, "reference": {"decision": "terminate", "position": None}}]
