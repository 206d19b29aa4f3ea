"""What a checkpoint says about the run it is of; when checkpoints are written, kept and removed."""

import asyncio
import json
import re
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from recipes.atomic_rl import main
from recipes.common import begin, queries
from rlcore.checkpoint import Checkpoints, RunState, first_state, read_state
from rlcore.errors import ConfigError, RunFailed
from rlcore.types import Query
from tests.rlcore.test_config import composed

SMALL = ["model=tiny", "env=vowels"]
DRAWN = [Query("a", {"question": "who?", "kind": 1}), Query("b", {"question": "why?"})]


def checkpoint(folder, text: str) -> str:
    (folder / "run.json").write_text(text)
    return str(folder)


def test_the_state_comes_back_for_a_run_with_the_same_settings(tmp_path):
    config = composed(*SMALL)
    state = replace(first_state(config, config.model.path, DRAWN), step=4, position=9, done=[8], version=4, wandb_id="w")
    assert (
        read_state(checkpoint(tmp_path, json.dumps(asdict(state))), composed(*SMALL, "cluster.learner_ranks=2"), DRAWN) == state
    )


def saved(folder: Path, *overrides: str) -> str:
    """The checkpoint of a run that has just started."""
    config = composed(*overrides)
    return checkpoint(folder, json.dumps(asdict(first_state(config, config.model.path, DRAWN))))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seed=1", "seed=0, but now it is 1"),
        ("algo.group_size=2", "algo.group_size=8, but now it is 2"),
        ("algo.temperature=0.7", "algo.temperature=1.0, but now it is 0.7"),
        ("algo.aggregation=token_mean", "algo.aggregation='trajectory_mean', but now it is 'token_mean'"),
        ("algo.kl.coef=0.1", "algo.kl.coef=0.0, but now it is 0.1"),
        ("algo.correction.high=3", "algo.correction.high=2.0, but now it is 3.0"),
        ("env=warp_atomic", "env.name='vowels', but now it is 'warp_atomic'"),
        ("env.target=envs.toy.Other", "env.target='envs.toy.vowels.Vowels', but now it is 'envs.toy.Other'"),
        ("env.args.max_tokens=8", "env.args.max_tokens=32, but now it is 8"),
        ("+env.args.shout=true", "env.args.shout='not set', but now it is True"),
        ("+env.group_by=kind", "env.group_by=None, but now it is 'kind'"),
        ("env.reward.target=my.score", "env.reward.target='envs.toy.vowels.score', but now it is 'my.score'"),
        ("+model.chat_template_kwargs={a: 1}", "model.chat_template_kwargs={}, but now it is {'a': 1}"),
    ],
)
def test_other_settings_are_refused_by_name_with_both_values(tmp_path, override, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        read_state(saved(tmp_path, *SMALL), composed(*SMALL, override), DRAWN)


@pytest.mark.parametrize(
    "overrides",
    [
        ["algo.steps=400", "algo.optimizer.lr=1e-6", "algo.optimizer.schedule=cosine"],
        ["cluster.learner_ranks=2", "cluster.reward_workers=3", "deepspeed=zero2", "algo.row_tokens=64"],
        ["algo.max_staleness=1", "algo.groups_in_flight=5", "algo.max_failed_share=0.9"],
        [
            "algo.checkpoint_every=7",
            "algo.keep_checkpoints=null",
            "algo.keep_best=3",
            "algo.evaluate_every=5",
            "evaluate.queries=9",
        ],
        ["wandb.mode=disabled", "run_dir=elsewhere", "env.queries.args.count=64"],
    ],
)
def test_what_decides_no_sample_and_no_loss_may_change(tmp_path, overrides):
    assert read_state(saved(tmp_path, *SMALL), composed(*SMALL, *overrides), DRAWN).step == 0


@pytest.mark.parametrize(
    "other",
    [
        [DRAWN[1], DRAWN[0]],
        [DRAWN[0]],
        [DRAWN[0], Query("b", {"question": "another?"})],
        [DRAWN[0], Query("c", DRAWN[1].data)],
    ],
)
def test_other_queries_are_refused_wherever_they_lie(tmp_path, other):
    """The cursor's position and its finished draws are places in this very list."""
    read_state(saved(tmp_path, *SMALL), composed(*SMALL), [Query(q.id, dict(reversed(q.data.items()))) for q in DRAWN])
    with pytest.raises(ConfigError, match="the train queries='2 with the hash [0-9a-f]{16}', but now it is '[12] with the hash "):
        read_state(saved(tmp_path, *SMALL), composed(*SMALL), other)


def test_a_run_is_resumed_with_the_queries_it_would_draw(tmp_path):
    """The same arguments, other content: what recipes.trajectories leaves when it writes a folder anew."""
    config = composed(*SMALL)
    state = first_state(config, config.model.path, queries(config, "train")[1:])
    folder = checkpoint(tmp_path, json.dumps(asdict(state)))
    with pytest.raises(ConfigError, match="the train queries='63 with .*', but now it is '64 with "):
        main(composed(*SMALL, f"resume={folder}", f"run_dir={tmp_path}/run"))
    assert not (tmp_path / "run").exists()


def test_sft_goes_on_with_its_own_checkpoints_and_its_own_settings(tmp_path):
    config = composed(*SMALL)
    folder = checkpoint(tmp_path, json.dumps(asdict(first_state(config, config.model.path, DRAWN, sft=True))))
    longer = composed(*SMALL, "sft.steps=99", "sft.optimizer.lr=0.1", "algo.group_size=3")
    assert read_state(folder, longer, DRAWN, sft=True).step == 0
    with pytest.raises(ConfigError, match="sft.batch_size=8, but now it is 4"):
        read_state(folder, composed(*SMALL, "sft.batch_size=4"), DRAWN, sft=True)
    for of_sft, message in [
        (False, "sft.batch_size=8, but now it is 'not set'"),
        (True, "env.name='.*', but now it is 'not set'"),
    ]:
        with pytest.raises(ConfigError, match=message):
            read_state(folder if not of_sft else saved(tmp_path, *SMALL), config, DRAWN, sft=of_sft)


JUDGED = ["reward@env.reward=warp_atomic_judged", "judge=openai", "judge.endpoints.main.url=http://a/v1"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["judge.endpoints.main.model=other"], "env.reward.judges.judge.models=['big'], but now it is ['other']"),
        (["judge.temperature=0.5"], "env.reward.judges.judge.temperature=0.0, but now it is 0.5"),
        (["env.reward.args.weights.search.recall=0.5"], "env.reward.args.weights.search.recall=0.9, but now it is 0.5"),
        (["env.services.retriever.args.index=b"], "env.services.retriever.args.index='data/world/index', but now it is 'b'"),
        (["judge.endpoints.main.url=http://b/v1", "judge.endpoints.main.key_env=KEY", "judge.cache=c", "judge.attempts=9"], ""),
        (
            [
                "+judge.endpoints.more={url: 'http://b/v1', model: big}",
                "judge.limits.concurrent=2",
                "env.services.retriever.cpus=1",
            ],
            "",
        ),
    ],
)
def test_another_judge_is_another_reward_and_another_address_is_not(tmp_path, overrides, message):
    folder = saved(tmp_path, *JUDGED, "judge.endpoints.main.model=big")
    now = composed(*JUDGED, "judge.endpoints.main.model=big", *overrides)
    if not message:
        assert read_state(folder, now, DRAWN).step == 0
        return
    with pytest.raises(ConfigError, match=re.escape(message)):
        read_state(folder, now, DRAWN)


