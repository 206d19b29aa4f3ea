"""Pipeline RL: GRPO on whole reports. One report is one trajectory of many independent actions, with one reward for all of them.

    python -m recipes.pipeline_rl model.path=runs/<id>/export                             # a laptop's preset: recipe=pipeline
    python -m recipes.pipeline_rl model=tiny recipe=pipeline_smoke
    python -m recipes.pipeline_rl model=minicpm4_8b cluster=a100x8 deepspeed=zero3 stage=paper recipe=pipeline_paper

    query --group_size x (search, initialize, search, write, ..., expand | terminate)--> reports --one reward each--> group

The loop is recipes.atomic_rl's, with another environment. Statistics are over the group's reports; a report's advantage goes to
every token of every action, and with `algo.aggregation=trajectory_mean` each report has one vote, however many actions it took
(`sequence_mean`: each action has one).
"""

from __future__ import annotations

from recipes.atomic_rl import main
from recipes.cli import run_recipe

if __name__ == "__main__":
    run_recipe("pipeline_rl", main, preset="pipeline")
