"""The promises of the layout: what lies at the top, what stays light to import, and that the lists of packages agree."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
TOP = {
    *("rlcore", "envs", "rewards", "recipes", "conf", "tools", "tests", "requirements"),
    *("README.md", "LICENSE", "Makefile", "pyproject.toml", ".gitignore", ".ci"),
}


def test_top_level_holds_the_agreed_entries_only() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=30).stdout.splitlines()
    assert {path.split("/")[0] for path in listed if (ROOT / path).exists()} == TOP


@pytest.mark.parametrize("package", ["envs.warp", "envs.toy", "rewards"])
def test_environments_and_rewards_import_nothing_heavy(package: str) -> None:
    """Every module of the package, in a fresh interpreter; they bring rlcore's types and protocols along."""
    script = f"""
import importlib, pkgutil, sys
package = importlib.import_module({package!r})
modules = [m.name for m in pkgutil.walk_packages(package.__path__, {package!r} + ".")]
for name in modules:
    importlib.import_module(name)
heavy = {{"torch", "ray", "vllm", "deepspeed", "transformers", "faiss", "sentence_transformers"}}
assert modules and "rlcore.types" in sys.modules, modules
print(*sorted(heavy & sys.modules.keys()))
"""
    result = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == []


def test_recipes_start_without_what_only_a_run_needs() -> None:
    """So that a dry run or a wrong override answers in a second (recipes.minimal, which is one flat file, takes its time)."""
    script = """
import sys
import recipes.curriculum, recipes.evaluate, recipes.pipeline_rl
print(*sorted({"torch", "ray", "vllm", "deepspeed", "transformers", "datasets", "matplotlib"} & sys.modules.keys()))
"""
    result = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == []


def _lock() -> dict[str, str]:
    lines = (ROOT / "requirements" / "cpu.lock").read_text().splitlines()
    pairs = [line.split("==") for line in lines if line and not line.lstrip().startswith("#")]
    return {canonicalize_name(name): version for name, version in pairs}


def test_the_lock_is_what_cpu_in_asks_for() -> None:
    lock = _lock()
    lines = [line.split("#")[0].strip() for line in (ROOT / "requirements" / "cpu.in").read_text().splitlines()]
    wanted = [Requirement(line) for line in lines if line]
    assert len(wanted) > 20
    unmet = [str(r) for r in wanted if not r.specifier.contains(lock.get(canonicalize_name(r.name), "0"), prereleases=True)]
    assert unmet == []


def test_the_lock_has_nothing_for_gpus() -> None:
    assert [n for n in _lock() if n.startswith(("nvidia-", "cuda-")) or n in ("triton", "torchvision", "torchaudio")] == []


def test_the_package_allows_the_locked_versions() -> None:
    lock = _lock()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    declared = [Requirement(line) for line in [*project["dependencies"], *extras["cpu"], *extras["world"], *extras["dev"]]]
    checked = [r for r in declared if canonicalize_name(r.name) != project["name"]]
    assert len(checked) > 25
    outside = [str(r) for r in checked if not r.specifier.contains(lock.get(canonicalize_name(r.name), "0"))]
    assert outside == []
