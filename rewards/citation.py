"""Rule-based citation reward of a written section."""

from __future__ import annotations

from collections.abc import Collection

from rewards.overlap import f1


def citation_score(cited: Collection[str], reference: Collection[str], invented: Collection[str]) -> float:
    """How well a section's citations agree with the reference section's; in [0, 1].

        0                      if any cited key was not offered in the prompt (`invented`)
        F1(cited, reference)   otherwise: 1.0 when neither cites anything, 0.0 when only one of them does

    The paper of AgentCPM-Report (arXiv 2602.06540) calls this "citation precision".
    """
    return 0.0 if invented else f1(cited, reference)
