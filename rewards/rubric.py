"""What a judge is asked: criteria with pinned ids, in English and Chinese, each a number on a declared scale.

    value = (sum_c w_c s_c / sum_c w_c - low) / (high - low)        in [0, 1]

A criterion's text is "Name: question". Rubrics are checked when they are made: vague ones (no criterion, no name, equal texts)
let a judge invent its own dimensions.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlcore.errors import ConfigError

_ID = re.compile(r"[a-z][a-z0-9_]*(?:\.[a-z0-9_]+)*")
_LEAST_TEXT = 4  # characters


@dataclass(frozen=True, slots=True)
class Scale:
    """The numbers low..high, or with a `step` only low, low + step, ..., high. Raises ConfigError when there are no such
    numbers."""

    low: float
    high: float
    step: float | None = None

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            if not _is_finite(getattr(self, name)):
                raise ConfigError(f"scale: {name} must be a finite number, got {getattr(self, name)!r}")
        if not self.low < self.high:
            raise ConfigError(f"scale: low={self.low!r} must be below high={self.high!r}")
        if self.step is not None and not (self.step > 0 and ((self.high - self.low) / self.step).is_integer()):
            raise ConfigError(f"scale: step={self.step!r} must divide high - low = {self.high - self.low!r}")

    def __contains__(self, value: Any) -> bool:
        """Is it a number (a boolean is none) on the scale? Compared, never converted: an integer may be too large for a float."""
        if isinstance(value, bool) or not isinstance(value, int | float) or not self.low <= value <= self.high:
            return False
        return self.step is None or float((value - self.low) / self.step).is_integer()

    def share(self, value: float) -> float:
        """Where on the scale, in [0, 1]."""
        return (value - self.low) / (self.high - self.low)

    def json_schema(self) -> dict[str, Any]:
        if self.step is None:
            return {"type": "number", "minimum": self.low, "maximum": self.high}
        steps = round((self.high - self.low) / self.step)
        return {"enum": [self.low + i * self.step for i in range(steps + 1)]}


@dataclass(frozen=True, slots=True)
class Criterion:
    """`text` has "Name: question" by language; a language it lacks is answered by English, else by what there is."""

    id: str
    text: Mapping[str, str]
    weight: float = 1.0

    def said_in(self, language: str) -> str:
        return self.text.get(language) or self.text.get("en") or next(iter(self.text.values()))

    @property
    def names(self) -> list[str]:
        """What the texts call it: what stands before their colons."""
        return [re.split("[:：]", text, maxsplit=1)[0].strip() for text in self.text.values()]


@dataclass(frozen=True, slots=True)
class Rubric:
    """Raises ConfigError naming rubric, criterion and value."""

    name: str
    criteria: tuple[Criterion, ...]
    scale: Scale

    def __post_init__(self) -> None:
        if not self.criteria:
            raise ConfigError(f"rubric {self.name}: there is no criterion")
        seen: set[str] = set()
        for criterion in self.criteria:
            where = f"rubric {self.name}: criterion {criterion.id!r}"
            if not isinstance(criterion.id, str) or not _ID.fullmatch(criterion.id):
                raise ConfigError(f"{where}: an id has lower-case letters, digits, _ and dots between them")
            if criterion.id in seen:
                raise ConfigError(f"{where} is there twice")
            seen.add(criterion.id)
            if not criterion.text:
                raise ConfigError(f"{where} has no text")
            for language, text in criterion.text.items():
                if not isinstance(text, str) or len(text.strip()) < _LEAST_TEXT:
                    raise ConfigError(f"{where}: text.{language} must say what is asked, got {text!r}")
                if text in seen:
                    raise ConfigError(f"{where}: text.{language} is another criterion's: {text!r}")
                seen.add(text)
            if not _is_finite(criterion.weight) or criterion.weight < 0:
                raise ConfigError(f"{where}: weight must be a finite number >= 0, got {criterion.weight!r}")
        if not sum(criterion.weight for criterion in self.criteria) > 0:
            raise ConfigError(f"rubric {self.name}: at least one weight must be above 0")

    @property
    def ids(self) -> list[str]:
        return [criterion.id for criterion in self.criteria]

    def mean(self, scores: Mapping[str, float]) -> float:
        """sum_c w_c s_c / sum_c w_c, on the scale."""
        return sum(c.weight * scores[c.id] for c in self.criteria) / sum(c.weight for c in self.criteria)

    def share(self, scores: Mapping[str, float]) -> float:
        """The mean as a share of the scale, in [0, 1]."""
        return self.scale.share(self.mean(scores))

    def weighted(self, weights: Mapping[str, float]) -> Rubric:
        """The same criteria with other weights; those not named weigh 0. Raises ConfigError for one that is not here."""
        if unknown := sorted(set(weights) - set(self.ids)):
            raise ConfigError(f"rubric {self.name} has no criterion {unknown[0]!r}; it has {', '.join(self.ids)}")
        return Rubric(self.name, tuple(Criterion(c.id, c.text, weights.get(c.id, 0.0)) for c in self.criteria), self.scale)

    def with_scale(self, scale: Scale) -> Rubric:
        return Rubric(self.name, self.criteria, scale)


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _rubric(name: str, scale: Scale, *criteria: tuple[str, str, str]) -> Rubric:
    return Rubric(name, tuple(Criterion(id, {"en": en, "zh": zh}) for id, en, zh in criteria), scale)


FIVE = Scale(1, 5)
TEN = Scale(0, 10)
VERDICT = Scale(0, 1, 0.5)  # not supported, partly, fully

PLAN = _rubric(
    "plan",
    FIVE,
    (
        "guidance",
        "Guidance: could a writer who sees only this plan tell what each section has to establish, and where it ends?",
        "指导性：只看这份计划的作者，能否明白每一节要说清什么、写到哪里为止？",
    ),
    (
        "hierarchy",
        "Hierarchical clarity: does each part stand at its right level, apart from its neighbours, with none missing or doubled?",
        "层次清晰度：各部分是否处在恰当的层级、彼此不重叠，且没有缺漏或重复？",
    ),
    (
        "coherence",
        "Logical coherence: does the order of the parts lead from what a reader needs first to the answer of the question?",
        "逻辑连贯性：各部分的顺序是否由读者首先需要的内容逐步通向问题的答案？",
    ),
)
SECTION = _rubric(
    "section",
    FIVE,
    (
        "relevance",
        "Relevance: does every part of the text serve the question and the section that was due?",
        "相关性：正文的每一部分是否都服务于问题和本应撰写的这一节？",
    ),
    (
        "coverage",
        "Coverage: does the text deal with all that the section should hold, as far as the passages have it?",
        "覆盖面：凡资料中有、该节应包含的内容，正文是否都已涉及？",
    ),
    (
        "depth",
        "Depth: does the text explain causes, conditions and figures instead of naming topics?",
        "深入程度：正文是否解释了原因、条件和数据，而不只是罗列话题？",
    ),
    (
        "novelty",
        "Novelty: does the text connect its sources to something that none of them says alone?",
        "新颖性：正文是否把多份资料联系起来，得出任何单份资料都没有的内容？",
    ),
)
REPORT = _rubric(
    "report",
    TEN,
    (
        "comprehensiveness",
        "Comprehensiveness: does the report treat every side of the task that matters, with enough facts on each?",
        "全面性：报告是否涉及任务的各个重要方面，并且每方面都有足够的事实？",
    ),
    (
        "insight",
        "Insight: does the report reason from its facts to causes, comparisons and consequences of its own?",
        "洞察力：报告是否从事实出发，自行推导出原因、比较和后果？",
    ),
    (
        "instruction_following",
        "Instruction following: does the report do all that the task asks, within the limits that the task sets?",
        "指令遵循：报告是否完成了任务要求的一切，并遵守任务设定的限制？",
    ),
    (
        "readability",
        "Readability: can a reader of the field follow the report without effort: structure, wording, one thing said once?",
        "可读性：该领域的读者能否轻松读懂：结构、用词、同一内容只说一次？",
    ),
)


def checklist_rubric(items: Sequence[str]) -> Rubric:
    """One criterion for each item that a report should state; ids item_1, item_2, ... in their order. Raises ConfigError."""
    texts = [f"Item {n}: {item}" for n, item in enumerate(items, 1)]
    return Rubric("checklist", tuple(Criterion(f"item_{n}", {"en": text}) for n, text in enumerate(texts, 1)), VERDICT)
