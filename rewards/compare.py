"""A report against another one: both in one question, in both orders, since judges favour a place.

reference (RACE, arXiv 2506.11763)      every criterion a number for each text; per dimension d, with the criteria's weights,
                                        T_d = sum_c w_c t_c / sum_c w_c, T = sum_d w_d T_d / sum_d w_d; R alike for the reference;
                                        value = T / (T + R): 0.5 is a report as good as the reference
                                        two orders: their mean, or a tie (0.5) when they do not prefer the same text and are
                                        more than `tolerance` apart
pairwise (the form of DeepConsult)      every dimension a gap in [-5, 5], above 0 when the first text is better; `trials` in each
                                        order, the sign turned in the second; value = (mean gap + 5) / 10, and the majority of
                                        votes. A judge that always prefers one place has a mean gap of 0: a tie
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rewards.judged import ask_numbers, form, messages, wording
from rewards.rubric import TEN, Criterion, Rubric, Scale
from rlcore.errors import ConfigError
from rlcore.judge import Judge

GAP = Scale(-5, 5)

_BOTH = {
    "en": "Give both texts a number from {low:g} (worst) to {high:g} (best) on each criterion; their order means nothing.\n"
    '{criteria}\nThe key "a.ID" is for text a, "b.ID" for text b. Reply: {form}',
    "zh": "就每条标准分别为两篇正文给出从 {low:g}（最差）到 {high:g}（最好）的数；先后顺序没有意义。\n{criteria}\n"
    "键 “a.ID” 对应正文 a，“b.ID” 对应正文 b。回复格式：{form}",
}
_GAP = {
    "en": "Compare both texts on each criterion; their order means nothing. A number above 0, up to {high:g}: text a is better "
    "by so much; below 0, down to {low:g}: text b is; 0: no difference.\n{criteria}\nReply: {form}",
    "zh": "就每条标准比较两篇正文；先后顺序没有意义。大于 0（至多 {high:g}）表示正文 a 更好，"
    "小于 0（至少 {low:g}）表示正文 b 更好，0 表示没有差别。\n{criteria}\n回复格式：{form}",
}


@dataclass(frozen=True, slots=True)
class Dimensions:
    """The criteria of a comparison by dimension, and the dimensions' weights."""

    criteria: Rubric
    of: Mapping[str, str]  # criterion id -> dimension
    weights: Mapping[str, float]

    @classmethod
    def plain(cls, rubric: Rubric) -> Dimensions:
        """Every criterion is a dimension of its own."""
        return cls(rubric, {c.id: c.id for c in rubric.criteria}, {c.id: c.weight for c in rubric.criteria})

    @classmethod
    def of_task(cls, criterions: Any, weights: Any) -> Dimensions:
        """A task's own, in DeepResearch Bench's layout: {dimension: [{"criterion", "explanation", "weight"}, ...]} and
        {dimension: weight}; the n-th criterion of a dimension has the id "dimension.n". Raises ConfigError."""
        if not isinstance(criterions, dict) or not isinstance(weights, dict) or set(criterions) != set(weights):
            raise ConfigError("criterions and dimension_weight must map the same dimensions")
        found, of = [], {}
        for dimension, items in criterions.items():
            if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
                raise ConfigError(f"criterions.{dimension} must be a list of {{criterion, weight}}")
            for n, item in enumerate(items, 1):
                text = ": ".join(part for name in ("criterion", "explanation") if (part := str(item.get(name) or "").strip()))
                found.append(Criterion(f"{dimension}.{n}", {"en": text}, item.get("weight", 1.0)))
                of[found[-1].id] = dimension
            Rubric(f"criterions.{dimension}", tuple(found[len(found) - len(items) :]), TEN)  # weights that sum to more than 0
        Rubric("dimension_weight", tuple(Criterion(d, {"en": f"dimension {d}"}, w) for d, w in weights.items()), TEN)
        return cls(Rubric("task", tuple(found), TEN), of, dict(weights))

    def means(self, scores: Mapping[str, float]) -> dict[str, float]:
        """T_d of each dimension."""
        sums, bases = dict.fromkeys(self.weights, 0.0), dict.fromkeys(self.weights, 0.0)
        for criterion in self.criteria.criteria:
            dimension = self.of[criterion.id]
            sums[dimension] += criterion.weight * scores[criterion.id]
            bases[dimension] += criterion.weight
        return {dimension: sums[dimension] / bases[dimension] for dimension in sums if bases[dimension]}

    def total(self, means: Mapping[str, float]) -> float:
        """T."""
        return sum(self.weights[d] * mean for d, mean in means.items()) / sum(self.weights[d] for d in means)


