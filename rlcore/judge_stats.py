"""What a judge counts, for each component of the reward and in all: flat numbers for metrics.jsonl."""

from __future__ import annotations

import statistics
from collections import Counter, deque
from dataclasses import dataclass, field

RECENT = 1000  # latencies kept for the percentiles, by component


@dataclass
class ComponentStats:
    """Counts of one component. Latency: the request that was answered; wait: the rest of the question's time."""

    counts: Counter[str] = field(default_factory=Counter)
    latency_s: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    wait_s: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    cost: float = 0.0  # in the currency of the configured prices

    def figures(self) -> dict[str, float]:
        c = self.counts
        figures = {name: float(c[name]) for name in ("asked", "answered", "cached", "shared", "failed", "unusable", "retries")}
        figures["scored"] = float(c["answered"] + c["cached"] + c["shared"] - c["unusable"])  # what nobody complained of
        figures |= {name: float(c[name]) for name in ("prompt_tokens", "completion_tokens")} | {"cost": self.cost}
        return figures | _percentiles("latency", self.latency_s) | _percentiles("wait", self.wait_s)


class JudgeStats:
    """All components of a judge; `component(name)` is where a call counts."""

    def __init__(self) -> None:
        self._components: dict[str, ComponentStats] = {}

    def component(self, name: str) -> ComponentStats:
        return self._components.setdefault(name, ComponentStats())

    def figures(self) -> dict[str, float]:
        """Totals by name, and those of every component as `component/name`."""
        total = ComponentStats(latency_s=deque(), wait_s=deque())
        figures: dict[str, float] = {}
        for name, component in sorted(self._components.items()):
            total.counts.update(component.counts)
            total.cost += component.cost
            total.latency_s += component.latency_s
            total.wait_s += component.wait_s
            figures |= {f"{name}/{k}": v for k, v in component.figures().items()}
        return total.figures() | figures


def _percentiles(name: str, seconds: deque[float]) -> dict[str, float]:
    if len(seconds) < 2:
        return {}
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    return {f"{name}_p{p}_s": cuts[p - 1] for p in (50, 95, 99)}
