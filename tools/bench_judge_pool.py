"""What the judge pool itself costs a call, and its limits in real time: over HTTP, against a server in a process of its own.

    python -m tools.bench_judge_pool --calls 1000

Prints one JSON line for each measurement. Overhead is a call's time less what the server says it took (`http_ms`: HTTP and the
event loop included) and less the whole request (`pool_ms`: key, cache on disk, limits, choice of endpoint), with as many calls in
flight as are allowed. The limits are those of a minute of `--minute` seconds. How they hold on a virtual clock, with faults and
slow judges: tests/rlcore/test_judge_limits.py and test_judge_pool.py.
"""

from __future__ import annotations

import argparse
import asyncio
import bisect
import json
import multiprocessing
import statistics
import tempfile
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from typing import Any

from rlcore.judge_config import JudgeConfig, JudgeEndpointConfig, JudgeLimitsConfig
from rlcore.judge_pool import JudgePool

SERVICE_S = 0.02
CONCURRENT = 16


class _Handler(BaseHTTPRequestHandler):
    """Answers with the moment the request came and the seconds it took."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        came = time.monotonic()
        self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep(SERVICE_S)
        text = json.dumps({"came": came, "took": time.monotonic() - came})
        body = json.dumps({"choices": [{"message": {"content": text}, "finish_reason": "stop"}]}).encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        self.wfile.write(head.encode() + body)

    def log_message(self, *_: Any) -> None:
        pass


def _serve(port: Connection) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    port.send(server.server_port)
    server.serve_forever()


async def _calls(pool: JudgePool, count: int) -> list[tuple[float, dict[str, float]]]:
    """Seconds of every call, and what the server said about it."""
    left = iter(range(count))
    results = []

    async def worker() -> None:
        for i in left:
            began = time.perf_counter()
            reply = await pool.ask([{"role": "user", "content": f"question {i}: {'text ' * 200}"}], component="bench")
            results.append((time.perf_counter() - began, json.loads(reply.text)))

    await asyncio.gather(*(worker() for _ in range(CONCURRENT)))
    return results


async def _overhead(url: str, calls: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        pool = _pool(url, JudgeLimitsConfig(CONCURRENT, 10**6, 10**9), cache=folder)
        await _calls(pool, 50)  # opens the connections
        results = await _calls(pool, calls + 50)
        figures = await pool.stats()
    over = [1000 * (seconds - said["took"]) for seconds, said in results[50:]]
    print(json.dumps({
        "overhead": "median", "calls": calls, "http_ms": round(statistics.median(over), 2),
        "pool_ms": round(1000 * figures["wait_p50_s"], 2),
    }), flush=True)  # fmt: skip


async def _limits(url: str, calls: int, minute_s: float) -> None:
    per_minute = max(1, calls * 3 // 10)
    pool = _pool(url, JudgeLimitsConfig(CONCURRENT, per_minute), minute_s=minute_s)
    came = sorted(said["came"] for _, said in await _calls(pool, calls))
    fullest = max(bisect.bisect_left(came, start + minute_s) - i for i, start in enumerate(came))
    whole = (calls - 1) // per_minute  # minutes that were filled before the last ones came
    used = whole * minute_s / (came[whole * per_minute] - came[0])
    print(json.dumps({"limit": per_minute, "fullest_minute": fullest, "rate_used": round(used, 4)}), flush=True)


def _pool(url: str, limits: JudgeLimitsConfig, minute_s: float = 60.0, cache: str | None = None) -> JudgePool:
    endpoints = {"stub": JudgeEndpointConfig(url, "stub")}
    return JudgePool(JudgeConfig(endpoints=endpoints, limits=limits, cache=cache), endpoints, {}, minute_s=minute_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--minute", type=float, default=6.0, help="seconds of a minute")
    parser.add_argument("--runs", type=int, default=3, help="measurements of the overhead; the least one counts")
    arguments = parser.parse_args()
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=_serve, args=(theirs,), daemon=True)
    server.start()
    url = f"http://127.0.0.1:{ours.recv()}/v1"
    for _ in range(arguments.runs):
        asyncio.run(_overhead(url, arguments.calls // 4))
    asyncio.run(_limits(url, arguments.calls, arguments.minute))
    server.terminate()


if __name__ == "__main__":
    main()
