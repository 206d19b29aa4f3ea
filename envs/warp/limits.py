"""Every option of the WARP environment in one frozen record. Defaults are the paper's and the release's (arXiv 2602.06540)."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, fields
from typing import Any

from rlcore.errors import ConfigError

STATES = ("search", "initialize", "write", "extend")
ACTIONS = ("initialize", "search", "write", "expand", "terminate")
CHOICES = {
    "control": ("state_machine", "free", "plan_then_write"),
    "parsing": ("strict", "tolerant"),
    "prompts": ("compact", "detailed"),
}
_MAY_BE_ZERO = (
    *("max_reasks", "min_write_chars", "min_cjk", "max_expansions"),
    *("abbreviate_over", "abbreviate_head", "abbreviate_tail"),
)


@dataclass(frozen=True, slots=True)
class Limits:
    """Options of the state machine, the replies, the actions, the retrieval and the prompts."""

    # Who decides which action comes next. "state_machine": the state; the model only expands (and where) or stops, as in the
    # release. "free": the model, among the actions that are possible; another one is a failure that the next prompt reports.
    # "plan_then_write": the baseline that plans every level first and then writes section by section, without expansions.
    control: str = "state_machine"

    # Replies. "strict": exactly the format; "tolerant": envs/warp/repair.py mends what surrounds or breaks it.
    parsing: str = "strict"
    max_reasks: int | None = None  # new replies after a bad one, then the action is given up; null: until max_steps
    show_errors: bool = False  # the next prompt says what was wrong with the last reply

    # The actions. `hard_mode` turns the counts below, the language check and the content rules of WRITE on; without it only
    # the formats are checked.
    hard_mode: bool = True
    max_keywords: int = 5
    min_sections: int = 3
    max_sections: int = 12
    min_subsections: int = 2
    max_subsections: int = 7
    min_write_chars: int = 50  # the text must be longer than this
    max_citations: int = 12  # \cite commands in one text
    citation_required: bool = True  # where the prompt showed a passage
    min_cjk: float = 0.6  # a Chinese text needs a larger share of Chinese characters
    max_cjk: float = 0.05  # any other language a smaller one (the release's demo: 0.01)

    # The state machine.
    max_levels: int = 3  # of headings; a section of the last level cannot be expanded
    max_expansions: int = 12  # deepening attempts, failed ones included (the release's second configuration: 5)
    max_steps: int = 140  # model calls in one report, failed ones included

    # Retrieval: passages found for each keyword, and shown after merging.
    per_keyword_k: int = 20
    outline_passages: int = 20
    section_passages: int = 10
    search_timeout_s: float = 60.0

    # The outline in prompts: a written text of more than `abbreviate_over` tokens becomes its head, " ... " and its tail.
    abbreviate_over: int = 150
    abbreviate_head: int = 100
    abbreviate_tail: int = 50
    condition_on_draft: bool = True  # false: SEARCH and WRITE see titles and plans only, not what is written (the ablation)
    prompts: str = "compact"  # for small trained models; "detailed" adds the rules, for models that were not trained on WARP
    full_text: bool = True  # the last written branch (WRITE) and every section (EXTEND) are shown unabbreviated

    # Sampled tokens per model call.
    search_tokens: int = 2048
    initialize_tokens: int = 2048
    write_tokens: int = 2048
    extend_tokens: int = 2048

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if f.name in CHOICES:
                if value not in CHOICES[f.name]:
                    raise ConfigError(f"limits.{f.name} must be one of {', '.join(CHOICES[f.name])}, got {value!r}")
                continue
            if value is None and f.default is None:
                continue
            if isinstance(f.default, bool):
                if not isinstance(value, bool):
                    raise ConfigError(f"limits.{f.name} must be true or false, got {value!r}")
                continue
            if isinstance(value, bool) or not isinstance(value, int | float if isinstance(f.default, float) else int):
                raise ConfigError(f"limits.{f.name} must be a number like {f.default or 0!r}, got {value!r}")
            zero = f.name in _MAY_BE_ZERO
            if not (value > 0 or (zero and value == 0)):  # refuses NaN as well
                raise ConfigError(f"limits.{f.name} must be {'0 or more' if zero else 'positive'}, got {value!r}")
        for low, high in [("min_sections", "max_sections"), ("min_subsections", "max_subsections")]:
            if getattr(self, low) > getattr(self, high):
                raise ConfigError(f"limits.{low}={getattr(self, low)} is larger than limits.{high}={getattr(self, high)}")
        if max(self.min_cjk, self.max_cjk) > 1:
            raise ConfigError(f"limits.min_cjk={self.min_cjk} and limits.max_cjk={self.max_cjk} are shares, at most 1")
        if self.abbreviate_head + self.abbreviate_tail > self.abbreviate_over:
            raise ConfigError(
                f"limits.abbreviate_over={self.abbreviate_over} must be at least abbreviate_head + abbreviate_tail = "
                f"{self.abbreviate_head + self.abbreviate_tail}, or shortening would repeat text"
            )

    @classmethod
    def of(cls, values: Limits | dict[str, Any] | None) -> Limits:
        """Limits from a config's mapping; what it does not name keeps its default. Raises ConfigError on an unknown name."""
        if isinstance(values, Limits):
            return values
        known = [f.name for f in fields(cls)]
        for name in values or {}:
            if name not in known:
                near = difflib.get_close_matches(str(name), known, n=1)
                raise ConfigError(f"limits.{name} is not a limit" + (f"; did you mean {near[0]}?" if near else ""))
        return cls(**(values or {}))

    def max_tokens(self, state: str) -> int:
        """Sampled tokens allowed to one model call in this state; in free control any action may be the reply."""
        own = getattr(self, f"{state}_tokens")
        return max(getattr(self, f"{s}_tokens") for s in STATES) if self.control == "free" else own

    def passages(self, cursor: str | None) -> int:
        """How many passages the next prompt may show: more for the outline, which is about every topic at once."""
        return self.outline_passages if cursor == "outline" else self.section_passages
