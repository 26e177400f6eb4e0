"""All runs of one batch, eagerly and as a graph, and what they say together. No torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median_low

from farrier.torch.noise import (
    COMMON_LEAST,
    DISTANCE_MARGIN,
    FLOOR,
    MAX_ROUNDS,
    Assessment,
    CommonScale,
    Finding,
    Mismatch,
    Reading,
    TensorEvidence,
    TensorNoise,
    assess,
)

#: What comparisons of one graph learned of the noise of each gradient.
KeptNoise = Mapping[str, TensorNoise]


@dataclass(frozen=True)
class Comparison:
    """The outcome of a comparison.

    Attributes:
        loss: of the nearest replay.
        expected_loss: of the reference run.
        gradients: how many were compared.
        worst: the largest relative distance of a gradient, by its nearest replay.
        worst_name: the gradient that has it.
        wrong: every mismatch.
        noise: the largest relative distance of a gradient between two eager runs; 0: there were no two.
        resolution: a scale error of this and `SCALE_LIMIT` together would have been found on each gradient; 0: replays
            reproduced the reference run, or what comes close to it.
        waived: gradients below `FLOOR` whose noise hides a scale error of 1 %.
        eager_runs: runs of the eager step.
        replays: runs of the graph.
        kept: what the next comparison may use; None: nothing was measured.
    """

    loss: float
    expected_loss: float
    gradients: int
    worst: float
    worst_name: str
    wrong: list[Finding] = field(default_factory=list)
    noise: float = 0.0
    resolution: float = 0.0
    waived: list[str] = field(default_factory=list)
    eager_runs: int = 1
    replays: int = 1
    kept: KeptNoise | None = None

    @property
    def same(self) -> bool:
        """Whether graph and eager step are one."""
        return not self.wrong

    @property
    def too_noisy(self) -> bool:
        """Whether nothing is wrong but that the noise hides whether something is."""
        return bool(self.wrong) and all(each.kind is Mismatch.NOISE_TOO_LARGE for each in self.wrong)

    @property
    def eager_runs_differ(self) -> bool:
        """Whether runs of the eager step differ by more than noise."""
        return any(each.kind is Mismatch.EAGER_RUNS_DIFFER for each in self.wrong)

    def __str__(self) -> str:
        if self.wrong:
            more = f"; and {len(self.wrong) - 4} more" if len(self.wrong) > 4 else ""
            return "; ".join(map(str, self.wrong[:4])) + more
        text = f"{self.gradients} gradients compared, the furthest apart {self.worst:.1e} ({self.worst_name})"
        if self.eager_runs > 1:
            text += f", eager runs differ by {self.noise:.1e}; {self.eager_runs} eager runs, {self.replays} replays"
        if self.resolution:
            text += f", scale known to {self.resolution:.1e}"
        if self.waived:
            text += f"; too small and noisy to be told: {', '.join(self.waived[:4])}"
        return text


_MISSING = Reading(distance=math.inf, scale=0.0)


@dataclass
class Evidence:
    """All runs of one batch."""

    tensors: list[TensorEvidence]
    expected_loss: float
    loss_rounding: float
    wrong: list[Finding] = field(default_factory=list)
    eager_losses: list[float] = field(default_factory=list)
    graph_losses: list[float] = field(default_factory=list)

    def add_eager_run(self, readings: Mapping[str, Reading], loss: float) -> None:
        """A further eager run. What it has no gradient of differs from the reference run."""
        self.eager_losses.append(loss)
        for tensor in self.tensors:
            tensor.eager.append(readings.get(tensor.name, _MISSING))

    def add_replay(self, readings: Mapping[str, Reading], loss: float) -> None:
        """A further replay."""
        self.graph_losses.append(loss)
        for tensor in self.tensors:
            tensor.graph.append(readings.get(tensor.name, _MISSING))

    def judge(self, kept: KeptNoise | None = None, *, final: bool = False) -> Comparison:
        """What the runs so far say. `kept` takes the place of further eager runs as long as there are none."""
        earlier, kept = kept or {}, None if self.eager_losses else kept
        common = self._common_scale() if len(self.tensors) >= COMMON_LEAST else None
        assessed = self._assessed(kept, common, final=final)
        if final and common is not None:  # What is common to most gradients need not be to all (two optimizers).
            alone = self._assessed(kept, None, final=True)
            assessed = [
                its if one.too_noisy and its.finding is None else one for one, its in zip(assessed, alone, strict=True)
            ]
        wrong = self.wrong + [each.finding for each in assessed if each.finding is not None]
        if common is not None and common.finding is not None:
            wrong.append(common.finding)
        waived = [tensor.name for tensor, each in zip(self.tensors, assessed, strict=True) if each.waived]
        resolution = max((each.resolution for each in assessed if each.finding is None and not each.waived), default=0.0)
        worst, worst_name, noise = 0.0, "-", 0.0
        for tensor in self.tensors:
            size = max(tensor.norm, FLOOR * self._whole, 1e-300)
            noise = max([noise] + [each.distance / size for each in tensor.eager])
            nearest = min(each.distance for each in tensor.graph) / size
            if not nearest <= worst:  # NaN is the worst of all.
                worst, worst_name = nearest, tensor.name
        loss = min(self.graph_losses, key=lambda each: _apart(each, self.expected_loss))
        wrong += self._loss_findings(loss)
        return Comparison(
            loss=loss,
            expected_loss=self.expected_loss,
            gradients=len(self.tensors),
            worst=worst,
            worst_name=worst_name,
            wrong=wrong,
            noise=noise,
            resolution=resolution,
            waived=waived,
            eager_runs=1 + len(self.eager_losses),
            replays=len(self.graph_losses),
            kept=self._learned(earlier, waived, common) if self.eager_losses else None,
        )

    @property
    def _whole(self) -> float:
        """The norm of all gradients."""
        return math.sqrt(sum(each.norm**2 for each in self.tensors))

    def _assessed(self, kept: KeptNoise | None, common: CommonScale | None, *, final: bool) -> list[Assessment]:
        jitters = any(each.jitters for each in self.tensors) or bool(kept and any(noise.spread for noise in kept.values()))
        whole, known = self._whole, kept or {}
        return [
            assess(each, whole, jitters=jitters, kept=known.get(each.name), common=common, final=final)
            for each in self.tensors
        ]

    def _common_scale(self) -> CommonScale:
        tensors = [each for each in self.tensors if each.norm > 0]
        if not tensors:
            return CommonScale([0.0] * len(self.eager_losses), [0.0] * len(self.graph_losses))
        eager = [median_low(each.eager[run].scale for each in tensors) for run in range(len(self.eager_losses))]
        graph = [median_low(each.graph[run].scale for each in tensors) for run in range(len(self.graph_losses))]
        return CommonScale(eager, graph)

    def _learned(self, earlier: KeptNoise, waived: list[str], common: CommonScale | None) -> KeptNoise:
        learned = {each.name: each.noise(common, waived=each.name in waived) for each in self.tensors}
        return {name: noise.after(earlier.get(name)) for name, noise in learned.items()}

    def _loss_findings(self, loss: float) -> list[Finding]:
        repeated = max((_apart(each, self.expected_loss) for each in self.eager_losses), default=0.0)
        allowed = max(self.loss_rounding * abs(self.expected_loss), DISTANCE_MARGIN * repeated)
        if losses_agree(loss, self.expected_loss, allowed):
            return []
        return [Finding(Mismatch.LOSS, "loss", loss, self.expected_loss)]


def losses_agree(loss: float, expected: float, allowed: float) -> bool:
    """Whether two losses are the same. What is infinite alike is, and so is what is no number on both sides."""
    apart = _apart(loss, expected)
    return apart == 0 or (apart < math.inf and apart <= allowed)


def _apart(one: float, other: float) -> float:
    if one == other or (one != one and other != other):
        return 0.0
    return abs(one - other) if math.isfinite(one) and math.isfinite(other) else math.inf


def settle(
    evidence: Evidence,
    kept: KeptNoise | None,
    *,
    eager_run: Callable[[], None],
    replay: Callable[[], None],
    agreed: Callable[[bool], bool] = bool,
) -> Comparison:
    """Adds runs to the evidence of the reference run and the first replay until it passes, or there were enough of them.

    `agreed` says whether this and all other ranks need no further run.
    """
    found = evidence.judge(kept)
    for number in range(1, MAX_ROUNDS + 1):
        if agreed(found.same):
            break
        # Each comes first in turn, so that neither is always the later one.
        for run in (eager_run, replay) if number % 2 else (replay, eager_run):
            run()
        found = evidence.judge(kept, final=number == MAX_ROUNDS)
    return found
