"""Several rankings of one query joined into one."""

from __future__ import annotations

from collections.abc import Sequence

from envs.retrieval.index import Hits

RANK_OFFSET = 60  # how little the first ranks differ; the paper's value
CANDIDATES = 100  # how deep each ranking is read


def reciprocal_rank_fusion(rankings: Sequence[Hits], k: int) -> Hits:
    """The `k` documents with the highest sum over the rankings of 1 / (60 + rank), rank 1 being the best; ties by id.

    Only ranks count, so scores of different scales can be joined (Cormack, Clarke and Buettcher, 2009).
    """
    scores: dict[str, float] = {}
    for ranking in rankings:
        for rank, (id, _) in enumerate(ranking, start=1):
            scores[id] = scores.get(id, 0.0) + 1 / (RANK_OFFSET + rank)
    return sorted(scores.items(), key=lambda hit: (-hit[1], hit[0]))[:k]
