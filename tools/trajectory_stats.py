"""Statistics of teacher trajectories, beside the paper's (AgentCPM-Report, arXiv 2602.06540, Table 4 and Figure 6).

    python -m tools.trajectory_stats data/trajectories/laptop       # prints stats.json, writes it and stats.png into the folder

Three questions: how many actions has a report, how many sections has it at each level, and how good is a draft after so many
expansions? "kept" are the reports that the training samples end at, "unpruned" the last drafts.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from envs.warp.limits import ACTIONS
from envs.warp.pruning import DRAFTS
from envs.warp.tables import read_table
from rlcore.errors import ConfigError
from rlcore.files import write_atomic
from rlcore.metrics import mean, standard_error

LEVELS = ("level 1", "level 2", "level 3")
# Means over the reports that the paper's models write after each stage.
TABLE_4 = {
    "paper, SFT": {"write": 21.24, "expand": 4.44, "level 1": 6.27, "level 2": 10.11, "level 3": 4.86},
    "paper, atomic RL": {"write": 36.89, "expand": 8.88, "level 1": 6.49, "level 2": 14.17, "level 3": 16.50},
    "paper, pipeline RL": {"write": 39.51, "expand": 8.63, "level 1": 6.52, "level 2": 15.75, "level 3": 17.32},
}


def statistics(drafts: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures of drafts.parquet's rows.

    `reports`: means over queries, for kept and unpruned reports, of actions of each kind, all of them, and sections by level.
    `score_by_expansions`: mean score, its standard error and number of drafts after 0, 1, ... expansions (none without pruning).
    `stops_at`: how many kept reports have so many expansions.
    """
    last = {row["query_id"]: row for row in sorted(drafts, key=lambda row: row["draft"])}
    kept = [row for row in drafts if row["kept"]]
    scores: dict[int, list[float]] = {}
    for row in drafts:
        if row["score"] is not None:
            scores.setdefault(row["draft"] - 1, []).append(row["score"])
    return {
        "queries": len(last),
        "reports": {"kept": _means(kept), "unpruned": _means(list(last.values())), **TABLE_4},
        "score_by_expansions": [
            {"expansions": n, "score": mean(values), "standard_error": standard_error(values), "drafts": len(values)}
            for n, values in sorted(scores.items())
        ],
        "stops_at": {str(n): count for n, count in sorted(Counter(row["draft"] - 1 for row in kept).items())},
    }


def _means(rows: list[dict[str, Any]]) -> dict[str, float]:
    figures = {action: mean(row["actions"].get(action, 0) for row in rows) for action in ACTIONS}
    figures["actions"] = mean(sum(row["actions"].values()) for row in rows)
    for level, name in enumerate(LEVELS):
        figures[name] = mean(row["sections"][level] if level < len(row["sections"]) else 0 for row in rows)
    return figures


def plot(stats: dict[str, Any], path: Path) -> None:
    """Three panels as a PNG: actions per report, sections per level, and score by expansions with where reports stop."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(17, 4.5), layout="constrained")
    actions, sections, depth = figure.subplots(1, 3)
    width = 0.8 / len(stats["reports"])
    for axes, title, names in [(actions, "actions per report", ACTIONS), (sections, "sections per report", LEVELS)]:
        for i, (label, figures) in enumerate(stats["reports"].items()):
            shown = [(j - 0.4 + (i + 0.5) * width, figures[name]) for j, name in enumerate(names) if name in figures]
            axes.bar([place for place, _ in shown], [value for _, value in shown], width, label=label)
        axes.set_xticks(range(len(names)), names)
        axes.set_title(title)
    sections.legend()
    rows = stats["score_by_expansions"]
    x = [row["expansions"] for row in rows]
    depth.errorbar(x, [r["score"] for r in rows], [r["standard_error"] for r in rows], marker="o", capsize=3)
    depth.set(title="report score by expansions", xlabel="expansions", ylabel="mean score of drafts")
    depth.set_xticks(range(max([*x, *map(int, stats["stops_at"])]) + 1))
    stops = depth.twinx()
    stops.bar([int(n) for n in stats["stops_at"]], list(stats["stops_at"].values()), alpha=0.25, color="gray")
    stops.set_ylabel("reports that stop here")
    figure.savefig(path, dpi=110)


def main(arguments: list[str] | None = None) -> None:
    """Print the statistics and write them with their plot."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="what recipes.trajectories wrote")
    parser.add_argument("--out", type=Path, default=None, help="where stats.json and stats.png go (default: the folder)")
    options = parser.parse_args(arguments)
    source, out = options.folder / "drafts.parquet", options.out or options.folder
    if not source.is_file():
        print(f"there is no {source}; write it with `python -m recipes.trajectories`", file=sys.stderr)
        sys.exit(2)
    try:
        stats = statistics(read_table(source, DRAFTS))
    except ConfigError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(stats, indent=2)
    write_atomic(out / "stats.json", text + "\n")
    plot(stats, out / "stats.png")
    print(text)


if __name__ == "__main__":
    main()
