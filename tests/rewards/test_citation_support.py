"""Citation precision, recall and F1 with passage support: golden tables worked out by hand."""

from __future__ import annotations

import pytest

from rewards.citation import (
    Support,
    cited_share,
    needed,
    statement_f1,
    supported_f1,
    supported_precision,
    supported_recall,
    valid_key_share,
)

FULL, PARTLY, UNCITED, PLAIN = Support(1, (1, 0)), Support(0.5, (0.5,)), Support(), Support(needs_citation=False)


@pytest.mark.parametrize(
    ("statements", "r", "p", "f", "per_statement"),
    [
        ([Support(1, (1,))], 1, 1, 1, 1),
        ([FULL], 1, 1 / 2, 2 / 3, 2 / 3),
        ([PARTLY], 1 / 2, 1 / 2, 1 / 2, 1 / 2),
        ([UNCITED], 0, 0, 0, 0),
        ([PLAIN], 1, 1, 1, 1),
        ([Support(0, (0, 0))], 0, 0, 0, 0),
        # R = (1 + 1/2 + 0 + 1) / 4; P = (1 + 0 + 1/2) / 3; F1 by statement: 2/3, 1/2, 0 (P is 1, R is 0), 1
        ([FULL, PARTLY, UNCITED, PLAIN], 5 / 8, 1 / 2, 5 / 9, 13 / 24),
    ],
)
def test_with_support(statements, r, p, f, per_statement):
    assert supported_recall(statements) == pytest.approx(r)
    assert supported_precision(statements) == pytest.approx(p)
    assert supported_f1(statements) == pytest.approx(f)
    assert statement_f1(statements) == pytest.approx(per_statement)


def test_without_support():
    assert cited_share([FULL, PARTLY, UNCITED, PLAIN]) == 0.5
    assert valid_key_share(["t1", "t2", "t2", "t9"], ["t1", "t2", "t3"]) == pytest.approx(2 / 3)
    assert valid_key_share([], ["t1"]) == 0


@pytest.mark.parametrize(
    ("together", "alone", "without", "verdict"),
    [
        (1, 1, 0, 1),  # it alone supports the statement
        (1, 1, 1, 1),  # so do the others: both may stay
        (1, 0, 0, 1),  # only together
        (1, 0.5, 0.5, 1),
        (1, 0, 1, 0),  # idle
        (1, 0.5, 1, 0),
        (0.5, 1, 0, 0),  # the statement is not fully supported
        (0, 0, 0, 0),
    ],
)
def test_idle_citations(together, alone, without, verdict):
    assert needed(together, alone, without) == verdict


def test_what_is_no_verdict():
    with pytest.raises(ValueError, match="0.7"):
        Support(0.7, (1,))
    with pytest.raises(ValueError, match="no statements"):
        supported_recall([])
