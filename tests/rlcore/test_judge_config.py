"""What is refused about judges before anything starts, and where a run finds the answers of the one before."""

from __future__ import annotations

import pytest

from rlcore.cluster import check_placement, needs
from rlcore.config import Config
from rlcore.errors import ConfigError
from rlcore.judge_actors import with_absolute_cache
from rlcore.judge_config import JudgeEndpointConfig, chosen_judges, read_key
from tests.rlcore.test_config import composed

JUDGED = "+env.reward.judges.judge=${judge}"
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
    ("override", "message"),
    [
        ("judge.endpoints.main.url=host/v1", "endpoints.main.url='host/v1' must be an address such as"),
        ("judge.limits.concurrent=0", "judges.judge.limits.concurrent=0 must be above 0"),
        ("judge.limits.requests_per_minute=0", "limits.requests_per_minute=0 must be above 0"),
        ("judge.limits.tokens_per_minute=2048", "tokens_per_minute=2048 never allows a reply of max_tokens=2048"),
        ("judge.endpoints.main.weight=0", "endpoints.main.weight=0.0 must be above 0"),
        ("judge.attempts=0", "attempts=0 must be above 0"),
        ("judge.temperature=-1", "temperature=-1.0 must be 0 or more"),
        ("judge.endpoints.main.prompt_price=-1", "prices must be 0 or more"),
        ("judge.budget_s=2000", "budget_s=2000 < cluster.reward_timeout_s=1500 must hold"),
        ("judge.timeout_s=700", "timeout_s=700 <= budget_s=600"),
        ("~judge.endpoints.main", "judges.judge has neither endpoints nor local"),
    ],
)
def test_what_cannot_work_is_refused(override: str, message: str) -> None:
    refused(message, *(OPENAI[:2] if override.startswith("~") else OPENAI), override)


def test_a_missing_address_is_named() -> None:
    refused("missing values: judge.endpoints.main.url, judge.endpoints.main.model", "judge=openai", JUDGED)


def test_the_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = JudgeEndpointConfig("http://host/v1", "big", key_env="THE_JUDGES_KEY")
    monkeypatch.delenv("THE_JUDGES_KEY", raising=False)
    with pytest.raises(ConfigError, match=r"judges.judge.endpoints.main.key_env=THE_JUDGES_KEY: no such environment variable"):
        read_key("judges.judge.endpoints.main", endpoint)
    monkeypatch.setenv("THE_JUDGES_KEY", "sk-secret")
    assert read_key("", endpoint) == "sk-secret" and read_key("", JudgeEndpointConfig("http://host/v1", "big")) is None


def test_a_resumed_run_looks_for_answers_where_the_first_one_left_them(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    def folder(c: Config) -> str | None:
        return with_absolute_cache(chosen_judges(c.env.reward)["judge"]).cache

    monkeypatch.chdir(tmp_path)
    first = composed(*OPENAI, "run_dir=runs/one")
    resumed = composed(*OPENAI, "run_dir=runs/two", "resume=runs/one/checkpoints/step-000010")
    assert folder(first) == folder(resumed) == str(tmp_path / "runs/judge-cache")
