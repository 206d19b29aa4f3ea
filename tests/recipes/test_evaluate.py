"""The evaluation's files, with everything real but the model, the search index and the actors."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from envs.warp.report import Report
from recipes.common import evaluation_queries
from recipes.evaluate import main, run_evaluation
from rlcore.errors import ConfigError
from rlcore.judge_actors import Judges
from rlcore.policy import ChatRenderer
from rlcore.rollout import Rollouts
from rlcore.sampling import Generation, Sampling
from rlcore.types import RewardResult, Trajectory, scored
from tests.fakes import END, CharTokenizer
from tests.recipes.report_world import NOP, QUESTION, reply, retriever
from tests.rlcore.test_config import composed

TOKENS = {"search": 1001, "initialize": 1002, "write": 1003, "extend": 1004}  # so that a call's limit tells its state


class Engine:
    """Expands section-1, then stops; when that is refused, section-2.."""

    async def generate(self, prompt_ids: list[int], sampling: Sampling) -> Generation:
        prompt = CharTokenizer().decode(prompt_ids)
        state = next(name for name, limit in TOKENS.items() if limit == sampling.max_tokens)
        text = reply(state, prompt, note=f"Draw {sampling.seed}.", expansions=int("section-1.1" in prompt))
        if state == "extend" and "section-1.1" in prompt and "not allowed" not in prompt:
            text = NOP
        ids = CharTokenizer()(text)["input_ids"] + [END]
        return Generation(ids, [-0.5] * len(ids), [0] * len(ids), "stop")


async def share_written(trajectory: Trajectory) -> RewardResult:
    """A tenth for every written section."""
    text = trajectory.outcome.data["report_markdown"]
    return scored(text.count("Draw") / 10)


def runtime(config: Any) -> Any:
    async def nothing() -> None:
        pass

    environment = Report(retriever(), config.env.args["limits"])
    renderer = ChatRenderer(CharTokenizer())

    def rollouts(temperature: float, max_tokens: int, seed: int) -> Rollouts:
        sampling = Sampling(temperature=temperature, max_tokens=max_tokens, seed=seed)
        return Rollouts(environment, Engine(), renderer, share_written, sampling, 100_000, 60.0, 60.0)

    return SimpleNamespace(
        config=config, environment=environment, rollouts=rollouts, start_rollouts=nothing, serve_loaded=nothing, judges=Judges({})
    )


def test_evaluation_and_forced_expansions_leave_their_files(tmp_path):
    rows = [{"id": f"q{i}", "split": "heldout", "question": QUESTION} for i in range(3)]
    (tmp_path / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = composed("env=warp_report", "model=tiny", "wandb.mode=disabled", "evaluate.expansions=[0,1,2]")
    limits = {f"{state}_tokens": n for state, n in TOKENS.items()}
    config = replace(
        config,
        env=replace(
            config.env,
            args={"limits": {**limits, "max_steps": 40, "max_expansions": 5}},
            queries=replace(config.env.queries, args={"path": str(tmp_path / "queries.jsonl")}),
        ),
        evaluate=replace(config.evaluate, queries=2, max_tokens=2000),
    )
    asyncio.run(run_evaluation(runtime(config), evaluation_queries(config), tmp_path))
    evaluation = json.loads((tmp_path / "evaluation.json").read_text())
    assert list(evaluation["rewards"].values()) == [0.5, 0.5] and evaluation["unscored"] == 0  # 3 sections and 2 below one
    result = json.loads((tmp_path / "expansions.json").read_text())
    assert [(p["expansions"], p["reward"], p["n"]) for p in result["forced"]] == [(0, 0.3, 2), (1, 0.5, 2), (2, 0.7, 2)]
    assert result["own"]["distribution"] == {"1": 2} and result["own"]["reward"] == 0.5 and result["refused"] == 2
    assert (tmp_path / "expansions.png").stat().st_size > 1000
    (row,) = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert (row["stage"], row["reward"], row["all/expanded"]) == ("evaluation", 0.5, 1)


def test_expansions_are_forced_in_whole_reports_only():
    with pytest.raises(ConfigError, match="needs whole reports .env=warp_report., not env=warp_atomic"):
        main(composed("evaluate.expansions=[0]"))
