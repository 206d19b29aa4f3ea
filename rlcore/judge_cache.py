"""Answers on disk by the hash of everything that decides them: what a judge has answered once it is never asked again.

The folder outlives actors and runs, so a restarted judge or a resumed run finds what was scored before.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from dataclasses import asdict
from typing import Any

import diskcache

from rlcore.judge import JudgeReply

_BROKEN = (sqlite3.Error, OSError, ValueError, TypeError, diskcache.Timeout)


class _PlainDisk(diskcache.Disk):  # type: ignore[misc]
    """Texts only. The library would unpickle other values, and a cache folder is no place to run code from."""

    def fetch(self, mode: int, filename: Any, value: Any, read: bool) -> Any:
        if mode == diskcache.core.MODE_PICKLE:
            raise ValueError("the judge's cache holds texts only")
        return super().fetch(mode, filename, value, read)


def content_key(**content: Any) -> str:
    """SHA-256 of JSON data, whatever the order of its keys."""
    text = json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


class JudgeCache:
    """Replies by key in `folder`, at most about `size_mib` MiB, the oldest leaving first. A fault of the disk is a miss, counted
    in `faults`."""

    def __init__(self, folder: str | None, size_mib: int) -> None:
        self.faults = 0
        self._cache: Any = None
        if folder is not None:
            # No write-ahead log: it does not work on network file systems. Not synchronous: a power cut may cost the cache.
            self._cache = diskcache.Cache(
                folder, disk=_PlainDisk, size_limit=size_mib * 2**20, timeout=5, sqlite_journal_mode="truncate",
                sqlite_synchronous=0,
            )  # fmt: skip

    def get(self, key: str) -> JudgeReply | None:
        try:
            text = None if self._cache is None else self._cache.get(key)
            return None if text is None else JudgeReply(**json.loads(text), cached=True)
        except _BROKEN:
            self.faults += 1
            return None

    def put(self, key: str, reply: JudgeReply) -> None:
        if self._cache is None:
            return
        row = asdict(reply)
        del row["cached"]
        try:
            self._cache.set(key, json.dumps(row, ensure_ascii=False))
        except _BROKEN:
            self.faults += 1

    def close(self) -> None:
        if self._cache is not None:
            self._cache.close()
