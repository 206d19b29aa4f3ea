"""Many queries at a time, each kept in a file of its own as soon as it is done, so that a run may be stopped at any point.

parts/<query>.json           a query played to its end, written whole
parts/<query>.replies.jsonl  the replies and scores of one that is being played (envs/warp/journal.py)
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from urllib.parse import quote

from envs.warp.journal import Journal
from envs.warp.play import Played
from rlcore.errors import ConfigError, InfrastructureFailure
from rlcore.files import write_atomic
from rlcore.types import Query

PlayOne = Callable[[Query, Journal], Awaitable[Played]]


async def collect(
    queries: Sequence[Query], play_one: PlayOne, parts: Path, *, concurrency: int, done: Callable[[], None] = lambda: None
) -> tuple[list[Played], dict[str, str]]:
    """Play every query, at most `concurrency` at a time; what `parts` already holds is read instead. `done` is called after each.

    Returns the played queries in their order, and {query id: what went wrong} for the others: one bad query stops no other, and
    the next run tries it again. Lost machinery is given a second try at once. Only a ConfigError ends the whole run: every query
    would meet it.
    """
    slots = asyncio.Semaphore(concurrency)

    async def one(query: Query) -> Played | str:
        async with slots:
            try:
                return await _resume(query, play_one, parts)
            except ConfigError:
                raise
            except Exception as error:
                return f"{type(error).__name__}: {error}"
            finally:
                done()

    results = await asyncio.gather(*map(one, queries))
    problems = {query.id: result for query, result in zip(queries, results, strict=True) if isinstance(result, str)}
    return [result for result in results if isinstance(result, Played)], problems


async def _resume(query: Query, play_one: PlayOne, parts: Path) -> Played:
    name = quote(query.id, safe="")
    part, replies = parts / f"{name}.json", parts / f"{name}.replies.jsonl"
    if part.is_file():
        return Played.from_json(json.loads(part.read_text(encoding="utf-8")))
    try:
        played = await play_one(query, Journal(replies))
    except (InfrastructureFailure, TimeoutError):
        played = await play_one(query, Journal(replies))
    write_atomic(part, json.dumps(asdict(played)))
    replies.unlink(missing_ok=True)
    return played
