"""Rule-based reward of the one control decision a report agent has: deepen a section, or end."""

from __future__ import annotations

DECISION_OF_ACTION = {"extend-plan": "expand", "nop": "terminate"}


def decision_score(action_name: str, reference: str) -> float:
    """1.0 when the action takes the reference's decision ("expand" or "terminate"), else 0.0."""
    return float(DECISION_OF_ACTION.get(action_name) == reference)


def position_score(position: str | None, reference: str | None) -> float:
    """1.0 when exactly the reference's section is deepened, else 0.0 (also when none is)."""
    return float(position is not None and position == reference)
