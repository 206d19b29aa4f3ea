import pytest

from rlcore.schedule import Schedule


def test_values_by_hand():
    assert [Schedule("constant", 2, 10).factor(i) for i in (0, 1, 2, 9)] == [0.5, 1.0, 1.0, 1.0]
    assert [Schedule("linear", 0, 10).factor(i) for i in (0, 5, 10, 99)] == [1.0, 0.5, 0.0, 0.0]
    assert [Schedule("cosine", 0, 10, floor=0.1).factor(i) for i in (0, 5, 10)] == pytest.approx([1.0, 0.55, 0.1])


def test_unknown_kind():
    with pytest.raises(ValueError, match="constant, linear or cosine, got 'step'"):
        Schedule("step", 0, 1)
