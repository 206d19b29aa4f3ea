"""Retrieval for one SEARCH action: ask for every keyword, then merge the answers into the passages a prompt may show."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from envs.warp.citations import Document
from envs.warp.limits import Limits
from rlcore.errors import InfrastructureFailure


class Retriever(Protocol):
    async def search(self, queries: list[str], k: int) -> Sequence[Sequence[Document]]:
        """For every query, up to k documents, best first."""
        ...


async def retrieve(retriever: Retriever, keywords: list[str], cursor: str | None, limits: Limits) -> list[Document]:
    """The merged passages for the keywords of a SEARCH at this cursor.

    Raises InfrastructureFailure when the retriever is late or does not answer every keyword: that says nothing about the model.
    """
    try:
        found = await asyncio.wait_for(retriever.search(keywords, limits.per_keyword_k), limits.search_timeout_s)
    except TimeoutError as error:
        raise InfrastructureFailure(f"the search took longer than {limits.search_timeout_s} s") from error
    if len(found) != len(keywords):
        raise InfrastructureFailure(f"the retriever answered {len(found)} of {len(keywords)} keywords")
    return merge_passages(found, limits.passages(cursor))


def merge_passages(found: Sequence[Sequence[Document]], budget: int) -> list[Document]:
    """Up to `budget` documents of different text, fairly shared between keywords.

    Every keyword first gives its best max(1, budget // keywords) documents that no keyword before it gave; what is left of the
    budget is filled in keyword order. Equal (stripped) texts count once and blank ones never.
    """
    merged: list[Document] = []
    seen = {""}

    def take(documents: Sequence[Document], at_most: int) -> None:
        for document in documents:
            if at_most <= 0 or len(merged) >= budget:
                return
            text = document.contents.strip()
            if text not in seen:
                seen.add(text)
                merged.append(document)
                at_most -= 1

    for documents in found:
        take(documents, max(1, budget // len(found)))
    for documents in found:
        take(documents, budget)
    return merged
