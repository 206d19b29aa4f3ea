"""Flat GRPO in one file, without Ray, vLLM or DeepSpeed: the executable specification of recipes.atomic_rl.

    python -m recipes.minimal model=tiny algo.steps=3
    python -m recipes.minimal model=tiny replay=runs/<id>/trajectories.jsonl     # the same samples, the same losses

Left out on purpose: asynchrony, shared prompts, packing, data parallelism, checkpoints. Every sequence is scored alone with
full logits, so that nothing here can share a mistake with rlcore/batch.py, rlcore/loss.py or rlcore/advantage.py.
It covers the default algorithm, conf/algo/grpo.yaml, with `aggregation` token_mean or trajectory_mean; other knobs are refused.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import json
import statistics
from operator import attrgetter
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from recipes.cli import run_recipe
from recipes.common import begin, metrics_writer, queries
from rlcore.algo_config import AlgoConfig
from rlcore.config import Config
from rlcore.errors import ConfigError
from rlcore.lora import choose_trained
from rlcore.metrics import console, mean
from rlcore.model import end_token_ids, load_tokenizer
from rlcore.policy import ChatRenderer
from rlcore.queries import QueryCursor, kinds_of
from rlcore.rollout import Rollouts
from rlcore.sampling import Generation, Sampling
from rlcore.targets import Target, build, make_reward
from rlcore.types import Sequence, Trajectory


class TorchEngine:
    """Samples one completion at a time with the model that is being trained."""

    def __init__(self, model: Any, stop_ids: tuple[int, ...]) -> None:
        self.model, self.stop_ids, self.version = model, stop_ids, 0

    async def generate(self, prompt_ids: list[int], sampling: Sampling) -> Generation:
        generator = torch.Generator().manual_seed(sampling.seed or 0)
        out = Generation([], [], [], "length")
        cache, inputs = None, torch.tensor([prompt_ids])
        with torch.no_grad():
            while len(out.token_ids) < sampling.max_tokens:
                result = self.model(inputs, past_key_values=cache, use_cache=True)
                cache = result.past_key_values
                logprobs = torch.log_softmax(result.logits[0, -1] / sampling.temperature, -1)
                token = int(torch.multinomial(logprobs.exp(), 1, generator=generator))
                out.token_ids.append(token)
                out.logprobs.append(float(logprobs[token]))
                out.versions.append(self.version)
                if token in self.stop_ids:
                    out.finish_reason = "stop"
                    break
                inputs = torch.tensor([[token]])
        return out


async def sample_groups(rollouts: Rollouts, cursor: QueryCursor, algo: AlgoConfig) -> list[list[Trajectory]]:
    """One step's groups. The environment, the recording policy and the reward are the framework's own."""
    return [(await rollouts.run_group(*cursor.draw(), algo.group_size)).trajectories for _ in range(algo.queries_per_step)]


def replay_groups(path: str) -> list[list[list[Trajectory]]]:
    """The groups of every step of a recorded run, in order."""
    steps: dict[int, dict[str, list[Trajectory]]] = {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            step, _ = row.pop("step"), row.pop("advantage")
            trajectory = Trajectory.from_json(row)
            steps.setdefault(step, {}).setdefault(trajectory.group_id, []).append(trajectory)
    return [list(groups.values()) for _, groups in sorted(steps.items())]


def advantages(rewards: list[float]) -> list[float]:
    """A_i = (R_i - mean) / std, sample standard deviation; zeros for a tie."""
    if len(rewards) < 2 or max(rewards) - min(rewards) <= 1e-6:
        return [0.0] * len(rewards)
    return [(r - statistics.fmean(rewards)) / statistics.stdev(rewards) for r in rewards]


def sequence_loss(model: Any, sequence: Sequence, advantage: float, weight: float, algo: AlgoConfig) -> torch.Tensor:
    """- weight x sum over sampled tokens of the clipped surrogate, from full logits of this sequence alone."""
    ids = torch.tensor([sequence.token_ids])
    logits = model(ids).logits[0, :-1].float() / algo.temperature
    logprobs = torch.log_softmax(logits, -1)[torch.arange(ids.shape[1] - 1), ids[0, 1:]]
    mask = torch.tensor(sequence.loss_mask[1:], dtype=torch.bool)
    ratio = torch.exp(logprobs[mask] - torch.tensor(sequence.rollout_logprobs[1:])[mask])
    clipped = ratio.clamp(1 - algo.clip_low, 1 + algo.clip_high)
    surrogate = torch.minimum(ratio * advantage, clipped * advantage)
    if advantage < 0:
        surrogate = surrogate.clamp(min=algo.dual_clip * advantage)
    return -weight * surrogate.sum()


def train_step(
    model: Any, optimizer: torch.optim.Optimizer, groups: list[list[Trajectory]], algo: AlgoConfig
) -> dict[str, float]:
    """One optimizer step. Groups without signal are left out; sequences of a trajectory share its vote."""
    work: list[tuple[Trajectory, float]] = []
    for group in groups:
        usable = [t for t in group if t.usable]
        values = advantages([t.reward.value for t in usable if t.reward is not None and t.reward.value is not None])
        if any(values):
            work += zip(usable, values, strict=True)
    total = 0.0
    for trajectory, advantage in work:
        if algo.aggregation == "trajectory_mean":
            weight = 1.0 / (len(work) * trajectory.sampled_tokens)
        else:
            weight = 1.0 / sum(t.sampled_tokens for t, _ in work)
        for sequence in trajectory.sequences:
            loss = sequence_loss(model, sequence, advantage, weight, algo)
            loss.backward()
            total += float(loss.detach())
    norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), algo.optimizer.grad_clip))
    if work:
        optimizer.step()
    optimizer.zero_grad()
    rewards = [t.reward.value for g in groups for t in g if t.reward is not None and t.reward.value is not None]
    return {"reward": mean(rewards), "loss": total, "grad_norm": norm, "trained": float(len(work))}


def check_default(algo: AlgoConfig) -> None:
    """Refuse what this file does not compute."""
    fixed = {
        "advantage": "grpo", "std": "sample", "tied_groups": "drop", "resample_tied": 0, "truncated": "keep", "ratio": "token",
        "surrogate": "clip", "old_logprobs": "rollout", "correction.kind": "none", "kl.coef": 0.0, "entropy_coef": 0.0,
        "optimizer.weight_decay": 0.0, "optimizer.schedule": "constant",
    }  # fmt: skip
    for name, value in fixed.items():
        if attrgetter(name)(algo) != value:
            raise ConfigError(f"algo.{name}={attrgetter(name)(algo)}: recipes.minimal has algo.{name}={value} only")
    if algo.optimizer.grad_clip <= 0:
        raise ConfigError(f"algo.optimizer.grad_clip={algo.optimizer.grad_clip}: recipes.minimal always clips, above 0")
    if algo.aggregation not in ("token_mean", "trajectory_mean") or algo.dual_clip is None:
        raise ConfigError("recipes.minimal has algo.aggregation token_mean or trajectory_mean, and a dual clip")


def main(config: Config) -> None:
    """Train `algo.steps` steps, or as many as the replayed file holds."""
    algo = config.algo
    check_default(algo)
    if config.env.reward.judges:
        raise ConfigError(f"recipes.minimal starts no judges; env.reward.judges names {sorted(config.env.reward.judges)}")
    drawn = queries(config, "train") if config.replay is None else []
    run_dir = begin(config, uses=("replay",))
    if run_dir is None:
        return
    torch.manual_seed(config.seed)
    model = AutoModelForCausalLM.from_pretrained(config.model.path, dtype=torch.float32)
    choose_trained(model, config.model.train_layers, config.model.lora, config.seed)
    o = algo.optimizer
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=o.lr, betas=(o.beta1, o.beta2), weight_decay=0.0)
    tokenizer = load_tokenizer(config.model.path)
    engine = TorchEngine(model, end_token_ids(config.model.path, tokenizer))
    metrics = metrics_writer(config, run_dir)
    with asyncio.Runner() as runner:
        if config.replay is not None:
            steps: Any = iter(replay_groups(config.replay))
        else:
            rollouts = _rollouts(config, engine, ChatRenderer(tokenizer, config.model.chat_template_kwargs))
            cursor = QueryCursor(drawn, config.seed, kinds=kinds_of(drawn, config.env.group_by))
            steps = (runner.run(sample_groups(rollouts, cursor, algo)) for _ in itertools.count())
        for step, groups in enumerate(itertools.islice(steps, algo.steps), 1):
            for group in optimizer.param_groups:  # linear warm-up, then constant
                group["lr"] = o.lr * min(1.0, step / max(1, o.warmup_steps))
            figures = train_step(model, optimizer, groups, algo)
            engine.version = step
            metrics.log(figures, "minimal", step)
            console.print(f"minimal {step:>3}  " + "  ".join(f"{k} {v:.5f}" for k, v in figures.items()))
    metrics.close()


def _rollouts(config: Config, engine: TorchEngine, renderer: ChatRenderer) -> Rollouts:
    services = {name: build(Target(s.target, s.args)) for name, s in config.env.services.items()}
    reward = make_reward(config.env.reward)

    async def score(trajectory: Trajectory) -> Any:
        result = reward(trajectory)
        return await result if inspect.isawaitable(result) else result

    return Rollouts(
        environment=build(Target(config.env.target, config.env.args), **services),
        engine=engine,
        renderer=renderer,
        score=score,
        sampling=Sampling(config.algo.temperature, 1.0, config.algo.max_tokens, config.seed),
        max_model_len=config.model.max_model_len,
        trajectory_timeout_s=config.cluster.trajectory_timeout_s,
        call_timeout_s=config.cluster.call_timeout_s,
    )


if __name__ == "__main__":
    run_recipe("minimal", main)
