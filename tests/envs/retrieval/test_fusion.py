from envs.retrieval.fusion import reciprocal_rank_fusion


def test_ranks_are_joined_and_scores_are_not():
    dense = [("a", 0.9), ("b", 0.8), ("c", 0.7)]
    keywords = [("c", 31.0), ("a", 12.0)]
    # a: 1/61 + 1/62, c: 1/63 + 1/61, b: 1/62
    assert reciprocal_rank_fusion([dense, keywords], 2) == [("a", 1 / 61 + 1 / 62), ("c", 1 / 63 + 1 / 61)]
    assert reciprocal_rank_fusion([dense, keywords], 9)[2] == ("b", 1 / 62)


def test_ties_go_by_id_and_nothing_gives_nothing():
    assert [id for id, _ in reciprocal_rank_fusion([[("b", 1.0)], [("a", 1.0)]], 5)] == ["a", "b"]
    assert reciprocal_rank_fusion([[], []], 5) == []
