"""Install the complete CPU stack, requirements/cpu.lock, into an environment; make the environment when it is not there.

    python3.11 tools/install.py .venv [more arguments, such as --extra-index-url URL]

uv does in half a minute what takes pip three, but it does not read pip's configuration, so the sources set there are passed on.
Where uv cannot do it, that is said and pip does. Runs on a bare interpreter: the standard library only.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import venv
from pathlib import Path

LOCK = Path(__file__).resolve().parents[1] / "requirements" / "cpu.lock"
SOURCES = ("index-url", "extra-index-url", "find-links")  # uv has them under the same names


def pip_sources(listing: str) -> list[str]:
    """Where pip is configured to look, from the output of `pip config list`, as arguments of uv."""
    arguments = []
    for name, value in re.findall(r"^[\w:]+\.([\w-]+)=(.*)$", listing, re.M):
        if name in SOURCES:
            for source in str(ast.literal_eval(value)).split():
                arguments += [f"--{name}", source]
    return arguments


def with_uv(python: Path, more: list[str]) -> bool:
    """Install the lock with the uv that it names. False when that did not work."""
    (pin,) = re.findall(r"^uv==\S+", LOCK.read_text(), re.M)
    pip = [str(python), "-m", "pip"]
    if subprocess.run([*pip, "install", "--quiet", *more, pin]).returncode:
        return False
    listing = subprocess.run([*pip, "config", "list"], capture_output=True, text=True, check=True).stdout
    command = [str(python), "-m", "uv", "pip", "install", "--quiet", "--python", str(python), "--no-deps", "-r", str(LOCK)]
    # As pip does, take the best version of all sources: the build for CPUs of PyTorch has the same number on another index.
    return subprocess.run([*command, "--index-strategy", "unsafe-best-match", *pip_sources(listing), *more]).returncode == 0


def main(folder: str, *more: str) -> None:
    python = Path(folder) / "bin" / "python"
    if not python.exists() or subprocess.run([str(python), "-m", "pip", "--version"], capture_output=True).returncode:
        venv.create(folder, with_pip=True, symlinks=True)
    if not with_uv(python, list(more)):
        print("install: uv could not do it; pip does, in minutes", flush=True)
        command = [str(python), "-m", "pip", "install", "--quiet", "--no-compile", "--no-deps", "-r", str(LOCK)]
        subprocess.run([*command, *more], check=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
