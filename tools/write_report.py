"""Write one cited report with a trained model, and go on where it stopped when it was interrupted.

    python -m tools.write_report "How do tides work?" model.path=runs/<id>/export
    python -m tools.write_report "How do tides work?" --url http://localhost:8000/v1 --served-model agent env=warp_report_paper

The model is served by an engine that this starts itself (`model=`, `model.path=`), or by any OpenAI-compatible endpoint; what
follows the question are overrides of the recipes' configuration. Every answer of model and search is kept beside the report, in
`<report>.state.json`: the same command started again goes on from there, and ends with the report it would have written at once.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import re
import sys
import unicodedata
from functools import partial
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from envs.warp.limits import Limits
from envs.warp.report import Report
from recipes.cli import compose_config
from recipes.reports import Ask, ask_engines, describe, report_settings, write_report
from rlcore.config import Config, check_files
from rlcore.endpoint import Endpoint, EndpointReply
from rlcore.environment import Message
from rlcore.errors import ConfigError, DataFailure, InfrastructureFailure, RunFailed
from rlcore.evaluation import EVALUATION_SEED
from rlcore.metrics import console
from rlcore.runtime import Runtime
from rlcore.targets import Target, build, resolve
from rlcore.types import Outcome, Query

KEY = "OPENAI_API_KEY"  # environment variable; without it no key is sent
NOW = {"search": "searching", "initialize": "planning", "write": "writing", "extend": "deepening"}


def default_path(question: str) -> Path:
    """reports/<the question's first words>-<digest of all of it>.md"""
    words = re.findall(r"\w+", unicodedata.normalize("NFKC", question).casefold())
    digest = hashlib.sha256(question.encode()).hexdigest()[:8]
    return Path("reports") / f"{'-'.join(words)[:40].strip('-') or 'report'}-{digest}.md"


def question_query(question: str) -> Query:
    return Query("question", {"question": question})


async def with_url(config: Config, arguments: argparse.Namespace) -> Outcome:
    """Write with an endpoint; the environment's services live in this process, nothing else is started."""
    e, timeout_s = config.evaluate, config.cluster.call_timeout_s
    sampling = {"temperature": e.report_temperature, "top_p": 1.0, "timeout_s": timeout_s}
    async with Endpoint(arguments.url, arguments.served_model, os.environ.get(KEY), **sampling) as endpoint:
        services = {name: build(Target(service.target, service.args)) for name, service in config.env.services.items()}

        async def ask(messages: list[Message], max_tokens: int | None, seed: int) -> EndpointReply:
            return await endpoint.generate(messages, max_tokens=max_tokens or e.max_tokens, seed=seed)

        return await write(config, arguments, services["retriever"], ask, f"{arguments.url} {arguments.served_model}")


async def with_engine(runtime: Runtime, arguments: argparse.Namespace) -> Outcome:
    """Write with an engine of the framework, which serves the model as it lies on disk."""
    await runtime.start_rollouts()
    await runtime.serve_loaded()
    ask = ask_engines(runtime, question_query(arguments.question))
    return await write(runtime.config, arguments, runtime.environment.retriever, ask, runtime.config.model.path)


async def write(config: Config, arguments: argparse.Namespace, retriever: Any, ask: Ask, model: str) -> Outcome:
    """Write the report and show how far it is."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("starting", total=Limits.of(config.env.args.get("limits")).max_steps)
        actions = 0

        def watch(span: str) -> None:
            nonlocal actions
            progress.update(bar, completed=actions, description=f"{NOW.get(span, span)} (of at most so many actions)")
            actions += 1

        return await write_report(
            question_query(arguments.question),
            lambda searched: build(Target(config.env.target, config.env.args), retriever=searched),
            retriever,
            ask,
            arguments.out,
            report_settings(config, model),
            arguments.seed,
            watch,
        )


def run(arguments: argparse.Namespace) -> Outcome:
    """Compose the configuration, start what is needed, write."""
    if arguments.out.suffix != ".md" or arguments.out.is_dir():
        raise ConfigError(f"--out {arguments.out} must name a file that ends with .md; HTML and state go beside it")
    overrides = arguments.overrides
    if not any(override.startswith(("env=", "recipe=")) for override in overrides):
        overrides = ["env=warp_report", *overrides]
    config = compose_config("write_report", overrides)
    if resolve(config.env.target) is not Report or "retriever" not in config.env.services:
        raise ConfigError(f"env={config.env.name} does not write reports with a service 'retriever'; use env=warp_report")
    if arguments.url is not None:
        if config.env.preflight is not None:
            build(config.env.preflight)
        return asyncio.run(with_url(config, arguments))
    check_files(config)
    with Runtime(config) as runtime:
        return asyncio.run(with_engine(runtime, arguments))


def main(argv: list[str] | None = None) -> int:
    """Returns the exit code: 0 with a report (complete or not), 1 when it stopped and can go on, 2 for bad input."""
    parser = argparse.ArgumentParser(description="Write one cited report with a trained model.")
    parser.add_argument("question")
    parser.add_argument("overrides", nargs="*", help="overrides of the configuration, such as model.path=runs/<id>/export")
    parser.add_argument(
        "--out", type=Path, help="the report's Markdown file; default: reports/<words of the question>-<digest>.md"
    )
    parser.add_argument("--seed", type=int, default=EVALUATION_SEED, help="of the model's draws")
    parser.add_argument("--url", help="an OpenAI-compatible endpoint, up to and with /v1")
    parser.add_argument("--served-model", default="default", help="the model's name at the endpoint")
    arguments = parser.parse_intermixed_args(argv)
    arguments.out = arguments.out or default_path(arguments.question)
    again = partial(print, file=sys.stderr, flush=True)
    try:
        outcome = run(arguments)
    except ConfigError as error:
        again(f"configuration error: {error}")
        return 2
    except (InfrastructureFailure, DataFailure, RunFailed, TimeoutError) as error:
        again(f"stopped: {type(error).__name__}: {error}\nwhat is written so far is kept; the same command goes on from there")
        return 1
    except KeyboardInterrupt:
        again("interrupted; the same command goes on from there")
        return 130
    console.print(outcome.data["report_markdown"], markup=False, soft_wrap=True)
    console.print(f"report: {arguments.out} ({describe(outcome)})", soft_wrap=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
