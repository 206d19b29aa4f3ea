from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from envs.retrieval.batching import BatchedSearch
from rlcore.errors import InfrastructureFailure


def test_a_deadline_is_an_infrastructure_failure_and_does_not_harm_other_searches():
    gate = threading.Event()

    def lookup(queries, k):
        assert gate.wait(timeout=20)
        return [[query] * k for query in queries]

    async def ask(thread):
        search = BatchedSearch(lookup, thread, cache_size=10, deadline_s=0.02)
        with pytest.raises(InfrastructureFailure, match="a search of 1 queries took longer than 0.02 s"):
            await search.search(["red"], 1)
        search.deadline_s = 20
        gate.set()
        return await search.search(["red", "blue"], 2)

    with ThreadPoolExecutor(max_workers=1) as thread:
        assert asyncio.run(ask(thread)) == [["red"] * 2, ["blue"] * 2]
