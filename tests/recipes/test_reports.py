"""A report that is interrupted anywhere ends as if it had not been, and no answer is asked for twice."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from envs.warp.report import Report
from recipes.reports import Journal, write_report
from rlcore.endpoint import EndpointReply
from rlcore.errors import ConfigError, DataFailure, InfrastructureFailure, NoRoom
from tests.recipes.report_world import NOP, QUERY, reply, retriever

TOKENS = {56: "search", 160: "initialize", 144: "write", 112: "extend"}
LIMITS = {f"{state}_tokens": n for n, state in TOKENS.items()} | {"max_steps": 30}


class Model:
    """Writes the seed of its draw into every text, and fails at request `fail`."""

    def __init__(self, fail: int | None = None) -> None:
        self.fail = fail
        self.asked: list[tuple[str, int]] = []

    async def __call__(self, messages: list[dict[str, str]], max_tokens: int | None, seed: int) -> EndpointReply:
        if len(self.asked) == self.fail:
            raise InfrastructureFailure("pulled the plug")
        state, prompt = TOKENS[max_tokens or 0], messages[-1]["content"]
        self.asked.append((state, seed))
        if state == "extend" and "section-1.1" in prompt:
            return EndpointReply(NOP, "stop")
        return EndpointReply(reply(state, prompt, note=f"Draw {seed}."), "stop")


class Counting:
    def __init__(self) -> None:
        self.inner, self.calls = retriever(), 0

    async def search(self, queries: list[str], k: int) -> Any:
        self.calls += 1
        return await self.inner.search(queries, k)


def write(path: Path, model: Model, search: Any = None, seed: int = 7, **settings: Any) -> str:
    outcome = asyncio.run(write_report(QUERY, lambda r: Report(r, LIMITS), search or retriever(), model, path, settings, seed))
    assert outcome.data["complete"]
    return path.read_text()


def test_an_interruption_at_any_action_changes_nothing_and_repeats_nothing(tmp_path):
    whole = Model()
    wanted = write(tmp_path / "whole.md", whole)
    assert [state for state, _ in whole.asked] == ["search", "initialize", *["search", "write"] * 3, "extend"] + [
        "search", "write", "search", "write", "extend"
    ]  # fmt: skip
    assert len({seed for _, seed in whole.asked}) == len(whole.asked) and wanted.count("Draw") == 5
    for stop in range(len(whole.asked)):
        path = tmp_path / f"{stop}.md"
        before, after, search = Model(fail=stop), Model(), Counting()
        with pytest.raises(InfrastructureFailure):
            write(path, before, search)
        assert not path.exists()
        assert write(path, after, search) == wanted
        assert before.asked + after.asked == whole.asked and search.calls == 6
    assert json.loads(path.with_suffix(".state.json").read_text()) == json.loads((tmp_path / "whole.state.json").read_text())


def test_a_finished_report_is_not_written_again(tmp_path):
    wanted = write(tmp_path / "a.md", Model())
    (tmp_path / "a.md").unlink()
    page = (tmp_path / "a.html").read_text()
    assert '<a href="#ref-1">[1]</a>' in page and '<li id="ref-1">' in page
    again = Model()
    assert write(tmp_path / "a.md", again) == wanted and again.asked == []


def test_a_prompt_without_room_is_on_file_as_well(tmp_path):
    """The report goes on without that section, and again in the same way."""

    class Refusing(Model):
        async def __call__(self, messages: Any, max_tokens: int | None, seed: int) -> EndpointReply:
            if len(self.asked) == 3:
                self.asked.append(("refused", seed))
                raise NoRoom("prompt of 9000 tokens")
            return await super().__call__(messages, max_tokens, seed)

    async def once(model: Model) -> str:
        path = tmp_path / "a.md"
        await write_report(QUERY, lambda r: Report(r, LIMITS), retriever(), model, path, {}, 7)
        return path.read_text()

    first, again = Refusing(), Model()
    wanted = asyncio.run(once(first))
    assert asyncio.run(once(again)) == wanted and again.asked == [] and ("refused", 7 + 5) in first.asked


def test_a_refused_request_stops_the_report_and_is_asked_again(tmp_path):
    class Refusing(Model):
        async def __call__(self, messages: Any, max_tokens: int | None, seed: int) -> EndpointReply:
            if len(self.asked) == 3:
                raise DataFailure("answered 400: max_tokens is not supported")
            return await super().__call__(messages, max_tokens, seed)

    with pytest.raises(DataFailure, match="max_tokens is not supported"):
        write(tmp_path / "a.md", Refusing())
    assert not (tmp_path / "a.md").exists()
    again, whole = Model(), Model()
    assert write(tmp_path / "a.md", again) == write(tmp_path / "b.md", whole)
    assert again.asked == whole.asked[3:]


def test_another_seed_writes_another_report(tmp_path):
    assert write(tmp_path / "a.md", Model(), seed=1) != write(tmp_path / "b.md", Model(), seed=2)


def test_the_state_of_another_report_is_refused(tmp_path):
    write(tmp_path / "a.md", Model(), served="one")
    with pytest.raises(ConfigError, match="was begun with another seed, served; name another file"):
        write(tmp_path / "a.md", Model(), served="two", seed=8)


def test_answers_to_other_requests_are_refused(tmp_path):
    """The corpus changed, so the prompts did."""
    write(tmp_path / "a.md", Model())
    state = tmp_path / "a.state.json"
    state.write_text(state.read_text().replace("The capital of Peru is Lima and", "The capital of Peru is Cusco and"))
    with pytest.raises(ConfigError, match="request 2 is not the one that was answered"):
        write(tmp_path / "a.md", Model())


def test_the_file_is_whole_after_every_answer(tmp_path):
    path = tmp_path / "a.state.json"

    async def main() -> None:
        journal = Journal(path, {"seed": 1})
        for n in range(3):
            assert await journal.once(["q", n], lambda number: asyncio.sleep(0, number * 10)) == n * 10
            assert [e["answer"] for e in json.loads(path.read_text())["entries"]] == [0, 10, 20][: n + 1]

    asyncio.run(main())
    assert [p.name for p in tmp_path.iterdir()] == ["a.state.json"]
