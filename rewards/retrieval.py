"""Rule-based reward of a search: did its keywords bring back the documents the reference used?"""

from __future__ import annotations

from collections.abc import Sequence

from rewards import overlap


def recall_at(retrieved: Sequence[str], golden: Sequence[str], budget: int | None = None) -> float:
    """|golden and the first `budget` retrieved| / |golden|: below 1 by necessity when there are more golden ones than budget.

    Without a budget all that was retrieved counts. Raises ValueError for a budget below 1, and without golden documents, where
    recall has no meaning.
    """
    return overlap.recall(_first(retrieved, golden, budget), golden)


def precision_at(retrieved: Sequence[str], golden: Sequence[str], budget: int | None = None) -> float:
    """The golden share of the distinct documents among the first `budget` retrieved, 0 when nothing was retrieved."""
    return overlap.precision(_first(retrieved, golden, budget), golden)


def f1_at(retrieved: Sequence[str], golden: Sequence[str], budget: int | None = None) -> float:
    """The harmonic mean of `precision_at` and `recall_at`."""
    return overlap.f1(_first(retrieved, golden, budget), golden)


def _first(retrieved: Sequence[str], golden: Sequence[str], budget: int | None) -> Sequence[str]:
    if not golden:
        raise ValueError("golden must name at least one document")
    if budget is not None and budget < 1:
        raise ValueError(f"budget must be at least 1, got {budget}")
    return retrieved[:budget]
