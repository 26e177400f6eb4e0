"""Tests whether a graph computes the gradients of the eager step, although eager runs differ too.
No torch.

Atomic additions run in any order (flash attention's backward pass), and bfloat16 rounds their
results differently each time. Two runs of one batch may thus differ by some 0.5 % of a gradient's
norm, and often do not differ at all: bitwise equal runs do not prove the absence of noise. Each
gradient is therefore judged by repeated runs. Every run is reduced to two numbers per gradient,
against one reference run of the eager step (gradient `r`, run `x`):

- the distance, |x - r|;
- the scale offset, <x - r, r> / <r, r>: in a projection the elementwise noise averages out, so a
  gradient that is 1 % too large shows far below its elementwise noise (offsets of at most 0.001
  were seen where distances were 0.008).

A graph passes as soon as every gradient does, and is rejected only after `MAX_ROUNDS` further eager
runs and replays. A gradient passes if a replay reproduces the reference run up to rounding, or if

1. the mean scale offset of the replays is within `SCALE_LIMIT` of that of the eager runs, and so is
   the half width of its confidence interval: a scale error of twice that would have been found;
2. the nearest replay is no further away than the noise explains, and no replay is far away.

With enough gradients, the median of their scale offsets is subtracted from each, and must itself
match that of an eager run (`CommonScale`).

A correct graph with normal noise fails the scale test with a probability of `FALSE_ALARM` per
gradient. If the graph is correct, distances of replays and eager runs have the same distribution.
All 9 replays are then further away than all 8 eager runs with a probability of 1 in 24,310, and a
rejection also requires a factor of `DISTANCE_MARGIN`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from farrier.torch.graph_policy import FRACTION_BITS, tolerance_for

#: Half of the smallest scale error that must be found (1 %): midway between a correct and a wrong
#: graph.
SCALE_LIMIT = 0.005
#: Two-sided probability that normal noise alone exceeds the confidence interval of a scale offset.
FALSE_ALARM = 1e-6
#: Quantiles of Student's t for `FALSE_ALARM`, by degrees of freedom from 1; more use the last.
STUDENT_T = (6.366e5, 1000, 130.2, 49.46, 28.48, 20.05, 15.77, 13.26, 11.64, 10.52, 9.701, 9.085, 8.603, 8.218, 7.903)
#: Eager runs and replays per comparison, beyond the reference run and the first replay.
MAX_ROUNDS = 8
#: Allowed ratio of the nearest replay's distance to that of the furthest eager run.
DISTANCE_MARGIN = 4.0
_BF16_ROUNDING = 2.0 ** -(FRACTION_BITS["bfloat16"] + 1)
#: Noise is rounded in the dtype of the computation. Autocast hides that dtype, so assume bfloat16.
REDRAWN_ROUNDING = 2 * _BF16_ROUNDING
#: Limit for every single replay, or `DISTANCE_MARGIN` times the furthest eager run if larger.
OUTLIER = 8 * _BF16_ROUNDING
#: Eager runs that differ by more than this are not one step with noise.
MAX_NOISE = 16 * _BF16_ROUNDING
#: Limits of the common scale. Adjacent bfloat16 values are at most 2**-7 = 0.0078 apart, and two
#: runs with the same value differ by less than the gap. Together they stay below 1 %.
COMMON_RANGE, COMMON_GAP = 0.0085, 0.001
#: With fewer gradients the median may belong to a wrong one.
COMMON_MIN_GRADIENTS = 8
#: Gradients below this share of the total norm may be pure noise (a bias before a softmax). They
#: are then not held to their own size.
FLOOR = 1e-3


class MismatchKind(Enum):
    """How a graph, or an eager run, differs from the reference run."""

    MISSING_IN_GRAPH = "missing-in-graph"
    MISSING_EAGERLY = "missing-eagerly"
    SHAPE = "shape"
    NOT_FINITE = "not-finite"
    SCALE = "scale"
    DISTANCE = "distance"
    LOSS = "loss"
    EAGER_RUNS_DIFFER = "eager-runs-differ"
    NOISE_TOO_LARGE = "noise-too-large"


_TEMPLATES = {
    MismatchKind.MISSING_IN_GRAPH: "{name} has a gradient in eager mode but not in the graph",
    MismatchKind.MISSING_EAGERLY: "{name} has a gradient in the graph but not in eager mode",
    MismatchKind.SHAPE: "{name} has a gradient of another shape in the graph than in eager mode",
    MismatchKind.NOT_FINITE: "{name} is infinite or NaN in {value:.0f} elements where the other is not",
    MismatchKind.SCALE: "{name} is scaled by {value:+.1e} (allowed {limit:.1e})",
    MismatchKind.DISTANCE: "{name} differs by {value:.1e} (allowed {limit:.1e})",
    MismatchKind.LOSS: "the loss is {value:.6g}, in eager mode {limit:.6g}",
    MismatchKind.EAGER_RUNS_DIFFER: "{name} differs by {value:.1e} in another eager run (allowed {limit:.1e})",
    MismatchKind.NOISE_TOO_LARGE: "the scale of {name} is known only to {value:.1e} (needed {limit:.1e})",
}


@dataclass(frozen=True)
class Mismatch:
    """One mismatch.

    `value` and `limit` are the numbers of its message; for the loss, both losses.
    """

    kind: MismatchKind
    name: str
    value: float = 0.0
    limit: float = 0.0

    def __str__(self) -> str:
        return _TEMPLATES[self.kind].format(name=self.name, value=self.value, limit=self.limit)


@dataclass(frozen=True)
class GradientReading:
    """A gradient of one run against the reference run.

    `nonfinite_mismatches` counts elements that are finite in only one of the runs; the other
    numbers cover the rest.
    """

    distance: float
    scale: float
    nonfinite_mismatches: float = 0.0


@dataclass(frozen=True)
class TensorNoise:
    """Noise of one gradient from earlier comparisons, relative to its norm.

    `waived`: it was too small and too noisy to judge.
    """

    scale_deviation: float
    degrees: int
    spread: float
    waived: bool = False

    def pooled_with(self, earlier: TensorNoise | None) -> TensorNoise:
        """Pools both measurements.

        The earlier one has a bounded weight, because noise changes during training.
        """
        if earlier is None:
            return self
        before = min(earlier.degrees, len(STUDENT_T))
        degrees = before + self.degrees
        squares = before * earlier.scale_deviation**2 + self.degrees * self.scale_deviation**2
        return replace(self, scale_deviation=math.sqrt(squares / degrees) if degrees else 0.0, degrees=degrees)


@dataclass(frozen=True)
class CommonScale:
    """The median scale offset over all gradients, per run; the reference run's is 0.

    Gradients clipped in bfloat16 share one: their norm rounds to one of two neighbours from run to
    run, which scales all of them together by up to 0.8 %. That noise does not average out within a
    few runs, but takes few values. So a replay must match the value of an eager run, and the eager
    values must be so close together that those of a graph wrong by 1 % throughout are distinct.
    """

    eager: list[float]
    graph: list[float]

    @property
    def mismatch(self) -> Mismatch | None:
        """What is wrong with the graph as a whole, or None."""
        eager, name = [0.0, *self.eager], "the median of all gradients"
        values = max(max(eager) - min(eager), max(self.graph) - min(self.graph))
        if values > COMMON_RANGE:
            return Mismatch(MismatchKind.NOISE_TOO_LARGE, name, values, COMMON_RANGE)
        gap = min((other - one for one in eager for other in self.graph), key=abs)
        return Mismatch(MismatchKind.SCALE, name, gap, COMMON_GAP) if abs(gap) > COMMON_GAP else None


@dataclass
class TensorEvidence:
    """All readings of one gradient. `norm` is that of the reference run."""

    name: str
    dtype: str
    norm: float
    eager: list[GradientReading] = field(default_factory=list)
    graph: list[GradientReading] = field(default_factory=list)

    @property
    def spread(self) -> float:
        """The largest distance between runs known to be of one kind."""
        distances = [each.distance for each in self.graph] or [0.0]
        return max([each.distance for each in self.eager] + [max(distances) - min(distances)])

    @property
    def is_noisy(self) -> bool:
        """Whether two runs of one kind differed in any bit."""
        replays = {(each.distance, each.scale) for each in self.graph}
        return len(replays) > 1 or any(each.distance > 0 for each in self.eager)

    def noise(self, common: CommonScale | None, *, waived: bool) -> TensorNoise:
        """Noise for later comparisons to reuse."""
        deviation, degrees = _pooled(*self.scales(common))
        return TensorNoise(deviation, degrees, self.spread / self.norm if self.norm else 0.0, waived)

    def scales(self, common: CommonScale | None) -> tuple[list[float], list[float]]:
        """Scale offsets of eager runs and of replays, less the common scale."""
        eager, graph = [each.scale for each in self.eager], [each.scale for each in self.graph]
        if common is not None:
            eager = [scale - common_scale for scale, common_scale in zip(eager, common.eager, strict=True)]
            graph = [scale - common_scale for scale, common_scale in zip(graph, common.graph, strict=True)]
        return eager, graph

    def scale(self, prior: TensorNoise | None, common: CommonScale | None) -> tuple[float, float]:
        """Returns the graph's scale offset and the half width of its confidence interval."""
        eager, graph = self.scales(common)
        mean = sum(graph) / len(graph)
        if eager:
            deviation, degrees = _pooled(eager, graph)
            mean -= sum(eager) / len(eager)
            runs = 1 / len(eager) + 1 / len(graph)
        elif prior is not None:
            # The reference run is noisy too.
            deviation, degrees, runs = prior.scale_deviation, prior.degrees, 1 + 1 / len(graph)
        else:
            return mean, math.inf
        return mean, _student_t(degrees) * deviation * math.sqrt(runs) if degrees else math.inf


