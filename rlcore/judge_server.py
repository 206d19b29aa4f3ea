"""A judge of our own: vLLM's OpenAI server as a process of one Ray actor.

    actor (JudgeServer) --stdin--> vLLM's server --> its engine
                                              +----> watcher (this file as a program)

They are a group of processes of their own and end with the actor, whatever happens to that: the watcher sees its pipe close.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx

from rlcore.cluster import free_port
from rlcore.errors import ConfigError, InfrastructureFailure
from rlcore.judge_config import LocalJudgeConfig

STOP_S = 10.0
LAST_LINES = 15
# No blanks between the parts of a reply that is held to a schema: a small model may write them until it is cut off.
COMPACT = '{"backend": "xgrammar", "disable_any_whitespace": true}'


class JudgeServer:
    """Hosted by rlcore.cluster.Service. The server listens on this node's own address and asks for a key made up here."""

    def __init__(self, config: LocalJudgeConfig) -> None:
        self._config = config
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the server
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self, timeout_s: float) -> tuple[str, str]:
        """Start the server; returns its URL and key once it answers.

        Raises ConfigError with the last lines of its log when it ends, or does not answer within `timeout_s`.
        """
        host, key = _own_address(), secrets.token_hex(16)
        port = free_port(host)
        command = launch(self._config, host, port)
        environment = {**os.environ, **server_environment(self._config), "VLLM_API_KEY": key}
        self._process = subprocess.Popen(  # noqa: ASYNC220 - returns at once
            command, env=environment, stdin=subprocess.PIPE, stdout=self._log, stderr=self._log, start_new_session=True
        )
        try:
            async with asyncio.timeout(timeout_s), httpx.AsyncClient(timeout=5.0) as client:
                while not await _healthy(client, f"http://{host}:{port}/health"):
                    if self._process.poll() is not None:
                        raise ConfigError(f"the judge's server ended with {self._process.returncode}: {self._last_lines()}")
                    await asyncio.sleep(0.3)
        except BaseException as error:
            await self.stop()
            if isinstance(error, TimeoutError):
                raise ConfigError(f"the judge's server did not answer within {timeout_s:g} s: {self._last_lines()}") from error
            raise
        return f"http://{host}:{port}/v1", key

    async def check(self) -> None:
        """Raises InfrastructureFailure with the last lines of its log when the server has ended by itself."""
        if self._process is not None and self._process.poll() is not None:
            raise InfrastructureFailure(f"the judge's server ended with {self._process.returncode}: {self._last_lines()}")

    async def stop(self) -> None:
        """End the server and its children."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()  # the watcher's sign
        until = time.monotonic() + STOP_S
        while (process.poll() is None or _group_lives(process.pid)) and time.monotonic() < until:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        if _group_lives(process.pid):
            os.killpg(process.pid, signal.SIGKILL)

    def _last_lines(self) -> str:
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - 8192))
        lines = self._log.read().decode("utf-8", "replace").splitlines()
        return "\n".join(lines[-LAST_LINES:])


def launch(c: LocalJudgeConfig, host: str, port: int) -> list[str]:
    """This file as a program, which becomes the server."""
    return [
        sys.executable,
        "-m",
        __name__,
        sys.executable,
        "-m",
        "vllm.entrypoints.openai.api_server",
        *server_arguments(c, host, port),
    ]


def server_arguments(c: LocalJudgeConfig, host: str, port: int) -> list[str]:
    """The server's command line. The model is served under the name it is configured with."""
    arguments = [
        *("--model", c.model, "--served-model-name", c.model, "--host", host, "--port", str(port), "--dtype", c.dtype),
        *("--max-model-len", str(c.max_model_len), "--max-num-seqs", str(c.max_num_seqs), "--seed", "0"),
        *("--generation-config", "vllm", "--disable-uvicorn-access-log", "--tensor-parallel-size", str(max(1, c.gpus))),
        *("--structured-outputs-config", COMPACT),
    ]
    if c.gpus == 0:  # as for the rollout engine (rlcore/engine.py)
        arguments += ["--enforce-eager", "--block-size", "32", "--gpu-memory-utilization", "0.3", "--no-enable-chunked-prefill"]
        arguments += ["--max-num-batched-tokens", str(max(4096, c.max_model_len))]
    else:
        arguments += ["--gpu-memory-utilization", str(c.gpu_memory_utilization)]
    return arguments + c.args


def server_environment(c: LocalJudgeConfig) -> dict[str, str]:
    """The variables it needs beyond this process's own."""
    from rlcore.cluster import cpu_environment

    path = os.pathsep.join(filter(None, [str(Path(__file__).absolute().parents[1]), os.environ.get("PYTHONPATH")]))
    common = {"VLLM_LOGGING_LEVEL": "WARNING", "PYTHONPATH": path}
    if c.gpus > 0:
        return common
    unbound = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": str(c.kv_cache_gib)}
    return common | cpu_environment(c.threads) | unbound


def _own_address() -> str:
    """This node's address in the cluster, loopback without one."""
    import ray

    return ray.util.get_node_ip_address() if ray.is_initialized() else "127.0.0.1"


async def _healthy(client: httpx.AsyncClient, url: str) -> bool:
    try:
        return (await client.get(url)).status_code == 200
    except httpx.TransportError:
        return False


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def become_server(command: list[str]) -> None:
    """Turn this process into the server; a child of it watches the actor's end of stdin, and ends the group when that closes.

    Ray kills an actor's children with it, and nobody else: the watcher has to be a grandchild, and to end the server's children,
    which would outlive it.
    """
    server = os.getpid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sys.stdin.buffer.read()  # ends when the actor does
        os.killpg(0, signal.SIGTERM)
        until = time.monotonic() + STOP_S / 2
        while os.getppid() == server and time.monotonic() < until:
            time.sleep(0.1)
        os.killpg(0, signal.SIGKILL)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.execvp(command[0], command)


if __name__ == "__main__":
    become_server(sys.argv[1:])
