"""Sampler = learner: pushes into a live vLLM engine, and what the parity probe does with broken ones."""

import asyncio
import json

import pytest
import ray
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from rlcore.batch import Row
from rlcore.checkpoint import export_model
from rlcore.config import LoraConfig
from rlcore.errors import ParityError
from rlcore.loss import PolicyLoss
from rlcore.model import load_model, load_tokenizer
from rlcore.sampling import Sampling
from tests.rlcore.conftest import connected, learner_options

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

PROMPT = list(range(200, 250))


def train_row() -> Row:
    ids = list(range(500, 520))
    n = len(ids)
    m = n - 1
    return Row(ids, list(range(n)), [0] * n, [0] * n, list(range(m)), ids[1:], [1.0 / n] * m, [1.0] * m, [-7.6] * m, [0] * m)


def test_nothing_is_sampled_before_the_first_push(pair, loop):
    assert loop.run(_held(pair)) == -1, "another test pushed first; this one has to run first"
    with pytest.raises(Exception, match="push before the first sample"):
        loop.run(pair.group.generate(PROMPT, Sampling(max_tokens=4)))


async def _held(pair):
    return await pair.engine.held_version.remote()


def test_after_a_push_both_sides_agree_and_versions_are_stamped(pair, loop):
    result = loop.run(pair.sync.push(0))
    assert result["parity"] < 1e-4
    out = loop.run(pair.group.generate(PROMPT, Sampling(max_tokens=6, seed=1)))
    assert len(out.token_ids) == len(out.logprobs) == len(out.versions) and set(out.versions) == {0}


def test_a_trained_learner_differs_until_it_is_pushed(pair, loop):
    loop.run(_step(pair))
    largest, average = loop.run(pair.sync.probe())
    assert largest > 1e-3 and 0 < average < largest
    assert loop.run(pair.sync.push(1))["parity"] < 1e-4
    assert loop.run(_held(pair)) == 1


async def _step(pair):
    return await asyncio.gather(*(a.train_step.remote([train_row()], PolicyLoss()) for a in pair.learners))


def test_sampled_logprobs_are_those_of_the_learner_at_the_sampling_temperature(pair, loop):
    out = loop.run(pair.group.generate(PROMPT, Sampling(temperature=1.0, max_tokens=12, seed=5)))
    (scores,) = loop.run(_score(pair, [PROMPT + out.token_ids]))
    assert out.logprobs == pytest.approx(scores[len(PROMPT) - 1 :], abs=1e-4)
    tempered = loop.run(pair.group.generate(PROMPT, Sampling(temperature=0.5, max_tokens=12, seed=5)))
    (scores,) = loop.run(_score(pair, [PROMPT + tempered.token_ids]))
    assert tempered.logprobs != pytest.approx(scores[len(PROMPT) - 1 :], abs=1e-2)  # not the un-tempered ones


async def _score(pair, sequences):
    return await pair.learners[0].score.remote(sequences)


def test_the_same_seed_gives_the_same_completion_whatever_else_runs(pair, loop):
    async def alone_and_in_company():
        sampling = Sampling(max_tokens=16, seed=11)
        alone = await pair.group.generate(PROMPT, sampling)
        company = [pair.group.generate(list(range(i, i + 40)), Sampling(max_tokens=16, seed=i)) for i in range(100, 108)]
        again, *_ = await asyncio.gather(pair.group.generate(PROMPT, sampling), *company)
        return alone, again

    alone, again = loop.run(alone_and_in_company())
    assert alone.token_ids == again.token_ids


@pytest.mark.parametrize("name", ["model.layers.1.mlp.down_proj.weight", "model.embed_tokens.weight", "model.norm.weight"])
def test_one_corrupted_tensor_stops_sampling(pair, loop, name):
    loop.run(_worker(pair, "corrupt_pushed", name, 0.01))
    with pytest.raises(ParityError, match="sampling is stopped"):
        loop.run(pair.sync.push(2))
    assert loop.run(_never_answers(pair))
    loop.run(_worker(pair, "corrupt_pushed", name, 0.0))
    assert loop.run(pair.sync.push(3))["parity"] < 1e-4


