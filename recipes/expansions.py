"""How good is a report after exactly k expansions, and where does the policy stop by itself?

    search, initialize, sections ... | draft 0 | expand, sections ... | draft 1 | expand ... | draft K

One rollout is forced through K expansions. The draft at each deepening is the report of a run that ends there: up to that point
the two have the same prompts and draws. So K + 1 forced runs cost as much as one, and on the rollouts that get as far as K all k
are compared on the same reports; a k that only some of them reach is a mean over those.
Below K the policy may not stop: a `nop` is refused, that is, not applied, and sampled again with a line that says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from envs.warp.machine import WarpState
from envs.warp.report import Report, advance, finish, start
from rlcore.environment import Completion, Message, Policy
from rlcore.errors import NoRoom
from rlcore.metrics import mean, standard_error
from rlcore.types import Outcome, Query, RewardResult, Trajectory, scored, unavailable

REFUSAL = {
    "en": 'The report is not deep enough yet: "nop" is not allowed now. Add subsections with extend-plan.',
    "zh": "报告还不够深入：现在不允许 nop。请用 extend-plan 增加小节。",
}
TRIES = 8  # samples of one deepening, refused and invalid ones included
STEPS = 30  # further model calls that one expansion may cost: those that search and write its subsections


class ForcedReport:
    """Environment of a report that is expanded max(`counts`) times, as far as the policy finds something to expand.

    data: drafts {k: the outcome's data of the report after k expansions, for every reached k in `counts`}.
    metrics: reached (expansions), refused (stops that were not allowed). Search and limits are those of `report`, with room for
    so many expansions and their steps.
    """

    def __init__(self, report: Report, counts: list[int]) -> None:
        self.report, self.counts, self.most = report, set(counts), max(counts)
        expansions, steps = (TRIES + 1) * (self.most + 1), report.limits.max_steps + (TRIES + STEPS) * self.most
        self.limits = replace(report.limits, max_expansions=expansions, max_steps=steps)

    async def run(self, query: Query, policy: Policy) -> Outcome:
        """Write one report, keeping its drafts. Raises what envs.warp.report.Report raises."""
        machine = start(query, self.limits, self.report.count_tokens)
        steps: list[dict[str, Any]] = []
        drafts: dict[str, dict[str, Any]] = {}
        reached = refused = tries = 0
        while not machine.done:
            if machine.state == "extend":
                if not tries and reached in self.counts:
                    drafts[str(reached)] = finish(machine, list(steps)).data
                if reached == self.most or tries == TRIES or not machine.context.expandable:
                    break
                tries += 1
            state, cursor = machine.state, machine.cursor
            try:
                completion = await self._ask(machine, policy, refuse=tries > 1)
            except NoRoom:  # nor would there be in a longer prompt: the drafts so far are what there is
                break
            reply = machine.parse(completion.text, completion.finish_reason)
            if reply.kind == "terminate":
                refused += 1
                continue
            reply = await advance(machine, self.report.retriever, completion.text, completion.finish_reason)
            steps.append({"state": state, "cursor": cursor, "action": reply.kind, "valid": reply.valid, "error": reply.error})
            if reply.kind == "expand":
                reached, tries = reached + 1, 0
        return Outcome({"drafts": drafts}, {"reached": float(reached), "refused": float(refused)})

    async def _ask(self, machine: WarpState, policy: Policy, refuse: bool) -> Completion:
        messages: list[Message] = machine.prompt()
        if refuse:
            line = REFUSAL.get(machine.language, REFUSAL["en"])
            messages = [*messages[:-1], {**messages[-1], "content": f"{messages[-1]['content']}\n{line}"}]
        return await policy.generate(messages, max_tokens=self.limits.max_tokens(machine.state), span=machine.state)


Score = Callable[[Trajectory], Awaitable[RewardResult]]


def score_drafts(score: Score) -> Score:
    """A reward of ForcedReport's trajectories from one of whole reports: its components are {k: reward of draft k}."""

    async def score_all(trajectory: Trajectory) -> RewardResult:
        values: dict[str, float] = {}
        for k, data in trajectory.outcome.data["drafts"].items():
            result = await score(Trajectory(trajectory.query, f"{trajectory.group_id}/{k}", 0, outcome=Outcome(data)))
            if result.value is None:
                return unavailable(f"the draft after {k} expansions has no score: {result.reason}")
            values[k] = result.value
        return scored(mean(values.values()), values) if values else unavailable("no draft was finished")

    return score_all


def curve(forced: list[Trajectory], free: list[Trajectory], counts: list[int]) -> dict[str, Any]:
    """Quality against the number of expansions, and what the policy does by itself, as JSON data.

    forced: [{"expansions": k, "reward", "reward_se", "n"}, ...] over the n queries whose report reached k; a k that none reached
    is left out. throughout: the same over the queries whose report reached every k. refused: stops that were not allowed, in all.
    own: "reward", "reward_se", "n", "expansions" (mean) and "distribution" {k: number of reports with k expansions} of the
    reports that the policy ended; limited: how many a limit ended instead.
    """
    components = [t.reward.components for t in forced if t.usable and t.reward is not None]
    scored_ones = [t for t in free if t.usable and t.reward is not None]
    ended = [t for t in scored_ones if t.outcome.data["steps"][-1]["action"] == "terminate"]
    own = _figures([t.reward.value for t in ended if t.reward is not None and t.reward.value is not None])
    stops = Counter(int(t.outcome.metrics["expanded"]) for t in ended)
    expansions = mean(stops.elements()) if stops else None
    return {
        "forced": _points(components, counts),
        "throughout": _points([c for c in components if all(str(k) in c for k in counts)], counts),
        "refused": sum(t.outcome.metrics.get("refused", 0.0) for t in forced),
        "own": {**own, "expansions": expansions, "distribution": {str(k): stops[k] for k in sorted(stops)}},
        "limited": len(scored_ones) - len(ended),
    }


def _points(components: list[dict[str, float]], counts: list[int]) -> list[dict[str, Any]]:
    """The mean reward of the drafts after k expansions, for every k that one of them reached."""
    values = {k: [c[str(k)] for c in components if str(k) in c] for k in sorted(set(counts))}
    return [{"expansions": k, **_figures(found)} for k, found in values.items() if found]


def _figures(values: list[float]) -> dict[str, float | None]:
    return {
        "reward": mean(values) if values else None,
        "reward_se": standard_error(values) if len(values) > 1 else None,
        "n": len(values),
    }


def plot(result: dict[str, Any], path: Path) -> None:
    """Draw `curve`'s result as a PNG: the forced quality with standard errors over the policy's own numbers of expansions.

    A dotted line is of the reports that reached every number, where not all did.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    stops = axes.twinx()
    own, points, throughout = result["own"], result["forced"], result["throughout"]
    stops.bar([int(k) for k in own["distribution"]], list(own["distribution"].values()), color="0.85")
    stops.set_ylabel("reports that stop by themselves (bars)")
    stops.yaxis.get_major_locator().set_params(integer=True)
    errors = [p["reward_se"] or 0.0 for p in points]
    axes.errorbar([p["expansions"] for p in points], [p["reward"] for p in points], errors, marker="o", capsize=3)
    if throughout and throughout != points:
        axes.plot(*([p[name] for p in throughout] for name in ("expansions", "reward")), ":", color="C0", label="reached all")
    if own["reward"] is not None:
        axes.axhline(own["reward"], linestyle="--", color="0.4", label=f"at its own stop: {own['reward']:.3f}")
    axes.set(xlabel="expansions", ylabel="reward of the report (line)")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_zorder(stops.get_zorder() + 1)  # the line over the bars
    axes.patch.set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend()
    temporary = path.with_name(f"{path.stem}.tmp.png")
    figure.savefig(temporary, dpi=150)
    temporary.replace(path)