def test_a_local_judge_is_known_by_its_weights(tmp_path):
    one, same, other = (model_folder(tmp_path / name, weights) for name, weights in [("a", b"x"), ("b", b"x"), ("c", b"y")])
    local = [JUDGED[0], "judge=local"]
    folder = saved(tmp_path, *local, f"judge.local.model={one}")
    read_state(folder, composed(*local, f"judge.local.model={same}", "judge.local.servers=2"), DRAWN)
    with pytest.raises(ConfigError, match="env.reward.judges.judge.local="):
        read_state(folder, composed(*local, f"judge.local.model={other}"), DRAWN)


def test_what_is_no_checkpoint_is_said_to_be_none(tmp_path):
    with pytest.raises(ConfigError, match="is not a checkpoint"):
        read_state(str(tmp_path), composed(*SMALL), DRAWN)
    with pytest.raises(ConfigError, match="is damaged"):
        read_state(checkpoint(tmp_path, '{"step": '), composed(*SMALL), DRAWN)


@pytest.mark.parametrize("name", ["resume", "replay"])
def test_an_input_that_a_recipe_does_not_read_is_refused(name):
    with pytest.raises(ConfigError, match=f"recipes.test does not use {name}"):
        begin(composed(*SMALL, f"{name}=some/folder"))


def model_folder(folder: Path, weights: bytes) -> str:
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(weights)
    return str(folder)


def test_other_weights_at_the_start_or_in_the_reference_are_refused(tmp_path):
    one, same, other = (model_folder(tmp_path / name, weights) for name, weights in [("a", b"x"), ("b", b"x"), ("c", b"y")])
    first = composed(*SMALL, f"model.path={one}", "algo.kl.coef=0.1")
    folder = checkpoint(tmp_path, json.dumps(asdict(first_state(first, one, DRAWN))))
    read_state(folder, composed(*SMALL, f"model.path={same}", "algo.kl.coef=0.1"), DRAWN)
    with pytest.raises(ConfigError, match=f"weights of model.path=.*started from model.path={one}"):
        read_state(folder, composed(*SMALL, f"model.path={other}", "algo.kl.coef=0.1", f"algo.kl.reference={one}"), DRAWN)
    with pytest.raises(ConfigError, match="weights of algo.kl.reference="):
        read_state(folder, composed(*SMALL, f"model.path={one}", "algo.kl.coef=0.1", f"algo.kl.reference={other}"), DRAWN)


