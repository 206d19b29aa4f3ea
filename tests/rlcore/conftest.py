"""Real actors on the tiny model, started once for all slow tests of a module: Ray, a vLLM engine, a DeepSpeed learner."""

import asyncio
import contextlib
from pathlib import Path
from types import SimpleNamespace

import pytest

TINY = Path("data/models/tiny")


@pytest.fixture(scope="session")
def tiny() -> str:
    if not (TINY / "config.json").is_file():
        pytest.fail("the tiny model is missing: run `make data-small`")
    return str(TINY.absolute())


@pytest.fixture(scope="module")
def model():
    """A random Llama of 2 layers and 64 tokens, in fp32."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=128, tie_word_embeddings=True, attn_implementation="sdpa",
    )  # fmt: skip
    return LlamaForCausalLM(config)


@pytest.fixture(scope="session")
def loop():
    """One event loop for everything that talks to the session's actors."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="session")
def ray_cluster():
    import ray

    ray.init(num_cpus=8, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def cluster():
    """A small Ray for tests of actors without a model, or the one that is up."""
    import ray

    if ray.is_initialized():
        yield
        return
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=100 * 2**20)
    yield
    ray.shutdown()


def learner_options(model: str, ranks: int = 1, stage: int = 0, lr: float = 1e-3, **changes):
    from rlcore.learner import LearnerOptions
    from rlcore.schedule import Schedule

    values = {
        "model": model,
        "dtype": "float32",
        "deepspeed": {"zero_optimization": {"stage": stage}},
        "lr": lr,
        "weight_decay": 0.0,
        "betas": (0.9, 0.95),
        "grad_clip": 1.0,
        "schedule": Schedule("cosine", 0, 10),
        "temperature": 1.0,
        "ranks": ranks,
        "seed": 0,
    }
    return LearnerOptions(**{**values, **changes})


async def start_learners(options):
    from rlcore.learner import start_learner_actors

    actors = start_learner_actors(options, cpus=0.5)
    host, port = await actors[0].address.remote()
    await asyncio.wait_for(asyncio.gather(*(a.start.remote(host, port) for a in actors)), 300)
    return actors


@contextlib.contextmanager
def connected(loop, learners):
    """An engine and learners of the options' model, connected, nothing pushed yet."""
    from rlcore.engine import EngineGroup, EngineOptions, start_engine_actors
    from rlcore.weights import WeightSync

    options = EngineOptions(
        model=learners.model,
        dtype="float32",
        max_model_len=512,
        max_num_seqs=32,
        seed=0,
        stop_token_ids=(2,),
        threads=2,
        worker_extension="tests.rlcore.sabotage.Sabotage",
    )
    group = EngineGroup(start_engine_actors(options, 1, 0.5), 120.0)

    async def start():
        _, actors = await asyncio.gather(group.start(300.0), start_learners(learners))
        probe = [list(range(100, 160)), list(range(300, 340))]
        sync = WeightSync(actors, group.actors, 1, probe, 1e-3, 1e-3, 120.0)
        await sync.connect()
        return SimpleNamespace(group=group, engine=group.actors[0], learners=actors, sync=sync)

    yield loop.run(start())
    loop.run(group.stop(15.0))


@pytest.fixture(scope="session")
def pair(ray_cluster, tiny, loop):
    """An engine and a learner of the tiny model."""
    with connected(loop, learner_options(tiny)) as made:
        yield made
