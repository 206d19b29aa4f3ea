"""SFT: its validation loss, and what a run that is resumed does."""

import asyncio
import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from rlcore.checkpoint import Checkpoints, RunState
from rlcore.errors import ConfigError, RunFailed
from rlcore.policy import ChatRenderer, RecordingPolicy
from rlcore.sampling import Sampling
from rlcore.sft import Demonstration, choose, encode, fine_tune
from rlcore.types import Query, Trajectory
from tests.fakes import END as CHARACTERS_END
from tests.fakes import CharTokenizer, ScriptedEngine
from tests.rlcore.test_config import composed
from tests.rlcore.test_loop import remote

END = 9


class FakeRank:
    """A learner whose log-probability of a token is minus its id."""

    def __init__(self, norms: dict[int, float] | None = None) -> None:
        self.norms, self.taken = norms or {}, []
        self.train_step = remote(self._step)
        self.save, self.saved = remote(lambda folder: None), remote(lambda: True)
        self.sft_loss = remote(lambda rows: sum(w * t for row in rows for w, t in zip(row.weights, row.targets, strict=True)))

    def _step(self, rows, loss, first):
        tokens = float(sum(len(row.targets) for row in rows))
        self.taken.append([row.targets for row in rows if not row.filler])
        norm = self.norms.get(len(self.taken), 1.0)
        return {
            "tokens": tokens,
            "loss": 1.0,
            "lr": 0.1,
            "grad_norm": norm,
            "nonfinite": float(not math.isfinite(norm)),
            "train_s": 1.0,
            "row_tokens": tokens,
        }


def said(text: str, kind: str | None = None) -> Demonstration:
    return Demonstration([], [{"role": "assistant", "content": text}], kind)


def test_demonstrations_that_no_model_could_take_are_a_setting_that_cannot_work(tmp_path):
    with pytest.raises(ConfigError, match="model.max_model_len=2 has room for none of the demonstrations"):
        run([], tmp_path, max_model_len=2)


def run(held: list[Demonstration], folder: Path, done: int = 0, ranks: list[FakeRank] | None = None, **changes):
    """The steps to the fifth of two ranks on letters, which are their own ids; the figures of each step."""
    config = composed("sft.steps=5", "sft.batch_size=2", "cluster.learner_ranks=2")
    model = replace(config.model, max_model_len=changes.pop("max_model_len", 2048))
    runtime = SimpleNamespace(
        config=replace(config, model=model, sft=replace(config.sft, **changes)),
        tokenizer=SimpleNamespace(eos_token_id=END),
        renderer=SimpleNamespace(ids=lambda text: [int(c) for c in text], prompt=lambda messages: [1, 2]),
        learners=ranks or [FakeRank(), FakeRank()],
    )
    logged: list[dict[str, float]] = []
    metrics = SimpleNamespace(log=lambda figures, stage, step: logged.append(figures))
    shown = [said(str(n)) for n in range(34, 41)]

    async def main() -> None:
        async with Checkpoints(folder, runtime.learners, 1, 0, 5.0) as checkpoints:
            await fine_tune(runtime, shown, held, metrics, RunState(step=done), checkpoints)

    asyncio.run(main())
    return logged


CHAT = [
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": "one"},
    {"role": "tool", "content": "42"},
    {"role": "user", "content": "b"},
    {"role": "assistant", "content": "two"},
]


def test_a_chat_is_learned_as_the_tokens_that_a_policy_records_when_it_says_the_same():
    renderer, answers = ChatRenderer(CharTokenizer()), iter(["one", "two"])
    trajectory = Trajectory(Query("q"), "g", 0)
    policy = RecordingPolicy(ScriptedEngine(lambda prompt: next(answers)), renderer, Sampling(), 500, trajectory, 5.0)

    async def chat() -> None:
        conversation = policy.conversation(CHAT[:1])
        await conversation.generate()
        conversation.add(*CHAT[2:4])
        await conversation.generate()

    asyncio.run(chat())
    (recorded,) = trajectory.sequences
    learned = encode(Demonstration.of(Query("q", {"messages": CHAT})), renderer, CHARACTERS_END)
    assert (learned.token_ids, learned.loss_mask) == (recorded.token_ids, recorded.loss_mask)
    trained = [token for token, mask in zip(learned.token_ids, learned.loss_mask, strict=True) if mask]
    assert renderer.tokenizer.decode(trained, skip_special_tokens=False) == "one<end>two<end>"


