from collections import Counter

import pytest

from rlcore.errors import ConfigError
from rlcore.queries import QueryCursor, kinds_of, read_queries, split_queries
from rlcore.types import Query

FIVE = [Query(c) for c in "abcde"]


def test_every_epoch_is_another_permutation_and_every_draw_has_its_own_id():
    cursor = QueryCursor(FIVE, seed=3)
    draws = [cursor.draw() for _ in range(15)]
    epochs = [[q.id for _, q in draws[i : i + 5]] for i in (0, 5, 10)]
    assert all(sorted(e) == list("abcde") for e in epochs) and len({tuple(e) for e in epochs}) > 1
    assert len({occurrence for occurrence, _ in draws}) == 15  # the same question twice is two groups


def test_a_resumed_cursor_draws_what_the_uninterrupted_one_would():
    whole = QueryCursor(FIVE, seed=3)
    expected = [whole.draw() for _ in range(12)]
    resumed = QueryCursor(FIVE, seed=3, position=7)
    assert [resumed.draw() for _ in range(5)] == expected[7:]


def test_draws_in_flight_are_drawn_again_and_finished_ones_are_not():
    cursor = QueryCursor(FIVE, seed=3)
    draws = [cursor.draw() for _ in range(6)]
    for i in (0, 1, 4):  # 2 and 3 are still in flight, 4 replaced a failed one
        cursor.finish(draws[i][0])
    assert cursor.position == 2 and cursor.done == {4}
    resumed = QueryCursor(FIVE, seed=3, position=cursor.position, done=cursor.done)
    assert [resumed.draw() for _ in range(3)] == [draws[2], draws[3], draws[5]]


def test_nothing_to_draw_is_refused():
    with pytest.raises(ValueError, match="no queries"):
        QueryCursor([], seed=0)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ('{"id": "a"}\n{oops', ":2: not JSON"),
        (b'{"id": "a"}\n{"id": "\xff"}', ":2: not JSON: .*utf-8"),
        ("[" * 100_000, ":1: not JSON"),
        ('{"id": "a"}\n{"id": "a"}', ":2: id 'a' occurs twice"),
        ('{"question": "x"}', ":1: a query needs a string 'id', got None"),
        ("[1]", ":1: a query needs a string 'id'"),
    ],
)
def test_bad_files_name_the_line(tmp_path, lines, message):
    path = tmp_path / "q.jsonl"
    path.write_bytes(lines if isinstance(lines, bytes) else lines.encode())
    with pytest.raises(ConfigError, match=message):
        read_queries(path)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match=f"there is no query file at '{tmp_path}/none'"):
        read_queries(tmp_path / "none")


def test_the_whole_object_is_the_querys_data(tmp_path):
    path = tmp_path / "q.jsonl"
    path.write_text('{"id": "a", "question": "李明?"}\n')
    assert read_queries(path) == [Query("a", {"id": "a", "question": "李明?"})]


def test_a_split_of_a_file(tmp_path):
    path = tmp_path / "queries.jsonl"
    path.write_text('{"id": "a", "split": "train"}\n{"id": "b", "split": "heldout"}\n{"id": "c"}\n')
    assert [q.id for q in split_queries(str(path), "heldout")] == ["b"]
    with pytest.raises(ConfigError, match="no query whose split is 'test'"):
        split_queries(str(path), "test")
    with pytest.raises(ConfigError, match="no query file at"):
        split_queries(str(tmp_path / "none"), "train")


def test_kinds_are_spread_evenly_over_every_epoch():
    queries = [Query(f"{kind}{i}", {"action": kind}) for kind, n in [("write", 6), ("stop", 3), ("plan", 3)] for i in range(n)]
    kinds = kinds_of(queries, "action")
    assert kinds == ["write"] * 6 + ["stop"] * 3 + ["plan"] * 3
    cursor = QueryCursor(queries, seed=1, kinds=kinds)
    epochs = [[cursor.draw()[1] for _ in range(12)] for _ in range(4)]
    for drawn in epochs:
        assert sorted(q.id for q in drawn) == sorted(q.id for q in queries)  # still a permutation
        for start in range(0, 12, 4):  # every step of four: two of the kind that has half of the queries, one of each other
            assert Counter(q.data["action"] for q in drawn[start : start + 4]) == {"write": 2, "stop": 1, "plan": 1}
    assert len({tuple(q.id for q in drawn) for drawn in epochs}) == 4


def test_without_a_field_all_queries_are_of_one_kind():
    assert kinds_of(FIVE, None) == [None] * 5
    assert kinds_of([Query("a", {"action": 3}), Query("b")], "action") == ["3", "None"]