class FakeRank:
    """A learner's side of saving: `saved` answers after `writing` is set; then the file is there, or `fault` is raised."""

    def __init__(self, fault: Exception | None = None) -> None:
        self.writing, self.fault, self.folder, self.saves = asyncio.Event(), fault, Path(), 0
        self.writing.set()
        self.save, self.saved = SimpleNamespace(remote=self._save), SimpleNamespace(remote=self._saved)

    async def _save(self, folder: str) -> None:
        self.folder, self.saves = Path(folder), self.saves + 1

    async def _saved(self) -> bool:
        if self.writing.is_set():
            if self.fault is not None:
                raise self.fault
            self.folder.mkdir(exist_ok=True)
        return self.writing.is_set()


def written(folder: Path) -> list[str]:
    return sorted(p.name for p in (folder / "checkpoints").iterdir())


def run_of(folder: Path, rewards: dict[int, float], keep: int | None, keep_best: int) -> list[str]:
    """Five steps, each saved, some evaluated."""

    async def main() -> None:
        async with Checkpoints(folder / "checkpoints", [FakeRank()], keep, keep_best, 5.0) as checkpoints:
            for step in range(1, 6):
                await checkpoints.save(RunState(step))
                if step in rewards:
                    checkpoints.scored(step, rewards[step])

    asyncio.run(main())
    return [int(name.split("-")[1]) for name in written(folder) if name.startswith("step")]


@pytest.mark.parametrize(
    ("rewards", "keep", "keep_best", "wanted", "best"),
    [
        ({}, 2, 1, [4, 5], None),
        ({}, None, 0, [1, 2, 3, 4, 5], None),
        ({1: 0.1, 2: 0.3, 3: 0.2}, 2, 1, [2, 4, 5], "step-000002"),
        ({1: 0.1, 2: 0.3, 3: 0.2}, 1, 2, [2, 3, 5], "step-000002"),
        ({1: 0.3, 4: float("nan")}, 1, 0, [5], None),
        ({1: 0.1, 5: 0.3}, 1, 1, [5], "step-000005"),
    ],
)
def test_the_newest_and_the_best_are_kept(tmp_path, rewards, keep, keep_best, wanted, best):
    assert run_of(tmp_path, rewards, keep, keep_best) == wanted
    index = json.loads((tmp_path / "checkpoints" / "index.json").read_text())
    assert index["best"] == best and list(index["heldout_reward"]) == [f"step-{s:06d}" for s in wanted]
    assert not [name for name in written(tmp_path) if name.endswith(".tmp")]


def test_training_goes_on_while_ranks_write_and_the_folder_appears_when_the_last_is_done(tmp_path):
    async def main() -> None:
        ranks = [FakeRank(), FakeRank()]
        checkpoints = Checkpoints(tmp_path / "checkpoints", ranks, 2, 1, 5.0)
        ranks[1].writing.clear()
        state = RunState(step=1)
        await checkpoints.save(state)  # does not wait for the writing
        state.step = 2
        await asyncio.sleep(0.2)
        assert written(tmp_path) == ["step-000001.tmp"]
        following = asyncio.ensure_future(checkpoints.save(state))
        await asyncio.sleep(0.05)
        assert ranks[0].saves == 1  # one at a time
        ranks[1].writing.set()
        await following
        await checkpoints.save(state)
        await checkpoints.wait()
        assert written(tmp_path) == ["index.json", "step-000001", "step-000002"] and ranks[0].saves == 2
        assert json.loads((tmp_path / "checkpoints" / "step-000001" / "run.json").read_text())["step"] == 1

    asyncio.run(main())


def test_a_checkpoint_that_cannot_be_written_ends_the_run_with_the_cause(tmp_path):
    async def main() -> None:
        checkpoints = Checkpoints(
            tmp_path / "checkpoints", [FakeRank(), FakeRank(OSError(28, "No space left on device"))], 2, 1, 5.0
        )
        await checkpoints.save(RunState(step=3))
        await asyncio.sleep(0.05)
        checkpoints.check()

    with pytest.raises(RunFailed, match="the checkpoint of step 3 could not be written: .*No space left on device"):
        asyncio.run(main())
    assert written(tmp_path) == ["step-000003.tmp"]


def test_a_run_that_fails_still_gets_its_last_checkpoint_and_one_that_hangs_a_deadline(tmp_path):
    async def fails() -> None:
        async with Checkpoints(tmp_path / "checkpoints", [FakeRank()], 2, 1, 5.0) as checkpoints:
            await checkpoints.save(RunState(step=1))
            raise RunFailed("the judge is lost")

    with pytest.raises(RunFailed, match="the judge is lost"):
        asyncio.run(fails())
    assert "step-000001" in written(tmp_path)

    async def hangs() -> None:
        rank = FakeRank()
        rank.writing.clear()
        async with Checkpoints(tmp_path / "checkpoints", [rank], 2, 1, 0.1) as checkpoints:
            await checkpoints.save(RunState(step=2))

    with pytest.raises(RunFailed, match="writing a checkpoint did not end within 0.1 s"):
        asyncio.run(hangs())
