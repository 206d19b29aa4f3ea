"""The server's process: its command line, and what is said when it does not come up. vLLM itself: test_judge_actors.py."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from rlcore import judge_server
from rlcore.errors import ConfigError
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
    gpu = server_arguments(LocalJudgeConfig("some/model", "bfloat16", 8192, gpus=2), "10.0.0.1", 81)
    assert dict(zip(gpu, gpu[1:], strict=False))["--tensor-parallel-size"] == "2" and "--enforce-eager" not in gpu
    assert server_environment(LocalJudgeConfig("m", "float32", 64, threads=3, kv_cache_gib=2)).items() >= {
        ("OMP_NUM_THREADS", "3"), ("VLLM_CPU_KVCACHE_SPACE", "2"), ("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    }  # fmt: skip


def starting(monkeypatch: pytest.MonkeyPatch, command: list[str], timeout_s: float) -> str:
    """The error of a server that is this command instead."""
    monkeypatch.setattr(judge_server, "launch", lambda *_: command)
    with pytest.raises(ConfigError) as error:
        asyncio.run(JudgeServer(LocalJudgeConfig("m", "float32", 64)).start(timeout_s))
    return str(error.value)


def test_a_server_that_ends_shows_its_last_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    said = starting(monkeypatch, ["sh", "-c", "echo out of memory >&2; exit 3"], 60)
    assert said == "the judge's server ended with 3: out of memory"


def test_a_server_that_does_not_answer_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["sleep", "98.765"]
    assert "did not answer within 0.5 s" in starting(monkeypatch, command, 0.5)
    assert not [p for p in psutil.Process().children() if p.cmdline() == command]


def test_the_process_ends_with_its_parent(tmp_path: Path) -> None:
    """A parent that is killed without a word; the child has watched it since before it became the server."""
    child = (
        "import os, sys, time; import rlcore.judge_server as s; "
        "s.os.execv = lambda *_: (print('up', flush=True), time.sleep(100)); s.become_server(int(sys.argv[1]), [])"
    )
    parent = (
        f"import os, subprocess, sys, time; command = [sys.executable, '-c', {child!r}, str(os.getpid())]; "
        "p = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True); "
        "p.stdout.readline(); print(p.pid, flush=True); time.sleep(100)"
    )
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    process.kill()
    process.wait()
    for _ in range(200):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":  # nobody has collected it yet
            return
        time.sleep(0.05)
    pytest.fail("the child outlived its parent")
