"""The server's process: its command line, and what is said when it does not come up. vLLM itself: recipes/test_runs.py."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from rlcore import judge_server
from rlcore.errors import ConfigError, InfrastructureFailure
from rlcore.judge_config import LocalJudgeConfig
from rlcore.judge_server import JudgeServer, server_arguments, server_environment

ROOT = Path(__file__).parents[2]


def test_arguments_on_cpu_and_gpu() -> None:
    cpu = server_arguments(LocalJudgeConfig("some/model", "float32", 8192, args=["--reasoning-parser", "qwen3"]), "127.0.0.1", 81)
    pairs = dict(zip(cpu, cpu[1:], strict=False))
    assert (pairs["--model"], pairs["--host"], pairs["--port"], pairs["--max-num-batched-tokens"]) == (
        "some/model",
        "127.0.0.1",
        "81",
        "8192",
    )
    assert cpu[-2:] == ["--reasoning-parser", "qwen3"] and "--enforce-eager" in cpu
    assert json.loads(pairs["--structured-outputs-config"])["disable_any_whitespace"] is True
    gpu = server_arguments(LocalJudgeConfig("some/model", "bfloat16", 8192, gpus=2), "10.0.0.1", 81)
    assert dict(zip(gpu, gpu[1:], strict=False))["--tensor-parallel-size"] == "2" and "--enforce-eager" not in gpu
    assert server_environment(LocalJudgeConfig("m", "float32", 64, threads=3, kv_cache_gib=2)).items() >= {
        ("OMP_NUM_THREADS", "3"), ("VLLM_CPU_KVCACHE_SPACE", "2"), ("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    }  # fmt: skip


def starting(monkeypatch: pytest.MonkeyPatch, script: str, timeout_s: float) -> str:
    """The error of a server that is this shell script instead."""
    command = [sys.executable, "-m", "rlcore.judge_server", "sh", "-c", script]
    monkeypatch.setattr(judge_server, "launch", lambda *_: command)
    with pytest.raises(ConfigError) as error:
        asyncio.run(JudgeServer(LocalJudgeConfig("m", "float32", 64)).start(timeout_s))
    return str(error.value)


def living(seconds: str) -> list[psutil.Process]:
    """The processes that sleep so many seconds."""
    return [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", seconds]]


def test_a_server_that_ends_shows_its_last_lines_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    said = starting(monkeypatch, "(trap '' TERM; sleep 98.765) & echo out of memory >&2; exit 3", 60)
    assert said == "the judge's server ended with 3: out of memory" and not living("98.765")


def test_a_server_that_does_not_answer_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "did not answer within 0.5 s" in starting(monkeypatch, "sleep 98.766 & wait", 0.5)
    assert not living("98.766")


def test_a_server_that_ends_later_is_named_with_its_last_lines() -> None:
    server = JudgeServer(LocalJudgeConfig("m", "float32", 64))
    asyncio.run(server.check())  # not started yet
    server._process = subprocess.Popen(
        ["sh", "-c", "read line; echo out of memory; exit 3"], stdin=subprocess.PIPE, stdout=server._log
    )
    asyncio.run(server.check())
    server._process.communicate(b"now\n")
    with pytest.raises(InfrastructureFailure, match="ended with 3: out of memory"):
        asyncio.run(server.check())


def test_the_whole_group_ends_with_its_parent() -> None:
    """Parent and server are killed without a word, as Ray does; the server leaves a child behind that does not care."""
    server = ["sh", "-c", "(trap '' TERM; echo up; sleep 98.767) & wait"]
    parent = (
        f"import subprocess, sys, time; command = [sys.executable, '-m', 'rlcore.judge_server', *{server!r}]; "
        "p = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True); "
        "p.stdout.readline(); print(p.pid, flush=True); time.sleep(100)"
    )
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout is not None
    child = psutil.Process(int(process.stdout.readline()))
    group = [child, *child.children(recursive=True)]
    child.kill()  # first: with its parent gone it may be gone too
    process.kill()
    process.wait()
    psutil.wait_procs(group, timeout=20)
    assert len(group) >= 3 and not [p for p in group if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
