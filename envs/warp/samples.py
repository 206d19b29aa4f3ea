"""Action-level samples: what the teacher was asked and what it answered, one JSON line an action.

A sample is `Query.data` of envs.warp.atomic.AtomicAction, and "messages" + "output" is a training example for SFT.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from envs.warp.actions import Reply
from envs.warp.citations import cited_keys
from envs.warp.language import CountTokens, count_words
from envs.warp.limits import ACTIONS, STATES, Limits
from envs.warp.machine import WarpState
from envs.warp.passages import Retriever
from envs.warp.report import advance, start
from envs.warp.teacher import Teacher
from rlcore.errors import ConfigError
from rlcore.types import Query

Sample = dict[str, Any]

_TYPES: dict[str, type | tuple[type, ...]] = {
    "id": str,
    "query_id": str,
    "split": str,
    "language": str,
    "state": str,
    "action": str,
    "question": str,
    "cursor": (str, type(None)),
    "messages": list,
    "output": str,
    "allowed_keys": list,
    "expandable": list,
    "reference": dict,
    "state_hash": str,
}


async def teacher_samples(
    query: Query, retriever: Retriever, limits: Limits | None = None, count_tokens: CountTokens = count_words
) -> list[Sample]:
    """Play one query with the teacher. Raises ValueError when the teacher's reply is invalid or the step limit ends the report:
    the query's oracle does not fit the limits."""
    machine = start(query, limits or Limits(), count_tokens)
    teacher = Teacher(query)
    samples = []
    while not machine.done:
        sample, output = _question(machine, query), teacher.reply(machine)
        reply = await advance(machine, retriever, output)
        if reply.error:
            raise ValueError(f"the teacher's reply in state {sample['state']} is invalid ({reply.error}): {output}")
        answer = {"action": reply.kind, "output": output, "reference": _reference(sample["cursor"], reply, teacher)}
        samples.append({**sample, **answer, "id": f"{query.id}/{machine.step}-{reply.kind}"})
    if machine.out_of_steps:
        raise ValueError(f"the report is not complete after limits.max_steps={machine.limits.max_steps}")
    return samples


def _question(machine: WarpState, query: Query) -> Sample:
    """The part of a sample that is known before the reply."""
    context = machine.context
    return {
        "query_id": query.id,
        "split": query.data.get("split", "train"),
        "language": machine.language,
        "state": machine.state,
        "question": machine.question,
        "cursor": machine.cursor,
        "messages": machine.prompt(),
        "allowed_keys": list(context.allowed_keys),
        "expandable": list(context.expandable),
        "state_hash": machine.hash,
    }


def _reference(cursor: str | None, reply: Reply, teacher: Teacher) -> dict[str, Any]:
    """What a reward compares a model's action with."""
    assert reply.action is not None
    if reply.kind == "search":
        assert cursor is not None
        return {"golden_doc_ids": teacher.golden(cursor)}
    if reply.kind == "initialize":
        titles = [section["title"] for section in reply.action["sections"]]
        return {"titles": titles, "required": [topic["title"] for topic in teacher.topics]}
    if reply.kind == "write":
        return {"citations": cited_keys(reply.action["content"])}
    return {"decision": reply.kind, "position": reply.action.get("position")}


async def collect(
    queries: Iterable[Query],
    retriever: Retriever,
    limits: dict[str, Any] | Limits | None = None,
    *,
    concurrency: int = 16,
    count_tokens: CountTokens = count_words,
) -> tuple[list[Sample], dict[str, str]]:
    """Samples of every query, in the queries' order, and {query id: what went wrong} for those that could not be played."""
    queries, checked, slots = list(queries), Limits.of(limits), asyncio.Semaphore(concurrency)

    async def one(query: Query) -> list[Sample]:
        async with slots:
            return await teacher_samples(query, retriever, checked, count_tokens)

    samples: list[Sample] = []
    problems: dict[str, str] = {}
    results = await asyncio.gather(*map(one, queries), return_exceptions=True)
    for query, result in zip(queries, results, strict=True):
        if isinstance(result, Exception):
            problems[query.id] = f"{type(result).__name__}: {result}"
        elif isinstance(result, BaseException):
            raise result
        else:
            samples += result
    return samples, problems


def balance(samples: Sequence[Sample], counts: dict[str, int], seed: int) -> list[Sample]:
    """A random choice of `counts[action]` samples of each action, without repetition, in the order they came in.

    The same samples and seed give the same choice. Raises ValueError for an unknown action, or more than there are.
    """
    available = Counter(sample["action"] for sample in samples)
    chosen: set[int] = set()
    for action, n in counts.items():
        if action not in ACTIONS:
            raise ValueError(f"counts.{action} is not an action; actions are {', '.join(ACTIONS)}")
        if not 0 <= n <= available[action]:
            raise ValueError(f"counts.{action}={n}, but there are {available[action]} samples of it")
        places = [i for i, sample in enumerate(samples) if sample["action"] == action]
        chosen.update(random.Random(f"{seed}/{action}").sample(places, n))
    return [samples[i] for i in sorted(chosen)]


def write_samples(path: str | Path, samples: Iterable[Sample]) -> None:
    """Write one JSON line a sample; the file appears whole or not at all."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(sample, ensure_ascii=False) + "\n" for sample in samples)
    os.replace(temporary, path)


def read_samples(path: str | Path) -> list[Sample]:
    """The samples of a file. Raises ValueError naming file, line and field of the first that is not one."""
    samples = []
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            where = f"{path}:{number}"
            try:
                sample = json.loads(line)
            except ValueError as error:
                raise ValueError(f"{where} is not JSON: {error}") from error
            _check(sample, where)
            samples.append(sample)
    return samples


def queries(split: str, folder: str) -> list[Query]:
    """The samples of a split as queries of envs.warp.atomic.AtomicAction. Raises ConfigError when they have not been written."""
    path = Path(folder) / f"{split}.jsonl"
    if not path.is_file():
        raise ConfigError(
            f"there are no samples at {path}; write them with `python -m recipes.trajectories trajectories.folder={folder}`"
        )
    return [Query(sample["id"], sample) for sample in read_samples(path)]


def _check(sample: Any, where: str) -> None:
    if not isinstance(sample, dict):
        raise ValueError(f"{where} is not an object")
    for name, kind in _TYPES.items():
        if name not in sample:
            raise ValueError(f"{where} lacks {name}")
        if not isinstance(sample[name], kind):
            raise ValueError(f"{where}: {name} has the wrong type: {sample[name]!r}")
    if sample["state"] not in STATES:
        raise ValueError(f"{where}: state must be one of {', '.join(STATES)}, got {sample['state']!r}")
    if sample["action"] not in ACTIONS:
        raise ValueError(f"{where}: action must be one of {', '.join(ACTIONS)}, got {sample['action']!r}")
