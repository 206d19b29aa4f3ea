"""Each knob of the algorithm refuses what cannot work, naming the field and what would."""

from dataclasses import replace

import pytest

from rlcore.algo_config import check_algo
from rlcore.correction import Correction
from rlcore.errors import ConfigError
from rlcore.kl import KL
from tests.rlcore.test_config import composed

ALGO = composed().algo


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"advantage": "ppo"}, "algo.advantage='ppo' must be one of grpo, rloo, reinforce_pp, reinforce_pp_baseline"),
        ({"tied_groups": "mask"}, "algo.tied_groups='mask' must be one of drop, keep"),
        ({"resample_tied": -1}, "algo.resample_tied=-1"),
        ({"truncated": "drop"}, "zero, keep, soft, mask"),
        ({"truncated": "soft"}, "algo.overlong_buffer between 1 and algo.max_tokens - 1 = 159"),
        ({"truncated": "soft", "overlong_buffer": 160}, "got 160"),
        ({"ratio": "trajectory"}, "token, sequence"),
        ({"surrogate": "ppo"}, "clip, cispo"),
        ({"clip_low": 1.5}, "algo.clip_low=1.5 must be above 0 and at most 1"),
        ({"clip_high": 0.0}, "algo.clip_high=0.0 must be above 0"),
        ({"dual_clip": 1.1}, r"algo.dual_clip=1.1 must be above 1 \+ algo.clip_high = 1.28, or null"),
        ({"old_logprobs": "engine"}, "rollout, recomputed"),
        ({"correction": Correction("tis")}, "none, truncate, icepop, sequence_mask, geometric_mask"),
        ({"correction": Correction(low=1.2)}, "algo.correction.low=1.2, high=2.0 must lie on both sides of a ratio of 1"),
        ({"correction": Correction("truncate")}, "would count the importance weight twice.*algo.old_logprobs=recomputed"),
        ({"kl": KL(estimator="k4")}, "k1, k2, k3"),
        ({"kl": KL(where="advantage")}, "loss, reward"),
        ({"kl": KL(-1.0)}, "algo.kl.coef=-1.0 must be 0"),
        ({"kl": KL(0.1, where="reward")}, "differences of KL would be scaled to full advantages"),
        ({"entropy_coef": -0.1}, "algo.entropy_coef=-0.1 must be 0"),
        ({"max_failed_share": 1.0}, "algo.max_failed_share=1.0 must be a share from 0 to below 1"),
        ({"keep_checkpoints": 0}, "algo.keep_checkpoints=0 must be at least 1, or null"),
        ({"keep_best": -1}, "algo.keep_best=-1"),
        ({"max_nonfinite_steps": 0}, "algo.max_nonfinite_steps=0 must be at least 1"),
    ],
)
def test_a_bad_value_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        check_algo(replace(ALGO, **changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"std": "none", "kl": KL(0.1, where="reward")},
        {"advantage": "rloo", "kl": KL(0.1, where="reward")},
        {"advantage": "reinforce_pp", "kl": KL(0.1, where="reward")},
        {"old_logprobs": "recomputed", "correction": Correction("truncate")},
        {"truncated": "soft", "overlong_buffer": 159},
        {"clip_low": 1.0, "dual_clip": None},
    ],
)
def test_what_the_messages_propose_works(changes):
    check_algo(replace(ALGO, **changes))
