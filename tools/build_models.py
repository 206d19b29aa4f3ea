"""Build the models that the embedded world runs on, once: `python -m tools.build_models --out data/models`.

    tiny      random weights, a few million of them; for plumbing       (seconds)
    smollm2   SmolLM2-135M-Instruct from its package; it can learn      (about a minute)

A folder is complete when it holds `build.json` with the current version of its recipe; then nothing is done. A build goes to a
temporary folder that is renamed at the end, so an interrupted one leaves nothing that looks finished.
"""

from __future__ import annotations

import argparse
import importlib
import json
import shutil
import tempfile
import time
from pathlib import Path

# Raise a version when its recipe changes what is written: folders of an older version are built again.
VERSIONS = {"tiny": 1, "smollm2": 1}


def is_complete(folder: Path, name: str) -> bool:
    """True when `folder` holds model `name`, built by the current version of its recipe."""
    try:
        record = json.loads((folder / "build.json").read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return False
    return record == {"model": name, "version": VERSIONS[name]}


def build_model(name: str, out: Path) -> Path:
    """Build model `name` into `out/name` unless it is complete; return that folder.

    Raises ValueError when `name` is not one of `VERSIONS`.
    """
    if name not in VERSIONS:
        raise ValueError(f"model must be one of {sorted(VERSIONS)}, got {name!r}")
    folder = out / name
    if is_complete(folder, name):
        print(f"{folder}: up to date")
        return folder
    out.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    print(f"{folder}: building", flush=True)
    with tempfile.TemporaryDirectory(dir=out, prefix=f".{name}-") as scratch:
        built = Path(scratch) / name
        built.mkdir()
        # Imported here: torch and transformers take seconds, and an up-to-date folder needs neither.
        importlib.import_module(f"tools.build_{name}").build(built)
        (built / "build.json").write_text(json.dumps({"model": name, "version": VERSIONS[name]}) + "\n")
        shutil.rmtree(folder, ignore_errors=True)
        built.rename(folder)
    print(f"{folder}: built in {time.monotonic() - started:.0f} s")
    return folder


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Build the models of the embedded world that are not up to date.")
    parser.add_argument("--out", type=Path, default=Path("data/models"), help="folder that gets one subfolder a model")
    parser.add_argument("--only", choices=sorted(VERSIONS), help="build this one only")
    options = parser.parse_args(arguments)
    for name in [options.only] if options.only else VERSIONS:
        build_model(name, options.out)


if __name__ == "__main__":
    main()
