"""Citation precision, recall and F1, with and without a look at what the cited passages say.

Without passages, keys are compared with a reference's (`citation_score`; rewards/overlap.py has precision and recall). With
passages, somebody (a judge, an entailment model) has said for each statement i of a text how far its citations support it, r_i,
and each citation j alone, p_ij: 1 fully, 0.5 in part, 0 not at all. Then

    per statement (DR Tulu, arXiv 2511.19399)           pooled (ALCE, arXiv 2305.14627)
    R_i = r_i if it cites, else 1 if it needs none       R = sum_i R_i / statements
    P_i = mean_j p_ij if it cites, else 1                P = sum_ij p_ij / citations
    F1 = mean_i 2 P_i R_i / (P_i + R_i)                  F1 = 2 P R / (P + R)

F1 is 0 where P + R is 0. ALCE calls p_ij 1 unless the citation adds nothing: see `needed`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from rewards.overlap import f1

SUPPORT = (0.0, 0.5, 1.0)


def citation_score(cited: Collection[str], reference: Collection[str], invented: Collection[str]) -> float:
    """How well a section's citations agree with the reference section's; in [0, 1].

        0                      if any cited key was not offered in the prompt (`invented`)
        F1(cited, reference)   otherwise: 1.0 when neither cites anything, 0.0 when only one of them does

    The paper of AgentCPM-Report (arXiv 2602.06540) calls this "citation precision".
    """
    return 0.0 if invented else f1(cited, reference)


@dataclass(frozen=True, slots=True)
class Support:
    """The verdicts on one statement: by all of its citations `together`, by each of them `alone` (none when it cites nothing),
    and whether a statement that cites nothing needs to. Raises ValueError for a verdict that is none of SUPPORT."""

    together: float = 0.0
    alone: tuple[float, ...] = ()
    needs_citation: bool = True

    def __post_init__(self) -> None:
        for verdict in (self.together, *self.alone):
            if verdict not in SUPPORT:
                raise ValueError(f"a verdict is one of {SUPPORT}, got {verdict!r}")

    @property
    def recall(self) -> float:
        """R_i."""
        return self.together if self.alone else float(not self.needs_citation)

    @property
    def precision(self) -> float:
        """P_i."""
        return sum(self.alone) / len(self.alone) if self.alone else 1.0


def supported_recall(statements: Sequence[Support]) -> float:
    """The mean R_i: the share of statements that their citations bear out. Raises ValueError without statements."""
    return _mean([statement.recall for statement in statements])


def supported_precision(statements: Sequence[Support]) -> float:
    """The share of citations that support their statement. Without any citation 1.0 where none is needed, else 0.0."""
    verdicts = [verdict for statement in statements for verdict in statement.alone]
    return _mean(verdicts) if verdicts else float(not any(statement.needs_citation for statement in statements))


def supported_f1(statements: Sequence[Support]) -> float:
    """The harmonic mean of `supported_precision` and `supported_recall`: the pooled F1, in which a statement counts by its
    citations."""
    return _harmonic(supported_precision(statements), supported_recall(statements))


def statement_f1(statements: Sequence[Support]) -> float:
    """The mean F1 over statements, in which each counts once."""
    return _mean([_harmonic(statement.precision, statement.recall) for statement in statements])


def cited_share(statements: Sequence[Support]) -> float:
    """The share of statements that have a citation, whatever it says: recall without passage support."""
    return _mean([float(bool(statement.alone)) for statement in statements])


def valid_key_share(cited: Collection[str], offered: Collection[str]) -> float:
    """The share of cited keys that were offered, 0.0 when none is cited: precision without passage support."""
    keys = set(cited)
    return len(keys & set(offered)) / len(keys) if keys else 0.0


def needed(together: float, alone: float, without: float) -> float:
    """ALCE's verdict on one citation, 1.0 or 0.0: its statement is fully supported by all its citations `together`, and the
    citation is not idle (idle: it does not fully support the statement `alone`, while the others do `without` it)."""
    return float(together == 1.0 and not (alone < 1.0 and without == 1.0))


def _mean(values: Sequence[float]) -> float:
    if not values:
        raise ValueError("there are no statements")
    return sum(values) / len(values)


def _harmonic(p: float, r: float) -> float:
    return 2 * p * r / (p + r) if p + r else 0.0
