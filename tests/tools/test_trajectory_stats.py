from __future__ import annotations

import json

import pytest

from envs.warp.pruning import DRAFTS
from envs.warp.tables import write_table
from tools.trajectory_stats import main, statistics


def draft(query, number, score, kept, write, sections):
    actions = {"initialize": 1, "search": write + 1, "write": write, "expand": number - 1}
    row = {
        "query_id": query,
        "split": "train",
        "draft": number,
        "score": score,
        "kept": kept,
        "sections": sections,
        "report": "#",
    }
    return {**row, "actions": actions}


DRAFTS_OF_TWO = [
    draft("a", 1, 0.2, False, 3, [3]),
    draft("a", 2, 0.6, True, 5, [3, 2]),
    draft("a", 3, 0.4, False, 7, [3, 2, 2]),
    draft("b", 1, 0.5, True, 4, [4]),
    draft("b", 2, 0.5, False, 7, [4, 3]),
]


def test_means_over_kept_and_last_drafts():
    """By hand: kept are a/2 and b/1, last are a/3 and b/2."""
    stats = statistics(DRAFTS_OF_TWO)
    kept, unpruned = stats["reports"]["kept"], stats["reports"]["unpruned"]
    assert stats["queries"] == 2
    assert (kept["write"], kept["search"], kept["expand"], kept["terminate"]) == (4.5, 5.5, 0.5, 0.0)
    assert (kept["level 1"], kept["level 2"], kept["level 3"]) == (3.5, 1.0, 0.0)
    assert (unpruned["write"], unpruned["expand"], unpruned["level 2"], unpruned["level 3"]) == (7.0, 1.5, 2.5, 1.0)
    assert kept["actions"] == pytest.approx(1 + 5.5 + 4.5 + 0.5)
    assert stats["stops_at"] == {"0": 1, "1": 1}


def test_score_by_expansions():
    rows = statistics(DRAFTS_OF_TWO)["score_by_expansions"]
    assert [(r["expansions"], r["drafts"]) for r in rows] == [(0, 2), (1, 2), (2, 1)]
    assert [r["score"] for r in rows] == pytest.approx([0.35, 0.55, 0.4])
    assert rows[0]["standard_error"] == pytest.approx(0.15)  # sample deviation 0.2121 over the root of 2


def test_a_damaged_file_is_one_message(tmp_path, capsys):
    (tmp_path / "drafts.parquet").write_text("no table")
    with pytest.raises(SystemExit, match="2"):
        main([str(tmp_path)])
    assert "drafts.parquet is not a parquet file" in capsys.readouterr().err


def test_the_command_writes_json_and_a_plot(tmp_path, capsys):
    write_table(tmp_path / "drafts.parquet", [{**row, "score": None} for row in DRAFTS_OF_TWO], DRAFTS)
    main([str(tmp_path), "--out", str(tmp_path / "out")])
    stats = json.loads((tmp_path / "out" / "stats.json").read_text())
    assert stats == json.loads(capsys.readouterr().out) and stats["score_by_expansions"] == []
    assert stats["reports"]["paper, SFT"]["write"] == 21.24
    assert (tmp_path / "out" / "stats.png").read_bytes().startswith(b"\x89PNG")


def test_without_drafts_it_says_what_to_do(tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([str(tmp_path)])
    assert stopped.value.code == 2 and "recipes.trajectories" in capsys.readouterr().err
