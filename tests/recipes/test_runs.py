"""The commands themselves, as a user types them, on the tiny model: real Ray, vLLM, DeepSpeed and FAISS."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

LR = "algo.optimizer.lr=1e-3"
SMALL = ["model=tiny", "env=vowels", "algo.queries_per_step=2", "algo.group_size=4", "algo.max_tokens=24", "evaluate.queries=4"]


def command(module: str, *overrides: str) -> list[str]:
    return [sys.executable, "-m", f"recipes.{module}", *overrides]


def run(module: str, *overrides: str, timeout: int = 400, **env: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command(module, *overrides), capture_output=True, text=True, timeout=timeout, env={**os.environ, **env})
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done


def metrics(run_dir: Path, stage: str) -> list[dict]:
    return [row for row in map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines()) if row["stage"] == stage]


@pytest.fixture(scope="module")
def synchronous(tmp_path_factory) -> Path:
    """Three synchronous steps of atomic_rl with a checkpoint after the second."""
    folder = tmp_path_factory.mktemp("runs") / "sync"
    run("atomic_rl", *SMALL, "algo.steps=3", "algo.checkpoint_every=2", f"run_dir={folder}", LR)
    return folder


def test_a_run_leaves_everything_a_user_needs(synchronous):
    rows = metrics(synchronous, "rl")
    assert [r["step"] for r in rows] == [1, 2, 3]
    assert all(r["parity"] < 1e-3 and r["staleness_max"] == 0 and r["grad_norm"] > 0 for r in rows)
    assert all(r["abs_log_ratio"] < 1e-4 and r["clipped"] == 0 for r in rows)  # on policy: ratio 1 before every update
    wanted = {"config.yaml", "metrics.jsonl", "trajectories.jsonl", "checkpoints", "export", "wandb"}
    assert wanted <= set(os.listdir(synchronous))
    trajectories = [json.loads(line) for line in (synchronous / "trajectories.jsonl").read_text().splitlines()]
    assert len(trajectories) == 3 * 2 * 4
    assert {v for t in trajectories if t["step"] == 2 for s in t["sequences"] for v in s["policy_version"] if v >= 0} == {2}
    from transformers import AutoModelForCausalLM

    AutoModelForCausalLM.from_pretrained(synchronous / "export")


def test_minimal_computes_the_same_advantages_losses_and_gradients(synchronous, tmp_path):
    """The flat specification on the recorded samples. It also takes the same steps, so later ones agree as well."""
    overrides = [*SMALL, "algo.steps=3", f"replay={synchronous}/trajectories.jsonl", f"run_dir={tmp_path}/m", LR]
    run("minimal", *overrides)
    theirs, ours = metrics(tmp_path / "m", "minimal"), metrics(synchronous, "rl")
    assert len(theirs) == 3
    for a, b in zip(theirs, ours, strict=True):
        assert a["loss"] == pytest.approx(b["loss"], abs=1e-4)
        assert a["grad_norm"] == pytest.approx(b["grad_norm"], rel=1e-3, abs=1e-4)
        assert a["reward"] == pytest.approx(b["reward"], abs=1e-6)
    from recipes.minimal import advantages

    rows = [json.loads(line) for line in (synchronous / "trajectories.jsonl").read_text().splitlines()]
    for group in {r["group_id"] for r in rows}:
        members = [r for r in rows if r["group_id"] == group]
        assert [m["advantage"] for m in members] == pytest.approx(advantages([m["reward"]["value"] for m in members]), abs=1e-4)


def test_a_resumed_run_takes_the_step_the_uninterrupted_one_took(synchronous, tmp_path):
    checkpoint = synchronous / "checkpoints" / "step-000002"
    done = run("atomic_rl", *SMALL, "algo.steps=3", f"resume={checkpoint}", f"run_dir={tmp_path}/r", LR)
    assert "resumed: step 2, 4 queries done" in done.stdout
    (row,) = metrics(tmp_path / "r", "rl")
    wanted = metrics(synchronous, "rl")[2]
    assert row["step"] == 3
    for key in ("loss", "grad_norm", "lr", "reward", "trained_tokens"):
        assert row[key] == pytest.approx(wanted[key], rel=1e-4, abs=1e-5), key


def test_the_smoke_run_with_two_ranks_and_staleness_one(tmp_path):
    """Every stage and actor of the demo; asynchronous, data parallel and sharded."""
    parallel = ["cluster.learner_ranks=2", "cluster.learner_threads=1", "deepspeed=zero2"]
    overrides = ["recipe=smoke", *parallel, "algo.max_staleness=1"]
    done = run("curriculum", *overrides, f"run_dir={tmp_path}/s", f"trajectories.folder={tmp_path}/t")
    folder = tmp_path / "s"
    rows = metrics(folder, "rl")
    assert len(rows) == 3 and all(r["parity"] < 1e-3 and r["staleness_max"] <= 1 for r in rows)
    assert len(metrics(folder, "sft")) == 6
    assert {"before SFT", "after SFT", "after RL"} <= {
        json.loads(r)["stage"] for r in (folder / "metrics.jsonl").read_text().splitlines()
    }
    assert "held-out: format-valid rate / mean reward" in done.stdout
    assert (folder / "summary.json").is_file() and list((folder / "reports").glob("*.md"))


def test_pipeline_rl_takes_a_step_on_whole_reports(tmp_path):
    folder = tmp_path / "p"
    run("pipeline_rl", "recipe=pipeline_smoke", f"run_dir={folder}")
    (row,) = metrics(folder, "rl")
    assert row["skipped"] == 0 and row["trained_tokens"] > 0 and row["parity"] < 1e-3 and row["env/steps"] == 4
    reports = [json.loads(line) for line in (folder / "trajectories.jsonl").read_text().splitlines()]
    assert len(reports) == 2 and len({r["group_id"] for r in reports}) == 1
    assert all(len(r["sequences"]) == 4 and r["reward"]["value"] == 0 and "holding" in r["reward"]["components"] for r in reports)


def test_the_readmes_plug_in_trains_from_its_text_alone(tmp_path):
    readme = Path("README.md").read_text()
    source = next(b for b in re.findall(r"```python\n(.*?)```", readme, re.S) if "class Vowels" in b)
    config = next(b for b in re.findall(r"```yaml\n(.*?)```", readme, re.S) if "my_env" in b)
    line = next(c for c in re.findall(r"^python -m recipes.atomic_rl env=my_env.*$", readme, re.M)).split()[3:]
    assert len(source.splitlines()) < 40
    (tmp_path / "my_env.py").write_text(source)
    (tmp_path / "env").mkdir()
    (tmp_path / "env" / "my_env.yaml").write_text(config)
    folder = tmp_path / "run"
    run("atomic_rl", *line, f"hydra.searchpath=[file://{tmp_path}]", f"run_dir={folder}", PYTHONPATH=f"{tmp_path}:{os.getcwd()}")
    rewards = [r["reward"] for r in metrics(folder, "rl")]
    # a mean of four steps has a standard error of about 0.01 here
    assert sum(rewards[-4:]) / 4 > sum(rewards[:4]) / 4 + 0.04, rewards


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["lrr=1"], "did you mean algo.optimizer.lr"),
        (["cluster.engine_cpus=999999"], "CPUs: need 1e+06, have"),
    ],
)
def test_bad_input_is_one_message_and_exit_code_2(overrides, message):
    began = time.monotonic()
    done = subprocess.run(command("atomic_rl", *SMALL[:2], *overrides), capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and message in done.stderr, done.stdout + done.stderr
    assert "Traceback" not in done.stderr and time.monotonic() - began < 60


def titles(process: psutil.Process) -> list[str]:
    """The words of an actor's process title, `ray::Engine.start` among them; none when it has just ended."""
    try:
        return re.findall(r"\w+", " ".join(process.cmdline()))
    except psutil.Error:
        return []


def test_ctrl_c_leaves_nothing_behind(tmp_path):
    process = subprocess.Popen(command("atomic_rl", *SMALL, f"run_dir={tmp_path}/c"), stdout=subprocess.DEVNULL)
    family: list[psutil.Process] = []
    for _ in range(180):  # until Ray, an engine and a learner are up, whatever the machine needs for that
        family = psutil.Process(process.pid).children(recursive=True)
        if {"Engine", "Learner"} <= {part for p in family for part in titles(p)}:
            break
        time.sleep(1)
    else:
        pytest.fail(f"engine and learner did not start: {[titles(p) for p in family]}")
    process.send_signal(signal.SIGINT)
    assert process.wait(60) != 0
    _, alive = psutil.wait_procs(family, timeout=30)
    assert not alive, [p.name() for p in alive]
