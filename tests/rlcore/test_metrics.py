import json
import math
import sys
from types import SimpleNamespace

import pytest

from rlcore.config import WandbConfig
from rlcore.metrics import MetricsWriter, mean, standard_error


def test_figures_by_hand():
    assert mean([1, 2, 6]) == 3 and math.isnan(mean([]))
    assert standard_error([1, 3]) == pytest.approx(1.0)  # sd sqrt(2), over sqrt(2)
    assert math.isnan(standard_error([1]))


def test_the_file_is_json_even_for_nan(tmp_path):
    writer = MetricsWriter(tmp_path, WandbConfig("disabled", "p"), {})
    writer.log({"reward": 0.5, "gap": math.nan}, "rl", 3)
    writer.close()
    (row,) = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert row["stage"] == "rl" and row["step"] == 3 and row["reward"] == 0.5 and row["gap"] is None


def test_a_broken_wandb_never_stops_a_run(tmp_path, monkeypatch):
    class Broken:
        def log(self, values):
            raise ConnectionError("no network")

    writer = MetricsWriter(tmp_path, WandbConfig("disabled", "p"), {})
    writer._run = Broken()
    writer.log({"a": 1.0}, "rl", 1)
    writer.log({"a": 2.0}, "rl", 2)
    writer.close()
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2 and writer._run is None


def test_a_wandb_that_cannot_start_never_stops_a_run(tmp_path, monkeypatch):
    def broken(**kwargs):
        raise ConnectionError("no server")

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=broken, Settings=dict))  # its import takes seconds
    writer = MetricsWriter(tmp_path, WandbConfig("online", "p"), {})
    writer.log({"a": 1.0}, "rl", 1)
    writer.close()
    assert (tmp_path / "metrics.jsonl").read_text().count("\n") == 1
