"""What has been paid for stays paid for: the answers of one piece of work, kept on disk as they come."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from rlcore.files import write_atomic


class Journal:
    """Answers by name, one JSON line each, so that work which stops in the middle asks for nothing twice. Without a path, they
    are kept in memory only."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._answers: dict[str, Any] = {}
        if path is not None and path.is_file():
            text = path.read_text(encoding="utf-8")
            whole = text[: text.rfind("\n") + 1]
            if whole != text:  # the stop came while a line was written
                write_atomic(path, whole)
            self._answers = dict(json.loads(line) for line in whole.splitlines())

    async def once(self, name: str, ask: Callable[[], Awaitable[Any]]) -> Any:
        """The answer (plain JSON data) under this name: the one that is known, else that of `ask`."""
        if name not in self._answers:
            self._keep(name, await ask())
        return self._answers[name]

    def _keep(self, name: str, answer: Any) -> None:
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(json.dumps([name, answer]) + "\n")
        self._answers[name] = answer
