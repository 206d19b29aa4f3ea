"""What is refused about judges before anything starts, and where a run finds the answers of the one before."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlcore.cluster import check_placement, needs
from rlcore.config import Config
from rlcore.errors import ConfigError
from rlcore.judge_actors import with_absolute_cache
from rlcore.judge_config import (
    JudgeConfig,
    JudgeEndpointConfig,
    JudgeLimitsConfig,
    LocalJudgeConfig,
    RewardConfig,
    check_judges,
    check_keys,
    chosen_judges,
    read_key,
)  # fmt: skip
from tests.rlcore.test_config import composed

JUDGED = "+env.reward.judges.judge=${judge}"
ENDPOINT = JudgeEndpointConfig("http://host/v1", "big")
OPENAI = ("judge=openai", JUDGED, "judge.endpoints.main.url=http://host/v1", "judge.endpoints.main.model=big")


def refused(message: str, *overrides: str) -> None:
    with pytest.raises(ConfigError, match=message):
        composed(*overrides)


def test_the_three_choices() -> None:
    assert composed().judge is None and composed().env.reward.judges == {}
    refused("env.reward.judges.judge is null, and rewards.warp.WarpAtomic needs it: choose judge=local or judge=openai", JUDGED)
    openai, local = composed(*OPENAI), composed("judge=local", JUDGED, "model=tiny")
    judge = openai.env.reward.judges["judge"]
    assert judge is not None and judge == openai.judge and judge.local is None
    assert (judge.endpoints["main"].url, judge.endpoints["main"].key_env) == ("http://host/v1", "OPENAI_API_KEY")
    ours = chosen_judges(local.env.reward)["judge"].local
    assert ours is not None and ours.model == local.model.path
    assert [n.what for n in needs(local)][-2:] == ["judge judge", "judge's server (vLLM)"]
    check_placement(local, 2, 0)  # the laptop has room for both


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"endpoints": {"main": JudgeEndpointConfig("host/v1", "big")}},
            "endpoints.main.url='host/v1' must be an address such as",
        ),
        ({"endpoints": {"main": replace(ENDPOINT, weight=0.0)}}, "endpoints.main.weight=0.0 must be above 0"),
        ({"endpoints": {"main": replace(ENDPOINT, prompt_price=-1.0)}}, "endpoints.main: prices must be 0 or more"),
        ({"endpoints": {}}, "judges.judge has neither endpoints nor local"),
        ({"limits": JudgeLimitsConfig(0)}, "judges.judge.limits.concurrent=0 must be above 0"),
        ({"limits": JudgeLimitsConfig(1, 0)}, "limits.requests_per_minute=0 must be above 0"),
        ({"limits": JudgeLimitsConfig(1, 1, 1024)}, "tokens_per_minute=1024 never allows a reply of max_tokens=1024"),
        ({"attempts": 0}, "attempts=0 must be above 0"),
        ({"temperature": -1.0}, "temperature=-1.0 must be 0 or more"),
        ({"budget_s": 691.0}, "budget_s=691: a question may take 1502 s .* cluster.reward_timeout_s=1500"),  # 2 x 691 + 120
        ({"timeout_s": 600.0}, "timeout_s=600 < budget_s=600"),
        ({"endpoints": {}, "local": LocalJudgeConfig("m", "float32", 64, servers=0)}, "local.servers=0 must be above 0"),
    ],
)
def test_what_cannot_work_is_refused(changes: dict[str, Any], message: str) -> None:
    good = JudgeConfig(endpoints={"main": ENDPOINT})
    check_judges(RewardConfig("a.b", judges={"judge": good}), 1500)
    with pytest.raises(ConfigError, match=message):
        check_judges(RewardConfig("a.b", judges={"judge": replace(good, **changes)}), 1500)


@pytest.mark.parametrize("url", ["http://host:port/v1", "http://host:99999/v1", "http:///v1", "ftp://host/v1"])
def test_what_is_no_address_is_refused_before_anything_starts(url: str) -> None:
    refused(re.escape(f"env.reward.judges.judge.endpoints.main.url='{url}' must be"), *OPENAI, f"judge.endpoints.main.url={url}")
    openai = ("trajectories.teacher.kind=openai", "trajectories.teacher.model=big")
    refused(re.escape(f"trajectories.teacher.url='{url}' must be"), *openai, f"trajectories.teacher.url={url}")


def test_a_judge_that_the_reward_does_not_ask_is_refused() -> None:
    message = r"env.reward.target=rewards.warp.WarpAtomic does not ask: .*'\+env.reward.judges.judge=\$\{judge\}'"
    refused(message, "judge=local")
    refused(message, OPENAI[0], *OPENAI[2:])
    other = "+env.reward.judges.judge={endpoints: {main: {url: 'http://other/v1', model: big}}, budget_s: 500}"
    refused(message, other, *OPENAI[2:], OPENAI[0])


def test_the_readmes_judge_commands_compose() -> None:
    section = Path("README.md").read_text().partition("\n## Judges\n")[2].partition("\n## ")[0]
    commands = re.findall(r"^python -m recipes\.(\w+) ([^#\n]*)", section, re.M)
    presets = {"pipeline_rl": ["recipe=pipeline"]}
    chosen = [(name, composed(*overrides.split(), *presets.get(name, []))) for name, overrides in commands]
    assert [(name, c.env.name, c.env.reward.target.rpartition(".")[2]) for name, c in chosen] == [
        ("atomic_rl", "warp_atomic", "WarpAtomicJudged"), ("pipeline_rl", "warp_report", "WarpReportJudged")
    ]  # fmt: skip
    for _, c in chosen:
        assert c.judge is not None and chosen_judges(c.env.reward) == {"judge": c.judge}


def test_a_missing_address_is_named() -> None:
    refused("missing values: judge.endpoints.main.url, judge.endpoints.main.model", "judge=openai", JUDGED)


def test_the_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = JudgeEndpointConfig("http://host/v1", "big", key_env="THE_JUDGES_KEY")
    monkeypatch.delenv("THE_JUDGES_KEY", raising=False)
    with pytest.raises(ConfigError, match=r"judges.judge.endpoints.main.key_env=THE_JUDGES_KEY: no such environment variable"):
        read_key("judges.judge.endpoints.main", endpoint.key_env)
    monkeypatch.setenv("THE_JUDGES_KEY", "sk-secret")
    assert read_key("", endpoint.key_env) == "sk-secret"
    monkeypatch.setenv("THE_JUDGES_KEY", " sk-secret\r\n")
    assert (
        read_key("", endpoint.key_env) == "sk-secret"
        and read_key("", JudgeEndpointConfig("http://host/v1", "big").key_env) is None
    )


@pytest.mark.parametrize("key", ["sk-\nsecret", "sk- secret", "sk-secret\x7f", "sk-s\u00e9cret", "sk-\u200bsecret"])
def test_what_cannot_be_a_key_is_refused_and_not_shown(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv("THE_JUDGES_KEY", key)
    with pytest.raises(ConfigError, match="judge.key_env=THE_JUDGES_KEY: its value has blanks or other") as refused:
        read_key("judge", JudgeEndpointConfig("http://host/v1", "big", key_env="THE_JUDGES_KEY").key_env)
    assert "cret" not in str(refused.value)


def test_a_missing_key_is_said_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("THE_JUDGES_KEY", raising=False)
    judge = JudgeConfig(endpoints={"main": replace(ENDPOINT, key_env="THE_JUDGES_KEY")})
    with pytest.raises(ConfigError, match=r"env.reward.judges.judge.endpoints.main.key_env=THE_JUDGES_KEY: no such"):
        check_keys(RewardConfig("a.b", judges={"judge": judge}))


def test_a_resumed_run_looks_for_answers_where_the_first_one_left_them(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    def folder(c: Config) -> str | None:
        return with_absolute_cache(chosen_judges(c.env.reward)["judge"]).cache

    monkeypatch.chdir(tmp_path)
    first = composed(*OPENAI, "run_dir=runs/one")
    resumed = composed(*OPENAI, "run_dir=runs/two", "resume=runs/one/checkpoints/step-000010")
    assert folder(first) == folder(resumed) == str(tmp_path / "runs/judge-cache")
