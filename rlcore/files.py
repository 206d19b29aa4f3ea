"""Files that are there whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path


def write_atomic(path: str | Path, text: str) -> None:
    """Write a UTF-8 file beside its place, wait until it is on disk, and rename it into it: a reader never sees half of one."""
    temporary = Path(f"{path}.tmp")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
