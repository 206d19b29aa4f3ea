from __future__ import annotations

from tools.bench_warp import measure


def test_a_report_of_the_benchmark_is_whole_and_counted():
    row = measure({}, reports=1)
    # 2 for the plan, 2 for each of 7 sections, 1 + 2 x 4 for each of 8 deepenings, 1 to stop
    assert row["actions"] == 2 + 7 * 2 + 8 * 9 + 1 and row["actions_per_s"] > 0
