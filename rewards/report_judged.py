"""The judged reward of a whole report (AgentCPM-Report's second stage): comprehensiveness, insight, instruction following,
readability.

    R = kept x fit x value

| mode      | needs in the query        | value in [0, 1]                                                                        |
| --------- | ------------------------- | -------------------------------------------------------------------------------------- |
| pointwise | `checklist`, if it weighs | weighted mean of the four criteria and the share of the checklist that the text states |
| reference | `reference_report`        | T / (T + R), in both orders (rewards/compare.py), by the query's own `criterions` and  |
|           |                           | `dimension_weight` if it has them                                                      |
| pairwise  | `reference_report`        | (mean signed gap + 5) / 10 over trials in both orders                                  |

`kept` is the share of the report's words that the judge is shown (rewards/screen.py) and `fit` = min(1, most_words / words). The
judge reads titles and written sections without citations: what is cited says nothing about these four, and marks sway a judge.

A query without what its mode needs, and a judge without a usable answer, make the reward unavailable. A report of which nothing
is left to judge has 0, and no judge is asked.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from envs.retrieval.corpus import read_corpus
from envs.warp.citations import drop_citations, keep_citations
from envs.warp.outline import Outline
from rewards.compare import GAP, Dimensions, against_reference, gaps, majority
from rewards.judged import Unavailable, ask_scores, named, rubric_messages
from rewards.probe import ProbeItem, check_judge
from rewards.rubric import REPORT, checklist_rubric
from rewards.rules import length
from rewards.screen import Screen
from rewards.warp import check_row, weighted_mean
from rlcore.errors import ConfigError
from rlcore.judge import Judge
from rlcore.types import RewardResult, Trajectory, scored, unavailable

MODES = ("pointwise", "reference", "pairwise")


class WarpReportJudged:
    """The reward of envs.warp.report's outcomes by a judge; see the module.

    `weights` of the four criteria, and in the pointwise mode of "checklist". `tolerance` is how far two orders that do not prefer
    the same text may be apart without being a tie (reference), `trials` how often each order is asked (pairwise). `most_words` of
    the report, None for no limit. `corpus` is the corpus file of the report's search, with which pasted passages are found (it is
    held in memory); None: they are not. `quotes` as in rewards/screen.py. `margin` is what `self_test` asks of the judge, None
    for no test. Raises ConfigError.
    """

    def __init__(
        self,
        judge: Judge,
        weights: dict[str, float],
        mode: str = "pointwise",
        tolerance: float = 0.1,
        trials: int = 3,
        most_words: int | None = None,
        corpus: str | None = None,
        quotes: bool = False,
        margin: float | None = 0.2,
    ) -> None:
        if mode not in MODES:
            raise ConfigError(f"mode must be one of {', '.join(MODES)}, got {mode!r}")
        check_row("weights", weights, [*REPORT.ids, *(["checklist"] if mode == "pointwise" else [])])
        for name, value in [("tolerance", tolerance), ("margin", margin if margin is not None else 0)]:
            if isinstance(value, bool) or not 0 <= value <= 1:
                raise ConfigError(f"{name} must be a number between 0 and 1, got {value!r}")
        for name, count in [("trials", trials), ("most_words", most_words if most_words is not None else 1)]:
            if isinstance(count, bool) or not isinstance(count, int) or count < 1:
                raise ConfigError(f"{name} must be a whole number of at least 1, got {count!r}")
        criteria = {name: weight for name, weight in weights.items() if name != "checklist"}
        self.rubric = REPORT.weighted(criteria) if any(criteria.values()) else REPORT
        self.judge, self.weights, self.mode = judge, weights, mode
        self.tolerance, self.trials, self.most_words, self.quotes, self.margin = tolerance, trials, most_words, quotes, margin
        self.texts = {d.id: d.passage for d in read_corpus(corpus).values()} if corpus else {}

    async def __call__(self, trajectory: Trajectory) -> RewardResult:
        query, outcome = trajectory.query.data, trajectory.outcome.data
        view = self._view(str(query.get("question", "")), outcome)
        factors = {"kept": view.kept, "fit": view.fit}
        if not view.text:
            return scored(0.0, factors)
        try:
            value, parts = await self._value(query, view.text, outcome.get("language", "en"))
        except Unavailable as error:
            return unavailable(f"query {trajectory.query.id}: {error}")
        return scored(view.kept * view.fit * value, {**parts, "judged": value, **factors})

    async def self_test(self) -> None:
        """Does the judge score known good texts above known bad ones, in this mode's own prompts? Raises ConfigError."""
        if self.margin is not None:
            await check_judge(self._probe, self.margin)

    async def _probe(self, item: ProbeItem, text: str) -> dict[str, float]:
        """A good text is compared with the bad one and the other way round; the checklist is not asked of either."""
        text, other = drop_citations(text), drop_citations(item.bad if text == item.good else item.good)
        query = {"question": item.question, "reference_report": other}
        if self.mode == "pointwise":
            return {"report": self.rubric.share(await self._criteria(query, text, item.language))}
        return {"report": (await self._value(query, text, item.language))[0]}

    async def _value(self, query: dict[str, Any], text: str, language: str) -> tuple[float, dict[str, float]]:
        """The mode's value and its parts. Raises Unavailable."""
        if self.mode == "pointwise":
            return await self._pointwise(query, text, language)
        other = query.get("reference_report")
        if not isinstance(other, str) or not other.strip():
            raise Unavailable(f"{self.mode} needs a reference_report, got {other!r}")
        other = drop_citations(other)  # as the report itself is shown: marks sway a judge
        component = f"report/{self.mode}"
        if self.mode == "reference":
            call = against_reference(
                self.judge, query["question"], text, other, self._dimensions(query), language, self.tolerance, component
            )
            return await named(component, call)
        signed = await named(
            component, gaps(self.judge, query["question"], text, other, self.rubric, language, self.trials, component)
        )
        means = {id: sum(values) / len(values) for id, values in signed.items()}
        votes = {f"wins.{id}": majority(values) for id, values in signed.items()}
        return self.rubric.with_scale(GAP).share(means), {**{id: GAP.share(mean) for id, mean in means.items()}, **votes}

    async def _pointwise(self, query: dict[str, Any], text: str, language: str) -> tuple[float, dict[str, float]]:
        scores: dict[str, float] = {}
        if any(weight for name, weight in self.weights.items() if name != "checklist"):
            found = await self._criteria(query, text, language)
            scores = {id: self.rubric.scale.share(score) for id, score in found.items()}
        if self.weights.get("checklist"):
            scores["checklist"] = await self._checklist(query, text, language)
        return weighted_mean(self.weights, scores), scores

    async def _criteria(self, query: dict[str, Any], text: str, language: str) -> dict[str, float]:
        prompt = rubric_messages(language, {"task": query["question"], "text": text}, self.rubric)
        return await named("report/quality", ask_scores(self.judge, prompt, self.rubric, component="report/quality"))

    async def _checklist(self, query: dict[str, Any], text: str, language: str) -> float:
        """The share of the checklist that the report states. Raises Unavailable without one."""
        try:
            rubric = checklist_rubric(_items(query.get("checklist")))
        except ConfigError as error:
            raise Unavailable(f"checklist: {error}") from error
        prompt = rubric_messages(language, {"task": query["question"], "text": text}, rubric)
        return rubric.share(await named("report/checklist", ask_scores(self.judge, prompt, rubric, component="report/checklist")))

    def _dimensions(self, query: dict[str, Any]) -> Dimensions:
        if "criterions" not in query:
            return Dimensions.plain(self.rubric)
        try:
            return Dimensions.of_task(query["criterions"], query.get("dimension_weight"))
        except ConfigError as error:
            raise Unavailable(str(error)) from error

    def _view(self, question: str, outcome: dict[str, Any]) -> _View:
        if not outcome["outline"]:
            return _View("", 1.0, 1.0)
        outline = Outline.from_json(outcome["outline"])
        shown = {passage["doc_id"] for passage in outcome["passages"].values()}
        screen = Screen(REPORT, [self.texts[i] for i in sorted(shown) if i in self.texts], question, quotes=self.quotes)
        lines, words, written = [f"# {screen(outline.title, heading=True)}".strip()], length(outline.title), False
        for path, section in outline.walk():
            lines.append(f"{'#' * (len(path) + 1)} {screen(section.title, heading=True)}".strip())
            words += length(section.title)
            if section.content is not None:
                text = screen(keep_citations(section.content, outcome["passages"]))  # an invented source is none
                lines.append(text)
                words, written = words + length(section.content), written or bool(text.strip())
        fit = min(1.0, self.most_words / max(words, 1)) if self.most_words else 1.0
        return _View("\n\n".join(lines) if written else "", screen.kept, fit)


class _View(NamedTuple):
    """What the judge sees of a report, the share of it that this is, and how its length fits."""

    text: str
    kept: float
    fit: float


def _items(checklist: Any) -> list[str]:
    """The checklist's items as text: texts, or {"topic", "must_include": [text, ...]}. Raises ConfigError."""
    if not isinstance(checklist, list) or not checklist:
        raise ConfigError(f"it must be a list of at least one item, got {checklist!r}")
    items = []
    for item in checklist:
        if isinstance(item, dict) and isinstance(item.get("must_include"), list):
            item = f"{item.get('topic')}: {', '.join(map(str, item['must_include']))}"
        if not isinstance(item, str) or not item.strip():
            raise ConfigError(f"an item must be a text or {{topic, must_include}}, got {item!r}")
        items.append(item)
    return items
