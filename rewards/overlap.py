"""Set overlap: precision, recall and F1 of what was found against what was wanted. Repeats count once.

With nothing found and nothing wanted every figure is 1.0 (nothing was asked, nothing was done wrong); with only one of the two
empty it is 0.0.
"""

from __future__ import annotations

from collections.abc import Collection


def precision(found: Collection[str], wanted: Collection[str]) -> float:
    """|found and wanted| / |found|."""
    return _share(set(found) & set(wanted), set(found), bool(wanted))


def recall(found: Collection[str], wanted: Collection[str]) -> float:
    """|found and wanted| / |wanted|."""
    return _share(set(found) & set(wanted), set(wanted), bool(found))


def f1(found: Collection[str], wanted: Collection[str]) -> float:
    """2PR / (P + R), which for sets is 2 |found and wanted| / (|found| + |wanted|)."""
    if not found and not wanted:
        return 1.0
    return 2 * len(set(found) & set(wanted)) / (len(set(found)) + len(set(wanted)))


def _share(common: set[str], base: set[str], other_given: bool) -> float:
    return len(common) / len(base) if base else float(not other_given)