def _pooled(*groups: Sequence[float]) -> tuple[float, int]:
    """Pooled standard deviation within groups, and its degrees of freedom."""
    squares, degrees = 0.0, 0
    for group in groups:
        if group:
            mean = sum(group) / len(group)
            squares += sum((each - mean) ** 2 for each in group)
            degrees += len(group) - 1
    return (math.sqrt(squares / degrees) if degrees else 0.0), degrees


def _student_t(degrees: int) -> float:
    return STUDENT_T[min(degrees, len(STUDENT_T)) - 1]


@dataclass(frozen=True)
class Assessment:
    """Result for one gradient.

    `mismatch` is None if it passes; `waived` if too small and noisy to judge.
    """

    mismatch: Mismatch | None
    resolution: float = 0.0
    waived: bool = False

    @property
    def too_noisy(self) -> bool:
        """Whether noise hides a possible error."""
        return self.mismatch is not None and self.mismatch.kind is MismatchKind.NOISE_TOO_LARGE


def assess(
    evidence: TensorEvidence,
    total_norm: float,
    *,
    is_noisy: bool,
    prior: TensorNoise | None = None,
    common: CommonScale | None = None,
    final: bool = False,
) -> Assessment:
    """Judges one gradient.

    `total_norm` is the norm of all gradients, `is_noisy` whether any gradient of the step is, `common`
    is subtracted from scale offsets, and `final` means that no further runs follow.
    """
    name, size, small = evidence.name, max(evidence.norm, FLOOR * total_norm, 1e-300), evidence.norm < FLOOR * total_norm
    repeated = max((each.distance for each in evidence.eager), default=0.0)
    if not repeated <= MAX_NOISE * size or any(each.nonfinite_mismatches for each in evidence.eager):
        return Assessment(Mismatch(MismatchKind.EAGER_RUNS_DIFFER, name, repeated / size, MAX_NOISE))
    nonfinite_mismatches = max(each.nonfinite_mismatches for each in evidence.graph)
    if nonfinite_mismatches:
        return Assessment(Mismatch(MismatchKind.NOT_FINITE, name, nonfinite_mismatches))
    distances = [each.distance for each in evidence.graph]
    nearest, furthest = min(distances), max(distances)
    if not math.isfinite(furthest):
        return Assessment(Mismatch(MismatchKind.DISTANCE, name, furthest, 0.0))
    spread = evidence.spread if evidence.eager or prior is None else prior.spread * evidence.norm
    rounding = tolerance_for(evidence.dtype).relative * size
    allowed = max(rounding, OUTLIER * size, DISTANCE_MARGIN * (repeated if evidence.eager else spread))
    if furthest > allowed:
        return Assessment(Mismatch(MismatchKind.DISTANCE, name, furthest / size, allowed / size))
    if nearest <= rounding and abs(evidence.scales(common)[1][distances.index(nearest)]) <= SCALE_LIMIT:
        return Assessment(None)
    allowed = max(rounding, REDRAWN_ROUNDING * size if is_noisy else 0.0, DISTANCE_MARGIN * spread)
    if nearest > allowed:
        return Assessment(Mismatch(MismatchKind.DISTANCE, name, nearest / size, allowed / size))
    offset, resolution = evidence.scale(prior, common)
    # A small gradient may be pure rounding, and different rounding in the graph. A scale error is
    # parallel to it.
    along = not small or spread > 0 or abs(offset) * evidence.norm >= 0.9 * nearest
    if abs(offset) > max(SCALE_LIMIT, resolution) and along:
        return Assessment(Mismatch(MismatchKind.SCALE, name, offset, max(SCALE_LIMIT, resolution)), resolution)
    if max(abs(offset), resolution) <= SCALE_LIMIT:
        return Assessment(None, resolution)
    if small and (final or (not evidence.eager and prior is not None and prior.waived)):
        return Assessment(None, resolution, waived=True)
    return Assessment(Mismatch(MismatchKind.NOISE_TOO_LARGE, name, resolution, SCALE_LIMIT), resolution)
