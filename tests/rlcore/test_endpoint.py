"""The endpoint client against a real HTTP server that gives prepared answers."""

from __future__ import annotations

import asyncio
import email.utils
import json
import math
import re
import threading
import time
import traceback
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

from rlcore.endpoint import Endpoint, _seconds, check_url
from rlcore.errors import ConfigError, DataFailure, InfrastructureFailure, NoRoom

MESSAGES = [{"role": "user", "content": "你好"}]
NO_HEADER = "sk-\nsecret"
GOOD = {"choices": [{"message": {"role": "assistant", "content": "Hello."}, "finish_reason": "length"}]}


@pytest.fixture
def server():
    """Answers with `answers` in turn, (status, data or text, seconds to wait), the last one for ever; records in `requests`."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            httpd.requests.append((self.path, self.headers.get("Authorization"), body))
            status, data, wait = httpd.answers.pop(0) if len(httpd.answers) > 1 else httpd.answers[0]
            time.sleep(wait)
            payload = (data if isinstance(data, str) else json.dumps(data)).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        def log_message(self, *_):
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    httpd.requests, httpd.answers = [], [(200, GOOD, 0)]
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield httpd
    httpd.shutdown()
    thread.join()
    httpd.server_close()


def ask(server, *answers, key="sk-secret", timeout_s=5.0, attempts=3):
    server.answers = list(answers)

    async def one():
        url = f"http://127.0.0.1:{server.server_port}/v1/"
        options = {"temperature": 0.7, "top_p": 0.8, "timeout_s": timeout_s, "attempts": attempts, "wait_s": 0.001}
        async with Endpoint(url, "big", key, **options) as endpoint:
            return await endpoint.generate(MESSAGES, max_tokens=64)

    return asyncio.run(one())


@pytest.mark.parametrize(
    "url", ["http://host:port/v1", "http://host:99999/v1", "http://[::1/v1", "host:8000/v1", "http:///v1", ""]
)
def test_what_is_no_address_is_refused_before_a_request(url):
    with pytest.raises(ConfigError, match=re.escape(f"url={url!r} must be an address such as http://host:8000/v1")):
        Endpoint(url, "big", None, timeout_s=1.0)


def test_addresses():
    for url in ("http://host:8000/v1", "https://host/v1/", "http://[::1]:8000/v1", "http://höst/v1"):
        check_url("url", url)


def test_a_completion(server):
    reply = ask(server, (200, GOOD, 0))
    assert (reply.text, reply.finish_reason) == ("Hello.", "length")
    ((path, authorization, body),) = server.requests
    assert path == "/v1/chat/completions" and authorization == "Bearer sk-secret"
    assert body == {"model": "big", "messages": MESSAGES, "max_tokens": 64, "temperature": 0.7, "top_p": 0.8}


def test_a_server_without_keys_gets_none(server):
    ask(server, (200, GOOD, 0), key=None)
    assert server.requests[0][1] is None


def test_what_passes_is_tried_again(server):
    assert ask(server, (503, "busy", 0), (429, "slow down", 0), (200, GOOD, 0)).text == "Hello."
    assert len(server.requests) == 3


def test_a_budget_of_attempts(server):
    with pytest.raises(InfrastructureFailure, match="/v1/chat/completions answered 500: broken"):
        ask(server, (500, "broken", 0))
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("status", "error"),
    [(401, ConfigError), (402, ConfigError), (404, ConfigError), (400, DataFailure), (422, DataFailure)],
)
def test_what_does_not_pass_is_asked_once_and_never_shows_the_key(server, status, error):
    with pytest.raises(error, match=f"answered {status}: no: ") as raised:
        ask(server, (status, "no: sk-secret", 0))
    assert len(server.requests) == 1 and "sk-secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("status", "text", "error"),
    [
        (400, '{"error": {"code": "context_length_exceeded"}}', NoRoom),
        (400, "This model's maximum context length is 4096 tokens. However, you requested 5000", NoRoom),
        (400, "the request exceeds the available context size. try increasing it", NoRoom),
        (413, "payload too large", NoRoom),
        (400, "Unsupported parameter: max_tokens", DataFailure),
    ],
)
def test_only_a_prompt_that_is_too_long_has_no_room(server, status, text, error):
    with pytest.raises(DataFailure) as raised:
        ask(server, (status, text, 0))
    assert type(raised.value) is error


def test_the_key_is_masked_before_the_message_is_cut(server):
    with pytest.raises(DataFailure) as raised:
        ask(server, (400, "x" * 296 + "sk-secret", 0))
    assert "sk-" not in str(raised.value) and str(raised.value).endswith("x***")


def test_a_key_that_is_no_header_is_not_shown(server):
    with pytest.raises(InfrastructureFailure, match="LocalProtocolError$") as raised:
        ask(server, (200, GOOD, 0), key=NO_HEADER, attempts=1)
    assert "secret" not in "".join(traceback.format_exception(raised.value))


def test_a_reply_that_cannot_be_decoded_passes(server, monkeypatch):
    async def undecodable(*_, **__):
        raise httpx.DecodingError("incorrect header check")

    monkeypatch.setattr(httpx.AsyncClient, "send", undecodable)
    with pytest.raises(InfrastructureFailure, match="DecodingError: incorrect header check"):
        ask(server, (200, GOOD, 0), attempts=1)


@pytest.mark.parametrize("content", ["half of a pair: \ud83d", math.nan])
def test_what_cannot_be_written_as_json_is_the_datas_fault(server, monkeypatch, content):
    monkeypatch.setitem(MESSAGES[0], "content", content)
    with pytest.raises(DataFailure, match="cannot be written as JSON"):
        ask(server, (200, GOOD, 0))
    assert not server.requests


@pytest.mark.parametrize(
    ("usage", "counts"),
    [
        ({"prompt_tokens": 3, "completion_tokens": 0}, (3, 0)),
        ({"prompt_tokens": 3}, (None, None)),
        ({"prompt_tokens": 3, "completion_tokens": -1}, (None, None)),
        ({"prompt_tokens": True, "completion_tokens": 1}, (None, None)),
        ({"prompt_tokens": "3", "completion_tokens": 1}, (None, None)),
        ({"prompt_tokens": 3.0, "completion_tokens": 1}, (None, None)),
    ],
)
def test_tokens_are_what_a_server_can_have_counted(server, usage, counts):
    reply = ask(server, (200, GOOD | {"usage": usage}, 0))
    assert (reply.prompt_tokens, reply.completion_tokens) == counts


@pytest.mark.parametrize(
    "answer", ["not json", {"choices": []}, {"error": "odd"}, [], {"choices": [{"message": {"content": 4}}]}, "[" * 100_000]
)
def test_an_answer_that_is_no_completion_passes_or_fails(server, answer):
    assert ask(server, (200, answer, 0), (200, GOOD, 0)).text == "Hello."
    with pytest.raises(InfrastructureFailure, match="answered no chat completion"):
        ask(server, (200, answer, 0))


def test_no_money_left_is_not_asked_again(server):
    with pytest.raises(ConfigError, match="answered 429"):
        ask(server, (429, {"error": {"code": "insufficient_quota"}}, 0))
    assert len(server.requests) == 1


def test_retry_after_is_seconds_or_a_date():
    soon = email.utils.formatdate(time.time() + 100, usegmt=True)
    assert [_seconds(text) for text in ("7", " 0 ", "1.5", "Wed, 21 Oct 2015 07:28:00 GMT")] == [7.0, 0.0, 1.5, 0.0]
    assert {_seconds(text) for text in (None, "", "soon", "-1", "nan", "inf", "1e999")} == {None}
    assert 95 < _seconds(soon) <= 100


def test_a_slow_server_and_a_closed_port(server):
    with pytest.raises(InfrastructureFailure, match="Timeout"):
        ask(server, (200, GOOD, 0.3), timeout_s=0.05, attempts=1)
    server.server_port = 1
    with pytest.raises(InfrastructureFailure, match="ConnectError"):
        ask(server, (200, GOOD, 0), attempts=1)
