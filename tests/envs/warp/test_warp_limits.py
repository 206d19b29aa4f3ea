from __future__ import annotations

import pytest

from envs.warp.limits import Limits
from rlcore.errors import ConfigError
from tests.envs.warp.conftest import COMPACT


def test_defaults_are_the_papers():
    limits = Limits()
    assert (limits.max_keywords, limits.min_sections, limits.max_sections) == (5, 3, 12)
    assert (limits.min_subsections, limits.max_subsections, limits.max_levels) == (2, 7, 3)
    assert (limits.max_expansions, limits.max_steps) == (12, 140)
    assert (limits.passages("outline"), limits.passages("section-1"), limits.per_keyword_k) == (20, 10, 20)
    assert (limits.abbreviate_over, limits.abbreviate_head, limits.abbreviate_tail) == (150, 100, 50)
    assert (limits.control, limits.parsing, limits.hard_mode, limits.citation_required) == ("state_machine", "strict", True, True)
    assert (limits.max_reasks, limits.show_errors, limits.condition_on_draft) == (None, False, True)
    assert [limits.max_tokens(s) for s in ("search", "initialize", "write", "extend")] == [2048] * 4


def test_a_mapping_changes_what_it_names():
    limits = Limits.of({**COMPACT, "max_steps": 9})
    assert (limits.max_steps, limits.passages("outline"), limits.max_keywords) == (9, 4, 5)
    assert Limits.of(None) == Limits() and Limits.of(limits) is limits


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(ConfigError, match=r"max_step is not a limit; did you mean max_steps"):
        Limits.of({"max_step": 3})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_steps": 0}, "limits.max_steps must be positive, got 0"),
        ({"max_expansions": -1}, "limits.max_expansions must be 0 or more, got -1"),
        ({"max_keywords": "5"}, "limits.max_keywords must be a number like 5, got '5'"),
        ({"max_keywords": True}, "limits.max_keywords must be a number like 5, got True"),
        ({"hard_mode": 1}, "limits.hard_mode must be true or false, got 1"),
        ({"search_timeout_s": float("nan")}, "limits.search_timeout_s must be positive, got nan"),
        ({"min_sections": 13}, "limits.min_sections=13 is larger than limits.max_sections=12"),
        ({"min_cjk": 60}, "are shares, at most 1"),
        ({"control": "freely"}, "limits.control must be one of state_machine, free, plan_then_write, got 'freely'"),
        ({"parsing": True}, "limits.parsing must be one of strict, tolerant, got True"),
        ({"prompts": None}, "limits.prompts must be one of compact, detailed, got None"),
        ({"max_reasks": -1}, "limits.max_reasks must be 0 or more, got -1"),
        ({"max_reasks": 1.5}, "limits.max_reasks must be a number like 0, got 1.5"),
        ({"abbreviate_over": 100}, "abbreviate_head \\+ abbreviate_tail = 150"),
    ],
)
def test_a_limit_that_cannot_be_names_field_and_value(values, message):
    with pytest.raises(ConfigError, match=message):
        Limits.of(values)


def test_whole_numbers_may_stand_for_seconds_and_zero_expansions_are_allowed():
    assert Limits.of({"search_timeout_s": 5, "max_expansions": 0}).search_timeout_s == 5