def test_an_output_is_learned_alone_whatever_the_assistant_said_before():
    shown = Demonstration.of(Query("q", {"messages": CHAT[:4], "output": "two"}))
    learned = encode(shown, ChatRenderer(CharTokenizer()), CHARACTERS_END)
    assert sum(learned.loss_mask) == 4 and learned.prompt_length == len(learned) - 4


@pytest.mark.parametrize("data", [{}, {"prompt": "a"}, {"messages": CHAT[:4]}, {"messages": []}, {"messages": "a"}])
def test_what_shows_no_answer_is_no_demonstration(data):
    assert Demonstration.of(Query("q", data)) is None


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"output": "two"}, "'messages' must be a list of messages, got None"),
        ({"messages": [], "output": "two"}, "'messages' must be a list of messages"),
        ({"messages": CHAT[:1], "output": 2}, "'output' must be text, got int"),
        (
            {"messages": [{"role": "user", "content": None}, CHAT[1]]},
            r"messages\[0\] must have a 'role' and a 'content', both",
        ),
        ({"messages": ["a", CHAT[1]]}, r"messages\[0\] must have a 'role'"),
        ({"messages": CHAT[1:]}, r"messages\[0\] is the assistant's"),
    ],
)
def test_a_bad_chat_is_named(data, message):
    with pytest.raises(ConfigError, match=f"query 'q7': {message}"):
        Demonstration.of(Query("q7", data))


def test_a_run_that_goes_on_takes_the_steps_that_the_whole_one_took(tmp_path):
    whole, rest = [FakeRank(), FakeRank()], [FakeRank(), FakeRank()]
    run([], tmp_path, ranks=whole, checkpoint_every=2)
    assert [p.name for p in tmp_path.glob("step-*")] == ["step-000004"]
    assert json.loads((tmp_path / "step-000004" / "run.json").read_text())["step"] == 4
    assert len(run([], tmp_path / "again", done=3, ranks=rest)) == 2
    assert [rank.taken for rank in rest] == [rank.taken[3:] for rank in whole]
    assert len({str(step) for step in whole[0].taken}) == 5


def test_a_gradient_that_is_not_finite_ends_the_run_and_the_steps_before_it_are_kept(tmp_path):
    with pytest.raises(RunFailed, match="gradient of step 3 is not finite"):
        run([], tmp_path, ranks=[FakeRank({3: math.nan}), FakeRank({3: math.nan})])
    assert [p.name for p in tmp_path.glob("step-*")] == ["step-000002"]


def test_the_validation_loss_is_a_mean_over_response_tokens_of_all_ranks(tmp_path):
    """Responses 3 and 4 4 4, each with the end 9: (3 + 9 + 4 + 4 + 4 + 9) / 6, whatever rows and ranks they fall on."""
    held = [said("3"), said("444")]
    for row_tokens in (4, 512):
        logged = run(held, tmp_path, validate_every=2, row_tokens=row_tokens, aggregation="trajectory_mean")
        assert {n: f["validation_loss"] for n, f in enumerate(logged, 1) if "validation_loss" in f} == {
            2: pytest.approx(5.5), 4: pytest.approx(5.5), 5: pytest.approx(5.5)
        }  # fmt: skip


def test_without_held_out_demonstrations_there_is_none(tmp_path):
    logged = run([], tmp_path, validate_every=1)
    assert len(logged) == 5 and not any("validation_loss" in f for f in logged)


def test_the_chosen_ones_are_spread_over_the_kinds_and_always_the_same():
    pool = [said(str(i), "rare" if i % 4 == 0 else "common") for i in range(40)]
    chosen = choose(pool, 8)
    assert chosen == choose(pool, 8) and sum(d.kind == "rare" for d in chosen) == 2
    assert len(choose(pool[:3], 8)) == 3
