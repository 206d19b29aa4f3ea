"""`tools.write_report` as a user types it, against an OpenAI-compatible endpoint in this process."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import rlcore.endpoint
from tests.recipes.report_world import NOP, QUESTION, reply
from tools.write_report import default_path, main

TOKENS = {56: "search", 160: "initialize", 144: "write", 112: "extend"}  # of conf/env/warp_report.yaml
OVERRIDES = [
    "env.services.retriever.target=tests.recipes.report_world.retriever",
    "env.preflight=null",
    "model=tiny",
    "evaluate.report_temperature=0.7",
]


class Endpoint(ThreadingHTTPServer):
    """Writes the seed of a draw into every text. `kill[n]` is the process to end at the n-th request, before the answer."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[dict[str, Any]] = []
        self.victim: subprocess.Popen[bytes] | None = None
        self.kill_at = self.busy_at = -1
        self.url = f"http://127.0.0.1:{self.server_port}/v1"


class Handler(BaseHTTPRequestHandler):
    server: Endpoint

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append(body)
        number = len(self.server.requests) - 1
        if number == self.server.kill_at and self.server.victim is not None:
            self.server.victim.send_signal(signal.SIGKILL)
            return
        if number == self.server.busy_at:
            self.send_error(503)
            return
        state, prompt = TOKENS[body["max_tokens"]], body["messages"][-1]["content"]
        text = reply(state, prompt, note=f"Draw {body['seed']}.")
        text = NOP if state == "extend" and "section-1.1" in prompt else text
        answer = {"choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}]}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def endpoint():
    with Endpoint() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server
        server.shutdown()


def arguments(endpoint: Endpoint, out: Path) -> list[str]:
    return [QUESTION, "--url", endpoint.url, "--served-model", "m", "--out", str(out), *OVERRIDES]


@pytest.mark.timeout(400)  # a process of its own, on a machine that may be busy
def test_killed_in_the_middle_and_started_again_it_ends_with_the_same_report(endpoint, tmp_path, capsys):
    assert main(arguments(endpoint, tmp_path / "whole.md")) == 0
    wanted, whole = (tmp_path / "whole.md").read_text(), [r["seed"] for r in endpoint.requests]
    assert len(whole) == 14 and wanted.count("Draw") == 5 and "complete; 14 actions, 5 sections" in capsys.readouterr().out

    endpoint.requests.clear()
    endpoint.kill_at = 7  # the third section's WRITE: two sections are finished
    command = [sys.executable, "-m", "tools.write_report", *arguments(endpoint, tmp_path / "killed.md")]
    endpoint.victim = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": os.getcwd()}, stderr=subprocess.PIPE)
    _, errors = endpoint.victim.communicate(timeout=300)
    assert endpoint.victim.returncode == -signal.SIGKILL, errors
    assert not (tmp_path / "killed.md").exists()
    before = [r["seed"] for r in endpoint.requests]
    assert before == whole[:8]

    endpoint.requests.clear()
    endpoint.kill_at, endpoint.busy_at = -1, 1  # and once the server is busy
    assert main(arguments(endpoint, tmp_path / "killed.md")) == 0
    assert (tmp_path / "killed.md").read_text() == wanted
    after = [r["seed"] for r in endpoint.requests]
    assert after == [whole[7], whole[8], *whole[8:]]  # the unanswered one, the busy one twice, the rest once
    sampling = {"temperature": 0.7, "top_p": 1.0, "max_tokens": 144, "seed": whole[7]}
    assert endpoint.requests[0] == {"model": "m", "messages": endpoint.requests[0]["messages"], **sampling}


def test_an_endpoint_that_is_not_there_stops_with_a_word_on_how_to_go_on(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("tools.write_report.Endpoint", functools.partial(rlcore.endpoint.Endpoint, attempts=1))
    command = [QUESTION, "--url", "http://127.0.0.1:9/v1", "--out", str(tmp_path / "r.md"), *OVERRIDES]
    assert main(command) == 1
    assert "InfrastructureFailure: http://127.0.0.1:9/v1/chat/completions: ConnectError" in (errors := capsys.readouterr().err)
    assert "the same command goes on from there" in errors


def test_an_environment_of_single_actions_is_refused_before_anything_starts(tmp_path, capsys):
    assert main([QUESTION, "--out", str(tmp_path / "a.md"), "env=warp_atomic"]) == 2
    assert "env=warp_atomic does not write reports" in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_bad_input_is_one_message(tmp_path, capsys):
    assert main([QUESTION, "--url", "http://127.0.0.1:9", "env.args.limit=3", "nonsense.key=1"]) == 2
    assert "unknown key 'nonsense.key'" in capsys.readouterr().err


def test_the_default_file_is_named_after_the_question():
    one, other = default_path("How do tides work?"), default_path("How do tides work")
    assert one.name.startswith("how-do-tides-work-") and one.suffix == ".md" and one != other
    assert default_path("???").name.startswith("report-")