def normalised(target: float, reference: float) -> float:
    """T / (T + R); 0 when T is 0, also beside a reference of 0: nothing was earned."""
    return target / (target + reference) if target else 0.0


def agreed(first: float, second: float, tolerance: float) -> float:
    """What two orders say together: their mean when they prefer the same text or lie within `tolerance`, else a tie, 0.5."""
    same = (first - 0.5) * (second - 0.5) > 0
    return (first + second) / 2 if same or abs(first - second) <= tolerance + 1e-9 else 0.5


def majority(gaps: Sequence[float]) -> float:
    """1.0 when more gaps are above 0 than below, 0.0 when fewer, 0.5 when as many."""
    wins, losses = sum(gap > 0 for gap in gaps), sum(gap < 0 for gap in gaps)
    return 0.5 + 0.5 * ((wins > losses) - (wins < losses))


async def against_reference(
    judge: Judge,
    question: str,
    text: str,
    reference: str,
    dimensions: Dimensions,
    language: str,
    tolerance: float,
    component: str,
) -> tuple[float, dict[str, float]]:
    """The value of the text, and that of each dimension (both orders agreed in the same way). Raises Unusable and JudgeFailed."""
    forward, backward = await asyncio.gather(
        _both(judge, question, text, reference, dimensions, language, component),
        _both(judge, question, reference, text, dimensions, language, component),
    )
    orders = [forward, (backward[1], backward[0])]
    values = [normalised(dimensions.total(target), dimensions.total(other)) for target, other in orders]
    parts = {d: [normalised(target[d], other[d]) for target, other in orders] for d in forward[0]}
    return agreed(values[0], values[1], tolerance), {d: agreed(first, second, tolerance) for d, (first, second) in parts.items()}


async def gaps(
    judge: Judge, question: str, text: str, other: str, rubric: Rubric, language: str, trials: int, component: str
) -> dict[str, list[float]]:
    """For each criterion the gaps of all trials, above 0 where `text` is better: first those with it in front, then the others.

    Trials differ only in the judge's own chance: at temperature 0 more than one says nothing. Raises Unusable and JudgeFailed.
    """
    orders = [(text, other, 1), (other, text, -1)]
    replies = await asyncio.gather(
        *(
            _ask_gaps(judge, question, first, second, rubric, language, component, attempt=2 * trial)
            for first, second, _ in orders
            for trial in range(trials)
        )
    )
    signs = [sign for _, _, sign in orders for _ in range(trials)]
    return {id: [sign * reply[id] for sign, reply in zip(signs, replies, strict=True)] for id in rubric.ids}


async def _both(
    judge: Judge, question: str, first: str, second: str, dimensions: Dimensions, language: str, component: str
) -> tuple[dict[str, float], dict[str, float]]:
    """The dimensions' means of two texts, asked for in one call."""
    rubric = dimensions.criteria
    ids = [f"{side}.{id}" for id in rubric.ids for side in "ab"]
    prompt = _messages(_BOTH, question, first, second, rubric, rubric.scale, ids, language)
    scores = await ask_numbers(judge, prompt, ids, rubric.scale, component=component)
    one, two = ({id: scores[f"{side}.{id}"] for id in rubric.ids} for side in "ab")
    return dimensions.means(one), dimensions.means(two)


async def _ask_gaps(
    judge: Judge, question: str, first: str, second: str, rubric: Rubric, language: str, component: str, attempt: int
) -> dict[str, float]:
    prompt = _messages(_GAP, question, first, second, rubric, GAP, rubric.ids, language)
    return await ask_numbers(judge, prompt, rubric.ids, GAP, component=component, attempt=attempt)


def _messages(
    texts: dict[str, str], question: str, first: str, second: str, rubric: Rubric, scale: Scale, ids: list[str], language: str
) -> list[dict[str, str]]:
    words = wording(language)
    criteria = "\n".join(f"- {c.id}: {c.said_in(words)}" for c in rubric.criteria)
    task = texts[words].format(low=scale.low, high=scale.high, criteria=criteria, form=form(ids))
    return messages(language, {"task": question, "text a": first, "text b": second}, task)