async def _never_answers(pair) -> bool:
    """True when a request stays unanswered: the engine is paused."""
    call = asyncio.ensure_future(pair.group.generate(PROMPT, Sampling(max_tokens=2)))
    done, _ = await asyncio.wait({call}, timeout=2.0)
    call.cancel()
    return not done


async def _worker(pair, method, *args):
    return await pair.engine.collective.remote(method, *args)


def test_a_tied_head_that_keeps_its_old_weights_stops_sampling(pair, loop):
    loop.run(_step(pair))  # otherwise old and new head are equal
    loop.run(_worker(pair, "keep_stale_head", True))
    with pytest.raises(ParityError, match="sampling is stopped"):
        loop.run(pair.sync.push(4))
    loop.run(_worker(pair, "keep_stale_head", False))
    assert loop.run(pair.sync.push(5))["parity"] < 1e-4


def test_requests_in_flight_survive_a_push_and_say_which_tokens_are_whose(pair, loop):
    async def main():
        calls = [asyncio.ensure_future(pair.group.generate(PROMPT, Sampling(max_tokens=200, seed=s))) for s in range(8)]
        await asyncio.sleep(0.5)
        await pair.sync.push(6)
        return await asyncio.gather(*calls)

    outs = loop.run(main())
    assert all(o.finish_reason in ("stop", "length") for o in outs)
    mixed = [o for o in outs if len(set(o.versions)) == 2]
    assert mixed and all(o.versions == sorted(o.versions) and set(o.versions) == {5, 6} for o in mixed)


def test_an_export_is_served_from_its_files_and_a_wrong_one_stops_sampling(pair, tiny, loop, tmp_path):
    folder = tmp_path / "export"

    async def main():
        await _step(pair)  # the export is of what no engine holds yet
        assert "float32" in await export_model(folder, pair.learners, tiny, 120.0)
        return await pair.sync.push(7, folder)

    assert loop.run(main())["parity"] < 1e-4 and loop.run(_held(pair)) == 7
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 0.1}))
    with pytest.raises(Exception, match="another model than the one that runs: rms_norm_eps 0.1"):
        loop.run(pair.sync.push(8, folder))
    (folder / "config.json").write_text(json.dumps(config))
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"] += 0.01
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ParityError, match="sampling is stopped"):
        loop.run(pair.sync.push(8, folder))
    assert loop.run(pair.sync.push(8))["parity"] < 1e-4


def test_an_untied_model_with_a_sharded_adapter_is_pushed_and_served_from_its_export(ray_cluster, tiny, loop, tmp_path):
    model, tokenizer = load_model(tiny, "float32"), load_tokenizer(tiny)
    config = LlamaConfig(**{**model.config.to_dict(), "tie_word_embeddings": False})
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(tmp_path / "untied")
    tokenizer.save_pretrained(tmp_path / "untied")
    untied, folder = str(tmp_path / "untied"), tmp_path / "export"
    lora = LoraConfig(8, 16.0, ["q_proj", "v_proj", "down_proj"])

    async def main(pair):
        parities = [(await pair.sync.push(0))["parity"]]
        await _step(pair)
        apart, _ = await pair.sync.probe()
        parities.append((await pair.sync.push(1))["parity"])
        await _step(pair)
        await export_model(folder, pair.learners, untied, 120.0)
        parities.append((await pair.sync.push(2, folder))["parity"])
        await _worker(pair, "corrupt_pushed", "model.embed_tokens.weight", 0.01)
        with pytest.raises(ParityError, match="sampling is stopped"):
            await pair.sync.push(3)
        return parities, apart

    with connected(loop, learner_options(untied, ranks=2, stage=3, lr=1e-2, lora=lora)) as pair:
        parities, apart = loop.run(main(pair))
        for actor in pair.learners:
            ray.kill(actor)
    assert max(parities) < 1e-4 and apart > 1e-3
    tensors = load_file(folder / "model.safetensors")
    assert sorted(tensors) == sorted(load_file(tmp_path / "untied" / "model.safetensors"))
    assert "lm_head.weight" in tensors and not any("lora" in name for name in tensors)
