"""The validation loss of SFT: of which demonstrations, when, and its value."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest

from rlcore.errors import ConfigError
from rlcore.sft import Demonstration, choose, fine_tune
from tests.rlcore.test_config import composed
from tests.rlcore.test_loop import remote

END = 9


class FakeRank:
    """A learner whose log-probability of a token is minus its id."""

    def __init__(self) -> None:
        self.train_step = remote(self._step)
        self.sft_loss = remote(lambda rows: sum(w * t for row in rows for w, t in zip(row.weights, row.targets, strict=True)))

    def _step(self, rows, loss, first):
        tokens = float(sum(len(row.targets) for row in rows))
        return {
            "tokens": tokens,
            "loss": 1.0,
            "lr": 0.1,
            "grad_norm": 1.0,
            "nonfinite": 0.0,
            "train_s": 1.0,
            "row_tokens": tokens,
        }


def test_demonstrations_that_no_model_could_take_are_a_setting_that_cannot_work():
    with pytest.raises(ConfigError, match="model.max_model_len=2 has room for none of the demonstrations"):
        run([], max_model_len=2)


def run(held: list[Demonstration], **changes) -> list[dict[str, float]]:
    """Five steps of two ranks on letters, which are their own ids; the figures of each step."""
    config = composed("sft.steps=5", "sft.batch_size=2", "cluster.learner_ranks=2")
    model = replace(config.model, max_model_len=changes.pop("max_model_len", 2048))
    runtime = SimpleNamespace(
        config=replace(config, model=model, sft=replace(config.sft, **changes)),
        tokenizer=SimpleNamespace(eos_token_id=END),
        renderer=SimpleNamespace(
            tokenizer=lambda text, add_special_tokens: {"input_ids": [int(c) for c in text]}, prompt=lambda messages: [1, 2]
        ),
        learners=[FakeRank(), FakeRank()],
    )
    logged: list[dict[str, float]] = []
    metrics = SimpleNamespace(log=lambda figures, stage, step: logged.append(figures))
    asyncio.run(fine_tune(runtime, [Demonstration([], "34"), Demonstration([], "5")], held, metrics))
    return logged


def test_the_validation_loss_is_a_mean_over_response_tokens_of_all_ranks():
    """Responses 3 and 4 4 4, each with the end 9: (3 + 9 + 4 + 4 + 4 + 9) / 6, whatever rows and ranks they fall on."""
    held = [Demonstration([], "3"), Demonstration([], "444")]
    for row_tokens in (4, 512):
        logged = run(held, validate_every=2, row_tokens=row_tokens, aggregation="trajectory_mean")
        assert {n: f["validation_loss"] for n, f in enumerate(logged, 1) if "validation_loss" in f} == {
            2: pytest.approx(5.5), 4: pytest.approx(5.5), 5: pytest.approx(5.5)
        }  # fmt: skip


def test_without_held_out_demonstrations_there_is_none():
    assert len(run([])) == 5 and not any("validation_loss" in f for f in run([], validate_every=1))


def test_the_chosen_ones_are_spread_over_the_kinds_and_always_the_same():
    pool = [Demonstration([], str(i), "rare" if i % 4 == 0 else "common") for i in range(40)]
    chosen = choose(pool, 8)
    assert chosen == choose(pool, 8) and sum(d.kind == "rare" for d in chosen) == 2
    assert len(choose(pool[:3], 8)) == 3
