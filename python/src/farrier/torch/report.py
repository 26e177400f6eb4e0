"""What became of a step, in words."""

from __future__ import annotations

from dataclasses import dataclass, field

from farrier.torch.explain import Reason
from farrier.torch.policy import Boundness
from farrier.torch.verify import Comparison


@dataclass
class StepReport:
    """Read it at any time; `print(step.report)` is made for a log."""

    steps: int = 0
    replays: int = 0
    captures: int = 0
    evicted: int = 0
    verified: int = 0
    eager: Boundness | None = None
    graph_s: float | None = None
    noise: float = 0.0
    last: Comparison | None = None
    reason: Reason | None = None
    refused: list[Reason] = field(default_factory=list)

    @property
    def gain(self) -> float | None:
        """How many times faster a replay is than the eager step was; None: not measured."""
        if self.eager is None or not self.graph_s:
            return None
        return self.eager.wall_s / self.graph_s

    def __str__(self) -> str:
        lines = [f"{self.steps} steps, {self.replays} of them as a graph"]
        if self.eager is not None:
            lines.append(str(self.eager))
        if self.graph_s is not None and self.gain is not None:
            lines.append(f"graph step {1e3 * self.graph_s:.2f} ms: {self.gain:.2f}x")
        if self.captures:
            lines.append(f"{self.captures} captures, {self.evicted} given up for others")
        if self.last is not None:
            lines.append(f"verified {self.verified} times: {self.last}")
        lines += [f"eager for some batches: {reason}" for reason in self.refused]
        if self.reason is not None:
            lines.append(f"eager from here on: {self.reason}")
        return "\n".join(lines)
