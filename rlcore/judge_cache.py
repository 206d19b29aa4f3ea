"""Answers on disk by the hash of everything that decides them: what a judge has answered once it is never asked again, unless
the answer could not be used.

The folder outlives actors and runs, so a restarted judge or a resumed run finds what was scored before.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from dataclasses import asdict
from typing import Any

import diskcache

from rlcore.errors import ConfigError
from rlcore.judge import JudgeReply

_BROKEN = (sqlite3.Error, OSError, ValueError, TypeError, diskcache.Timeout)


class _PlainDisk(diskcache.Disk):  # type: ignore[misc]
    """Texts only. The library would unpickle other values, and a cache folder is no place to run code from."""

    def fetch(self, mode: int, filename: Any, value: Any, read: bool) -> Any:
        if mode == diskcache.core.MODE_PICKLE:
            raise ValueError("the judge's cache holds texts only")
        return super().fetch(mode, filename, value, read)


def content_key(**content: Any) -> str:
    """SHA-256 of JSON data, whatever the order of its keys. Raises ValueError or RecursionError for what JSON cannot hold."""
    text = json.dumps(content, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


class JudgeCache:
    """Replies by key in `folder`, at most about `size_mib` MiB, the oldest leaving first; None: no replies.

    A fault of the disk is a miss, counted in `faults`, from the first one on: `check` is for the start of a run, where somebody
    reads what is wrong.
    """

    def __init__(self, folder: str | None, size_mib: int) -> None:
        self._folder, self.faults = folder, 0
        self._cache: Any = None
        self._damage: Exception | None = None
        if folder is not None:
            try:
                # No write-ahead log: it does not work on network file systems. Not synchronous: a power cut may cost the cache.
                self._cache = diskcache.Cache(
                    folder, disk=_PlainDisk, size_limit=size_mib * 2**20, timeout=5, sqlite_journal_mode="truncate",
                    sqlite_synchronous=0,
                )  # fmt: skip
            except _BROKEN as error:
                self._damage = error

    def check(self) -> None:
        """Write, read and remove a text. Raises ConfigError with what is wrong."""
        try:
            if self._damage is not None:
                raise self._damage
            if self._cache is not None:
                self._cache.set("check", "")
                self._cache.get("check")
                self._cache.delete("check")
        except _BROKEN as error:
            raise ConfigError(f"cache={self._folder}: {type(error).__name__}: {error}; name another folder") from error

    def get(self, key: str) -> JudgeReply | None:
        try:
            text = None if self._cache is None else self._cache.get(key)
            self.faults += self._damage is not None
            return None if text is None else JudgeReply(**json.loads(text), cached=True, key=key)
        except _BROKEN:
            self.faults += 1
            return None

    def put(self, key: str, reply: JudgeReply) -> None:
        """Keep a reply, unless it is empty or was cut off: that may go better another time."""
        if self._cache is None or not reply.text or reply.finish_reason != "stop":
            return
        row = asdict(reply)
        del row["cached"], row["key"]
        try:
            self._cache.set(key, json.dumps(row, ensure_ascii=False))
        except _BROKEN:
            self.faults += 1

    def drop(self, key: str) -> None:
        """Forget a reply. A server that is repaired under the same name would otherwise be known by it for ever."""
        try:
            if self._cache is not None:
                self._cache.delete(key)
        except _BROKEN:
            self.faults += 1

    def close(self) -> None:
        if self._cache is not None:
            self._cache.close()
