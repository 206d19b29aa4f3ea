import math

import pytest
import torch

from rlcore.correction import Correction, mismatch_figures, mismatch_sums

# Two sequences. Ratios of the first 2, 0.5, 3: product 3, geometric mean 3^(1/3) = 1.442; of the second 0.25.
RATIOS = torch.tensor([2.0, 0.5, 3.0, 0.25]).log()
SEQUENCES = torch.tensor([0, 0, 0, 1])


@pytest.mark.parametrize(
    ("kind", "in_ratio", "expected"),
    [
        ("none", True, [1, 1, 1, 1]),
        ("truncate", False, [2, 0.5, 2.5, 0.25]),
        ("icepop", False, [2, 0.5, 0, 0]),
        ("icepop", True, [1, 1, 0, 0]),  # the policy ratio holds the weight already
        ("sequence_mask", True, [0, 0, 0, 0]),
        ("geometric_mask", True, [1, 1, 1, 0]),
    ],
)
def test_factors_by_hand(kind, in_ratio, expected):
    factor = Correction(kind, 0.4, 2.5).factor(RATIOS, SEQUENCES, in_ratio)
    assert factor.tolist() == pytest.approx(expected, abs=1e-6)


def test_a_sequence_is_kept_whole_when_its_product_lies_in_the_band():
    assert Correction("sequence_mask", 0.4, 3.1).factor(RATIOS, SEQUENCES, True).tolist() == [1, 1, 1, 0]


def test_the_mismatch_is_described_by_mean_spread_share_and_effective_samples():
    sums = mismatch_sums(RATIOS, Correction("none", 0.4, 2.5))
    figures = mismatch_figures({name.removesuffix("_sum"): value / 4 for name, value in sums.items()})
    logs = [math.log(r) for r in (2, 0.5, 3, 0.25)]
    m = sum(logs) / 4
    assert figures["log_ratio"] == pytest.approx(m, abs=1e-6)
    assert figures["log_ratio_std"] == pytest.approx((sum((x - m) ** 2 for x in logs) / 4) ** 0.5, abs=1e-6)
    assert figures["abs_log_ratio"] == pytest.approx(sum(abs(x) for x in logs) / 4, abs=1e-6)
    assert figures["outside_band"] == 0.5
    # (2 + 0.5 + 3 + 0.25)^2 / (4 (4 + 0.25 + 9 + 0.0625))
    assert figures["effective_samples"] == pytest.approx(5.75**2 / (4 * 13.3125), abs=1e-6)


@pytest.mark.parametrize("kind", ["truncate", "icepop", "sequence_mask", "geometric_mask"])
def test_enormous_mismatches_stay_finite(kind):
    mismatch = torch.tensor([1e6, -1e6, 700.0, 0.0])
    assert torch.isfinite(Correction(kind, 0.5, 2.0).factor(mismatch, SEQUENCES, False)).all()
    assert all(math.isfinite(v) for v in mismatch_sums(mismatch, Correction()).values())
