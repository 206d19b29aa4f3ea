"""The commands themselves, as a user types them, on the tiny model: real Ray, vLLM, DeepSpeed and FAISS."""

import itertools
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

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

LR = "algo.optimizer.lr=1e-3"
SMALL = ["model=tiny", "env=vowels", "algo.queries_per_step=2", "algo.group_size=4", "algo.max_tokens=24", "evaluate.queries=4"]


def command(module: str, *overrides: str) -> list[str]:
    return [sys.executable, "-m", f"recipes.{module}", *overrides]


def run(module: str, *overrides: str, timeout: int = 800, **env: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command(module, *overrides), capture_output=True, text=True, timeout=timeout, env={**os.environ, **env})
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done


def metrics(run_dir: Path, stage: str) -> list[dict]:
    return [row for row in map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines()) if row["stage"] == stage]


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory) -> Path:
    """atomic_rl, synchronous, with a checkpoint after every second step, ended by Ctrl-C after the third."""
    folder = tmp_path_factory.mktemp("runs") / "interrupted"
    overrides = [*SMALL, "algo.steps=1000", "algo.checkpoint_every=2", "algo.keep_checkpoints=null", f"run_dir={folder}", LR]
    # A shell's background jobs ignore SIGINT, and their children inherit that.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with open(folder.with_suffix(".log"), "w") as log:
        process = subprocess.Popen(command("atomic_rl", *overrides), stdout=log, stderr=log)
    signal.signal(signal.SIGINT, before)
    deadline = time.monotonic() + 700
    while not (folder / "metrics.jsonl").is_file() or len(metrics(folder, "rl")) < 3:
        assert process.poll() is None and time.monotonic() < deadline, folder.with_suffix(".log").read_text()[-3000:]
        time.sleep(0.2)
    family = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    assert process.wait(120) != 0
    _, alive = psutil.wait_procs(family, timeout=30)
    (folder / "alive.json").write_text(json.dumps({"family": len(family), "alive": [p.name() for p in alive]}))
    return folder


def test_ctrl_c_leaves_no_process_behind(interrupted):
    found = json.loads((interrupted / "alive.json").read_text())
    assert found["family"] > 3 and not found["alive"]


def test_a_run_leaves_everything_a_user_needs(interrupted):
    rows = metrics(interrupted, "rl")[:3]
    assert [r["step"] for r in rows] == [1, 2, 3]
    assert all(r["parity"] < 1e-3 and r["staleness_max"] == 0 and r["grad_norm"] > 0 for r in rows)
    assert all(r["abs_log_ratio"] < 1e-4 and r["clipped"] == 0 for r in rows)  # on policy: ratio 1 before every update
    assert {"config.yaml", "metrics.jsonl", "trajectories.jsonl", "checkpoints", "wandb"} <= set(os.listdir(interrupted))
    trajectories = recorded(interrupted)
    assert {t["step"] for t in trajectories} == {0, 1, 2}
    assert {v for t in trajectories if t["step"] == 2 for s in t["sequences"] for v in s["policy_version"] if v >= 0} == {2}


def recorded(run_dir: Path) -> list[dict]:
    """The trajectories of the first three steps: two groups of four each."""
    with open(run_dir / "trajectories.jsonl") as file:
        return [json.loads(line) for line in itertools.islice(file, 3 * 2 * 4)]


def test_minimal_computes_the_same_advantages_losses_and_gradients(interrupted, tmp_path):
    """The flat specification on the recorded samples. It also takes the same steps, so later ones agree as well."""
    overrides = [*SMALL, "algo.steps=3", f"replay={interrupted}/trajectories.jsonl", f"run_dir={tmp_path}/m", LR]
    run("minimal", *overrides)
    theirs, ours = metrics(tmp_path / "m", "minimal"), metrics(interrupted, "rl")[:3]
    assert len(theirs) == 3
    for a, b in zip(theirs, ours, strict=True):
        assert a["loss"] == pytest.approx(b["loss"], abs=1e-4)
        assert a["grad_norm"] == pytest.approx(b["grad_norm"], rel=1e-3, abs=1e-4)
        assert a["reward"] == pytest.approx(b["reward"], abs=1e-6)
    from recipes.minimal import advantages

    rows = recorded(interrupted)
    for group in {r["group_id"] for r in rows}:
        members = [r for r in rows if r["group_id"] == group]
        assert [m["advantage"] for m in members] == pytest.approx(advantages([m["reward"]["value"] for m in members]), abs=1e-4)


