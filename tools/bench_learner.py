"""Measure the learner against a plain loop, a shared prompt against repeated ones, and the head's memory against full logits.

    python -m tools.bench_learner speed --model data/models/smollm2 --sequences 64
    python -m tools.bench_learner shared --model data/models/smollm2
    python -m tools.bench_learner memory --model data/models/smollm2

speed   One optimizer step (forward, backward, AdamW) over the same sequences, half of each trained. Ours: packed rows, only
        trained positions meet the head, in a process with the allocator settings of a CPU learner. The plain loop:
        `transformers` with padded micro-batches in the order they come and full logits, in a process as a user starts it; and
        once more with our allocator settings, which shows what of the ratio is theirs. Each side gets the best of its
        micro-batch sizes, and they are timed in turn: one computes while the others wait. A ratio is the median over rounds,
        beside the lowest and the highest: what else the machine does then falls on all sides of a round alike.
shared  A group of completions of one prompt, forward and backward, by the same code: stored once, against a copy for each.
memory  What 8,192 trained tokens take at the head, forward and backward, above what was there before; each in a process of its
        own.

Figures are tokens of the sequences per second (what is padded or repeated is not counted) and their ratio.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import random
import statistics
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from rlcore.batch import Row, Sample, build_rows, token_weights
from rlcore.cluster import cpu_environment
from rlcore.files import write_atomic
from rlcore.types import Sequence

ROW_TOKENS = (512, 1024, 2048)
MICRO_BATCHES = (1, 2, 4, 8)
LOGIT_BYTES = 2**29  # of a padded micro-batch at most: beside them there are copies, and three sides share the machine's memory
LONGEST = 512
PROMPTS_AND_REPLIES = ((128, 64), (512, 64), (512, 256), (1024, 64))
COMPLETIONS = 8
TRIALS = 2  # of each micro-batch size, in turn
TRAINED = 8192
IDS = (100, 400)  # random token ids from here to there: every vocabulary has them


def random_ids(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(*IDS) for _ in range(count)]


def ragged(rng: random.Random, count: int) -> list[Sequence]:
    """Lengths from 64 to 512, log-uniform; the second half is trained."""
    lengths = [round(math.exp(rng.uniform(math.log(64), math.log(LONGEST)))) for _ in range(count)]
    return [Sequence.demonstrated(random_ids(rng, n // 2), random_ids(rng, n - n // 2)) for n in lengths]


def equal(rng: random.Random, count: int) -> list[Sequence]:
    return [Sequence.demonstrated(random_ids(rng, 128), random_ids(rng, 128)) for _ in range(count)]


def rows_of(sequences: list[Sequence], row_tokens: int) -> list[Row]:
    samples = [Sample(s, 1.0, number) for number, s in enumerate(sequences)]
    return build_rows(samples, token_weights(samples, "token_mean"), row_tokens)


def packed_backward(model: Any, sequences: list[Sequence], row_tokens: int) -> None:
    rows_backward(model, rows_of(sequences, row_tokens))


def rows_backward(model: Any, rows: list[Row]) -> None:
    import torch

    from rlcore.loss import sft_loss, token_logprobs

    for row in rows:
        sft_loss(token_logprobs(model, row, 1.0)[0], torch.tensor(row.weights)).backward()


def padded_backward(model: Any, sequences: list[Sequence], micro_batch: int) -> None:
    """The textbook loop: right padding, logits of every position, cross-entropy where the label is not -100."""
    import torch

    trained = sum(sum(s.loss_mask) for s in sequences)
    for start in range(0, len(sequences), micro_batch):
        part = sequences[start : start + micro_batch]
        width = max(len(s) for s in part)
        ids, mask, labels = (torch.full((len(part), width), fill) for fill in (0, 0, -100))
        for i, s in enumerate(part):
            ids[i, : len(s)], mask[i, : len(s)] = torch.tensor(s.token_ids), 1
            labels[i, : len(s)] = torch.where(torch.tensor(s.loss_mask, dtype=torch.bool), torch.tensor(s.token_ids), -100)
        logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits[:, :-1].float()
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100, reduction="sum"
        )
        (loss / trained).backward()


def load(path: str, threads: int, dtype: str = "float32") -> Any:
    import torch

    from rlcore.model import load_model

    torch.set_num_threads(threads)
    return load_model(path, dtype).train()


def timed_step(model: Any, optimizer: Any, backward: Callable[[], None]) -> float:
    start = time.perf_counter()
    backward()
    if optimizer is not None:
        optimizer.step()
    seconds = time.perf_counter() - start
    model.zero_grad()
    return seconds


class Side:
    """One of those compared: a process with a model and an optimizer of its own, which computes only when asked."""

    def __init__(self, path: str, threads: int, dtype: str, backward: Callable[..., None], environment: dict[str, str]) -> None:
        self._process = process(environment, _start_side, path, threads, dtype)
        self._backward = backward

    def step(self, sequences: list[Sequence], size: int) -> float:
        """Seconds of one optimizer step with micro-batches of `size`."""
        return self._process.submit(_side_step, self._backward, sequences, size).result()


def process(environment: dict[str, str], initializer: Callable[..., None] | None = None, *args: Any) -> ProcessPoolExecutor:
    """One process with `environment` in place from its start, where an allocator reads it."""
    before = dict(os.environ)
    os.environ.update(environment)
    pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer, args)
    pool.submit(os.getpid).result()  # started now, so with this environment
    os.environ.clear()
    os.environ.update(before)
    return pool


_side: dict[str, Any] = {}


def _start_side(path: str, threads: int, dtype: str) -> None:
    import torch

    _side["model"] = load(path, threads, dtype)
    _side["optimizer"] = torch.optim.AdamW(_side["model"].parameters(), lr=1e-6, fused=True)


def _side_step(backward: Callable[..., None], sequences: list[Sequence], size: int) -> float:
    return timed_step(_side["model"], _side["optimizer"], lambda: backward(_side["model"], sequences, size))


def speed(path: str, count: int, threads: int, repeats: int, dtype: str) -> list[dict[str, Any]]:
    """The ragged and the equal set: each side's micro-batch that is best on a quarter, then `repeats` rounds of all in turn."""
    ours = cpu_environment(threads)
    vocabulary = json.loads((Path(path) / "config.json").read_text())["vocab_size"]
    micro_batches = [n for n in MICRO_BATCHES if n * LONGEST * vocabulary * 4 <= LOGIT_BYTES]
    sides: dict[str, tuple[Side, Iterable[int]]] = {
        "ours": (Side(path, threads, dtype, packed_backward, ours), ROW_TOKENS),
        "plain": (Side(path, threads, dtype, padded_backward, {}), micro_batches),
        "plain, our allocator": (Side(path, threads, dtype, padded_backward, ours), micro_batches),
    }
    results = []
    for name, make in [("ragged", ragged), ("equal", equal)]:
        sequences = make(random.Random(0), count)
        tokens, quarter = sum(len(s) for s in sequences), sequences[: max(1, count // 4)]
        sizes: dict[str, int] = {}
        for label, (side, choices) in sides.items():
            side.step(quarter[:4], 1)
            trials = [(side.step(quarter, size), size) for _ in range(TRIALS) for size in choices]
            sizes[label] = min(trials)[1]
        rounds = [{label: side.step(sequences, sizes[label]) for label, (side, _) in sides.items()} for _ in range(repeats)]
        results.append(
            {
                "set": f"{name}, {count} sequences, {tokens} tokens",
                "micro-batches": f"{sizes['ours']} tokens; {sizes['plain']}, {sizes['plain, our allocator']} sequences",
                **{f"{label} tokens/s": tokens / min(seconds[label] for seconds in rounds) for label in sides},
                "ratio": spread([seconds["plain"] / seconds["ours"] for seconds in rounds]),
                "ratio, same allocator": spread([seconds["plain, our allocator"] / seconds["ours"] for seconds in rounds]),
            }
        )
    return results


def spread(ratios: list[float]) -> str:
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def shared(path: str, threads: int, repeats: int) -> list[dict[str, Any]]:
    """The unshared prompts differ in their first token alone, so that nothing is shared and the work is the same."""
    model = load(path, threads)
    results = []
    for prompt_tokens, reply_tokens in PROMPTS_AND_REPLIES:
        rng = random.Random(0)
        prompt = random_ids(rng, prompt_tokens)
        replies = [random_ids(rng, reply_tokens) for _ in range(COMPLETIONS)]
        whole = prompt_tokens + COMPLETIONS * reply_tokens
        groups = {
            "shared": rows_of([Sequence.demonstrated(prompt, reply) for reply in replies], whole),
            "unshared": rows_of(
                [Sequence.demonstrated([IDS[0] + i, *prompt[1:]], r) for i, r in enumerate(replies)], max(1024, whole)
            ),
        }
        assert [len(row) for row in groups["shared"]] == [whole]
        times: dict[str, list[float]] = {name: [] for name in groups}
        timed_step(model, None, lambda: rows_backward(model, groups["shared"]))  # noqa: B023 - called at once
        for _ in range(repeats):
            for name, rows in groups.items():
                times[name].append(timed_step(model, None, lambda rows=rows: rows_backward(model, rows)))
        best = {f"{name}_s": min(seconds) for name, seconds in times.items()}
        size = {"prompt": prompt_tokens, "completions": f"{COMPLETIONS} x {reply_tokens}"}
        results.append({**size, **best, "ratio": best["unshared_s"] / best["shared_s"]})
    return results


def head_memory(path: str, threads: int, kind: str) -> float:
    """MiB that the head takes at its peak above what the model and its hidden states take."""
    import torch

    from rlcore.head import Head

    model = load(path, threads)
    hidden = torch.randn(TRAINED, model.config.hidden_size, requires_grad=True)
    targets = torch.randint(*IDS, (TRAINED,))
    model.lm_head.weight.grad = torch.zeros_like(model.lm_head.weight)
    before = _peak_mib(reset=True)
    if kind == "ours":
        (-Head(model.lm_head)(hidden, targets, 1.0, False)[0]).mean().backward()
    else:
        torch.nn.functional.cross_entropy(model.lm_head(hidden).float(), targets).backward()
    return _peak_mib() - before


def memory(path: str, threads: int) -> list[dict[str, Any]]:
    figures = {}
    for kind in ("ours", "full logits"):
        with process(cpu_environment(threads)) as pool:
            figures[f"{kind} MiB"] = pool.submit(head_memory, path, threads, kind).result()
    return [{"trained tokens": TRAINED, **figures, "ratio": figures["ours MiB"] / figures["full logits MiB"]}]


def _peak_mib(reset: bool = False) -> float:
    """The process's resident memory at its highest (Linux); `reset` starts anew from what is resident now."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) / 1024


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("speed", "shared", "memory"))
    parser.add_argument("--model", default="data/models/smollm2")
    parser.add_argument("--sequences", type=int, default=64, help="speed: how many in a step")
    parser.add_argument(
        "--repeats", type=int, default=3, help="speed: rounds of all sides; shared: steps of which the fastest counts"
    )
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16"), default="float32", help="speed: of the model and its gradients"
    )
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--out", type=Path, help="a JSON file for the figures")
    args = parser.parse_args(argv)
    if args.what == "speed":
        results = speed(args.model, args.sequences, args.threads, args.repeats, args.dtype)
    else:
        results = shared(args.model, args.threads, args.repeats) if args.what == "shared" else memory(args.model, args.threads)
    table = Table(*results[0], title=f"{args.what}: {args.model}, {args.threads} threads")
    for row in results:
        table.add_row(*(f"{v:.3g}" if isinstance(v, float) else str(v) for v in row.values()))
    console = Console()
    console.print(table)
    console.print(f"load average {os.getloadavg()[0]:.1f}")
    if args.out:
        write_atomic(args.out, json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
