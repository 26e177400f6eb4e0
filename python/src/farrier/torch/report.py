"""Report on a step: how often it ran as a graph, how fast it was, and why it ran eagerly."""

from __future__ import annotations

from dataclasses import dataclass, field

from farrier.formatting import count_of, format_percent
from farrier.torch.comparison import Comparison
from farrier.torch.explain import Reason
from farrier.torch.graph_policy import StepTiming, VerifySchedule


@dataclass
class StepReport:
    """Statistics of a step. Read them at any time; `print(step.report)` is made for a log.

    `verified` is the number of comparisons, `verified_s` their total time, and `schedule` the
    schedule of the graph that was compared last. `compared_since_s` is the start of the first
    comparison and `called_s` the time of the last call, both on the same clock. `eager_runs` is the
    number of eager runs for verification. `noise` is the largest relative distance of a gradient
    between eager runs of one batch, when it was last measured. `shape_reasons` says why some shapes
    run eagerly.
    """

    steps: int = 0
    replays: int = 0
    captures: int = 0
    evicted: int = 0
    verified: int = 0
    verified_s: float = 0.0
    schedule: VerifySchedule | None = None
    compared_since_s: float | None = None
    called_s: float | None = None
    eager: StepTiming | None = None
    graph_s: float | None = None
    noise: float = 0.0
    eager_runs: int = 0
    last_comparison: Comparison | None = None
    reason: Reason | None = None
    shape_reasons: list[Reason] = field(default_factory=list)

    def record_comparison(self, comparison: Comparison, took_s: float, now_s: float) -> None:
        """Records a comparison and its duration."""
        self.last_comparison, self.called_s = comparison, now_s
        self.verified += 1
        self.eager_runs += comparison.eager_runs
        if comparison.eager_runs > 1:
            self.noise = comparison.noise
        self.verified_s += took_s
        if self.compared_since_s is None:
            self.compared_since_s = now_s - took_s

    @property
    def verified_share(self) -> float | None:
        """Share of the time since the first comparison that comparisons took.

        None before the first comparison.
        """
        if self.compared_since_s is None or self.called_s is None or self.called_s <= self.compared_since_s:
            return None
        return self.verified_s / (self.called_s - self.compared_since_s)

    @property
    def speedup(self) -> float | None:
        """How many times faster a replay is than the eager step. None if it was not measured."""
        if self.eager is None or not self.graph_s:
            return None
        return self.eager.wall_s / self.graph_s

    def __str__(self) -> str:
        lines = [f"{count_of(self.steps, 'step')}, {self.replays:,} of them as a graph"]
        if self.eager is not None:
            lines.append(str(self.eager))
        if self.graph_s is not None and self.speedup is not None:
            lines.append(f"graph step {1e3 * self.graph_s:.2f} ms: {self.speedup:.2f}x")
        if self.captures:
            lines.append(f"{count_of(self.captures, 'capture')}, {self.evicted:,} evicted")
        if self.last_comparison is not None:
            lines.append(
                f"verified {count_of(self.verified, 'time')}, {count_of(self.eager_runs, 'eager run')}: "
                f"{self.last_comparison}"
            )
            lines.append(self._cost())
        lines += [f"eager for one shape: {reason}" for reason in self.shape_reasons]
        if self.reason is not None:
            lines.append(f"eager from here on: {self.reason}")
        return "\n".join(lines)

    def _cost(self) -> str:
        share = "unknown" if self.verified_share is None else format_percent(self.verified_share)
        line = f"comparisons took {self.verified_s:.2f} s, {share} of the time since the first"
        if self.schedule is None or self.reason is not None:
            return line
        expected_share = "unknown" if self.schedule.cost_share is None else format_percent(self.schedule.cost_share)
        return f"{line}; from here on one in {self.schedule.interval:,} replays, {expected_share} of their time"
