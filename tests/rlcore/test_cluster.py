import pytest

from rlcore.cluster import check_placement, needs
from rlcore.errors import ConfigError
from tests.rlcore.test_config import composed


def test_need_is_counted_before_anything_is_created():
    c = composed("cluster.engines=2", "cluster.engine_cpus=3")
    # 2 engines x 3, one learner rank 0.5, one reward worker 0.1, the retriever 0.2
    assert sum(n.count * n.cpus for n in needs(c)) == pytest.approx(6.8)
    check_placement(c, 6.8, 0)
    with pytest.raises(ConfigError, match=r"CPUs: need 6.8, have 4\.(.|\n)*2 x \(3 CPU, 0 GPU\)"):
        check_placement(c, 4, 0)


def test_gpus_are_counted_apart():
    c = composed("cluster=a100x8")
    with pytest.raises(ConfigError, match="GPUs: need 8, have 1"):
        check_placement(c, 1000, 1)


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_laptop_preset_fits_two_cores(ranks):
    check_placement(composed(f"cluster.learner_ranks={ranks}"), 2, 0)