def test_a_run_resumed_by_two_ranks_takes_the_step_the_first_one_took_and_exports(interrupted, tmp_path):
    checkpoint = interrupted / "checkpoints" / "step-000002"
    ranks = ["cluster.learner_ranks=2", "cluster.learner_threads=1"]
    done = run("atomic_rl", *SMALL, *ranks, "algo.steps=3", f"resume={checkpoint}", f"run_dir={tmp_path}/r", LR)
    assert "resumed: step 2, 4 queries done" in done.stdout
    (row,) = metrics(tmp_path / "r", "rl")
    wanted = metrics(interrupted, "rl")[2]
    assert row["step"] == 3
    for key in ("loss", "grad_norm", "lr", "reward", "trained_tokens"):
        assert row[key] == pytest.approx(wanted[key], rel=1e-4, abs=1e-5), key
    from transformers import AutoModelForCausalLM

    AutoModelForCausalLM.from_pretrained(tmp_path / "r" / "export")
    assert "reloads in transformers, and in vLLM to within" in done.stdout
    index = json.loads((tmp_path / "r" / "checkpoints" / "index.json").read_text())
    assert index["best"] == "step-000003" and index["heldout_reward"]["step-000003"] > 0


def test_the_smoke_run_with_two_ranks_and_staleness_one(tmp_path):
    """Every stage and actor of the demo; asynchronous, data parallel and sharded."""
    parallel = ["cluster.learner_ranks=2", "cluster.learner_threads=1", "deepspeed=zero2", "model.train_layers=2"]
    overrides = ["recipe=smoke", *parallel, "algo.max_staleness=1", "sft.steps=2", "algo.steps=2", "evaluate.queries=5"]
    done = run("curriculum", *overrides, f"run_dir={tmp_path}/s", f"trajectories.folder={tmp_path}/t")
    folder = tmp_path / "s"
    rows = metrics(folder, "rl")
    assert len(rows) == 2 and all(r["parity"] < 1e-3 and r["staleness_max"] <= 1 for r in rows)
    sft = metrics(folder, "sft")
    assert len(sft) == 2 and "validation_loss" not in sft[0] and sft[1]["validation_loss"] > 0
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


def test_a_judge_of_our_own_scores_a_run_and_leaves_no_process_behind(tmp_path):
    """The policy and the judge are the tiny random model, the actions are real ones (demonstrated.py), two in a group.

    Held to a schema of three verdicts the judge verifies sections; the claims of a plan are free text, which it never ends.
    """
    (tmp_path / "env").mkdir()
    (tmp_path / "env" / "demonstrated.yaml").write_text(
        "defaults: [/reward@reward: warp_atomic_judged]\nname: demonstrated\ntarget: tests.recipes.demonstrated.Demonstrated\n"
        "queries: {target: tests.recipes.demonstrated.queries}\ngroup_by: action\n"
    )
    reward = ["env.reward.args.margin=null", "env.reward.args.weights.write.holistic=0"]
    judge = ["judge=local", "judge.local.max_model_len=2048", "judge.max_tokens=96", f"judge.cache={tmp_path}/cache"]
    algo = ["algo.steps=1", "algo.queries_per_step=2", "algo.group_size=2", "algo.max_tokens=24", "algo.tied_groups=keep"]
    rest = ["algo.max_failed_share=0.9", "evaluate.queries=2", "cluster.kv_cache_gib=1", f"run_dir={tmp_path}/run"]
    overrides = [f"hydra.searchpath=[file://{tmp_path}]", "model=tiny", "env=demonstrated", *reward, *judge, *algo, *rest]
    with open(tmp_path / "log", "w") as log:
        process = subprocess.Popen(command("atomic_rl", *overrides), stdout=log, stderr=log)
    family: set[psutil.Process] = set()
    deadline = time.monotonic() + 800
    while process.poll() is None and time.monotonic() < deadline:
        family.update(psutil.Process(process.pid).children(recursive=True))
        time.sleep(0.5)
    assert process.wait(1) == 0, (tmp_path / "log").read_text()[-3000:]
    _, alive = psutil.wait_procs(family, timeout=30)
    assert len(family) > 8 and not alive
    (row,) = metrics(tmp_path / "run", "rl")
    scored, counts = [], {name.removeprefix("judge/judge/"): n for name, n in row.items() if name.startswith("judge/")}
    print({name: counts[name] for name in ("asked", "scored", "unusable", "failed", "latency_p50_s")})
    for t in map(json.loads, (tmp_path / "run" / "trajectories.jsonl").read_text().splitlines()):
        assert t["query"]["data"]["action"] == "write" and t["reward"]["components"]["faithfulness.claims"] > 0
        scored.append(t["reward"]["value"])
    assert len(scored) == 4 and min(scored) > 0  # the rules alone give more than 0
    assert counts["write/faithfulness/scored"] >= 2 and counts["write/faithfulness/unusable"] == 0
    # an outline's questions, first and again; its group was replaced, and nothing of it was trained on
    assert counts["initialize/faithfulness/split/unusable"] >= 2 and row["rollouts/reward_unavailable"] >= 2
    assert counts["failed"] == 0 and counts["prompt_tokens"] > 0 and counts["latency_p50_s"] > 0


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
