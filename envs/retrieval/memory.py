"""Whether what is to be loaded fits: better a message before than the kernel's killer in the middle."""

from __future__ import annotations

from pathlib import Path

import psutil

from rlcore.errors import ConfigError

GIB = 2.0**30
BYTES_PER_ID = 100  # a string, its place in a list and a share of the set it is checked with
BYTES_PER_DOCUMENT = 450  # Python's own: four strings, the Document, its entry in the dictionary


def corpus_bytes(path: str | Path, count: int) -> int:
    """Roughly what `count` documents take in memory once read. Chinese text takes less than on disk, rare symbols more."""
    return Path(path).stat().st_size + BYTES_PER_DOCUMENT * count


def index_bytes(path: str | Path, count: int) -> int:
    """Roughly what an index folder's own files take in memory: they hold the vectors or scores as they are used."""
    return sum(file.stat().st_size for file in Path(path).iterdir() if file.is_file()) + BYTES_PER_ID * count


def check_memory(needed: dict[str, int]) -> None:
    """Raises ConfigError, with both figures, when the bytes `needed` by name are more than the machine has available."""
    available = psutil.virtual_memory().available
    if sum(needed.values()) > available:
        parts = ", ".join(f"{name} {size / GIB:.3g}" for name, size in needed.items())
        raise ConfigError(
            f"the search service needs about {sum(needed.values()) / GIB:.3g} GiB of memory ({parts}), but only "
            f"{available / GIB:.3g} GiB are available; use fewer documents or replicas, or a larger machine"
        )
