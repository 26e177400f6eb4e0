"""Tests whether a graph computes the gradients of the eager step, although eager runs differ too.

No torch.

Atomic additions run in any order (flash attention's backward pass), and bfloat16 rounds their
results differently each time. Two runs of one batch may thus differ by some 0.5 % of a gradient's
norm. Often they do not differ at all, so equal runs do not prove that there is no noise. Each
gradient is therefore judged by repeated runs. One run of the eager step is the reference. Every
other run is reduced to two numbers per gradient (`r` is the gradient in the reference run, `x` in
the other run):

- the distance, |x - r|;
- the scale offset, <x - r, r> / <r, r>. The noise of single elements averages out in this
  projection, so it shows a gradient that is 1 % too large although the noise of its elements is
  larger (offsets of at most 0.001 were seen where distances were 0.008).

A graph passes as soon as every gradient passes. It is rejected only after `MAX_ROUNDS` further
eager runs and replays. A gradient passes if a replay reproduces the reference run up to rounding,
or if both conditions hold:

1. The mean scale offset of the replays differs by at most `SCALE_LIMIT` from that of the eager
   runs, and the half width of the confidence interval is at most `SCALE_LIMIT` too. A scale error
   of twice `SCALE_LIMIT` would then have been found.
2. The nearest replay is no further away than the noise explains, and no replay is far away.

With enough gradients, the median of their scale offsets is subtracted from each, and that median
must match the median of an eager run (`CommonScale`).

If the noise is normal, a correct graph fails the scale test with a probability of `FALSE_ALARM` per
gradient. The distances of replays and eager runs then have the same distribution. The probability
that all 9 replays are further away than all 8 eager runs is 1 in 24,310, and a rejection also
requires that they are further away by a factor of `DISTANCE_MARGIN`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from farrier.torch.graph_policy import FRACTION_BITS, tolerance_for

#: Half of the smallest scale error that must be found (1 %), midway between a correct graph and a
#: wrong one.
SCALE_LIMIT = 0.005
#: Two-sided probability that normal noise alone exceeds the confidence interval of a scale offset.
FALSE_ALARM = 1e-6
#: Quantiles of Student's t for `FALSE_ALARM`, for 1, 2, 3 ... degrees of freedom. The last value
#: also serves for more degrees.
STUDENT_T = (6.366e5, 1000, 130.2, 49.46, 28.48, 20.05, 15.77, 13.26, 11.64, 10.52, 9.701, 9.085, 8.603, 8.218, 7.903)
#: Maximum number of eager runs, and of replays, after the reference run and the first replay.
MAX_ROUNDS = 8
#: Allowed ratio of the distance of the nearest replay to the spread (`TensorEvidence.spread`). Also
#: the allowed ratio of the distance of any replay to that of the furthest eager run, and of the
#: difference of a loss to the largest difference between eager losses.
DISTANCE_MARGIN = 4.0
_BF16_ROUNDING = 2.0 ** -(FRACTION_BITS["bfloat16"] + 1)
#: Distance that is always allowed if the step is noisy. It is the rounding of the computation,
#: whose dtype is assumed to be bfloat16, because with autocast it is unknown.
REDRAWN_ROUNDING = 2 * _BF16_ROUNDING
#: Limit for the distance of each replay, unless `DISTANCE_MARGIN` times the distance of the
#: furthest eager run is larger.
OUTLIER = 8 * _BF16_ROUNDING
#: If eager runs differ by more than this, noise does not explain the difference.
MAX_NOISE = 16 * _BF16_ROUNDING
#: Limits of the common scale: the range of its values over all runs, and the gap between a replay
#: and the nearest eager run. Adjacent bfloat16 values are at most 2**-7 = 0.0078 apart, and runs
#: with the same value differ by less than the gap. Range and gap together stay below 1 %.
COMMON_RANGE, COMMON_GAP = 0.0085, 0.001
#: The common scale is used only with at least this many gradients. With fewer, the median may be
#: the scale offset of a wrong gradient.
COMMON_MIN_GRADIENTS = 8
#: A gradient below this share of the total norm may be pure noise (a bias before a softmax). Its
#: distance is therefore compared with this share of the total norm, not with its own norm.
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
    MismatchKind.NOT_FINITE: "{name} is infinite or NaN in {value:.0f} elements that differ between the two runs",
    MismatchKind.SCALE: "{name} is scaled by {value:+.1e} (allowed {limit:.1e})",
    MismatchKind.DISTANCE: "{name} differs by {value:.1e} (allowed {limit:.1e})",
    MismatchKind.LOSS: "the loss is {value:.6g}, in eager mode {limit:.6g}",
    MismatchKind.EAGER_RUNS_DIFFER: "{name} differs by {value:.1e} in another eager run (allowed {limit:.1e})",
    MismatchKind.NOISE_TOO_LARGE: "the scale of {name} is known only to {value:.1e} (needed {limit:.1e})",
}


@dataclass(frozen=True)
class Mismatch:
    """One mismatch.

    `value` and `limit` are the numbers in its message. For a loss they are the two losses.
    """

    kind: MismatchKind
    name: str
    value: float = 0.0
    limit: float = 0.0

    def __str__(self) -> str:
        return _TEMPLATES[self.kind].format(name=self.name, value=self.value, limit=self.limit)


@dataclass(frozen=True)
class GradientReading:
    """A gradient of one run, compared with the reference run.

    `nonfinite_mismatches` is the number of elements that differ and are not finite in one or both
    runs. The other numbers cover the elements that are finite in both.
    """

    distance: float
    scale: float
    nonfinite_mismatches: float = 0.0


@dataclass(frozen=True)
class TensorNoise:
    """Noise of one gradient in earlier comparisons, relative to the gradient's norm.

    `waived` is true if the gradient was too small and too noisy to judge.
    """

    scale_deviation: float
    degrees: int
    spread: float
    waived: bool = False

    def pooled_with(self, earlier: TensorNoise | None) -> TensorNoise:
        """Pools both measurements.

        The earlier measurement has a bounded weight, because noise changes during training.
        """
        if earlier is None:
            return self
        before = min(earlier.degrees, len(STUDENT_T))
        degrees = before + self.degrees
        squares = before * earlier.scale_deviation**2 + self.degrees * self.scale_deviation**2
        return replace(self, scale_deviation=math.sqrt(squares / degrees) if degrees else 0.0, degrees=degrees)


@dataclass(frozen=True)
class CommonScale:
    """The median scale offset over all gradients, for each run. It is 0 for the reference run.

    Gradients that are clipped in bfloat16 share a scale. In each run, their norm rounds to one of
    two neighbouring values, which scales all of them together by up to 0.8 %. This noise does not
    average out within a few runs, but it takes few values. So at least one replay must match the
    value of an eager run. The values of eager runs must be close together, so that a graph whose
    gradients are all wrong by 1 % has other values.
    """

    eager: list[float]
    graph: list[float]

    @property
    def mismatch(self) -> Mismatch | None:
        """The mismatch of the common scale, or None."""
        eager, name = [0.0, *self.eager], "the median of all gradients"
        values = max(max(eager) - min(eager), max(self.graph) - min(self.graph))
        if values > COMMON_RANGE:
            return Mismatch(MismatchKind.NOISE_TOO_LARGE, name, values, COMMON_RANGE)
        gap = min((other - one for one in eager for other in self.graph), key=abs)
        return Mismatch(MismatchKind.SCALE, name, gap, COMMON_GAP) if abs(gap) > COMMON_GAP else None


@dataclass
class TensorEvidence:
    """All readings of one gradient. `norm` is its norm in the reference run."""

    name: str
    dtype: str
    norm: float
    eager: list[GradientReading] = field(default_factory=list)
    graph: list[GradientReading] = field(default_factory=list)

    @property
    def spread(self) -> float:
        """The largest known distance between two eager runs, or between two replays."""
        distances = [each.distance for each in self.graph] or [0.0]
        return max([each.distance for each in self.eager] + [max(distances) - min(distances)])

    @property
    def is_noisy(self) -> bool:
        """Whether two eager runs, or two replays, differed in any bit."""
        replays = {(each.distance, each.scale) for each in self.graph}
        return len(replays) > 1 or any(each.distance > 0 for each in self.eager)

    def noise(self, common: CommonScale | None, *, waived: bool) -> TensorNoise:
        """The noise of this gradient, for later comparisons."""
        deviation, degrees = _pooled(*self.scales(common))
        return TensorNoise(deviation, degrees, self.spread / self.norm if self.norm else 0.0, waived)

    def scales(self, common: CommonScale | None) -> tuple[list[float], list[float]]:
        """Scale offsets of eager runs and of replays, minus the common scale."""
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
            # The 1 is for the reference run, which is noisy too.
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

    `mismatch` is None if the gradient passes. `waived` is true if it passes only because it is too
    small and too noisy to judge.
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

    `total_norm` is the norm of all gradients together. `is_noisy` is true if any gradient of the
    step is noisy. `common` is subtracted from scale offsets. `final` is true if no further runs
    follow.
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
    # A small gradient may consist of rounding errors, which differ in the graph. A scale error, in
    # contrast, is parallel to the gradient.
    along = not small or spread > 0 or abs(offset) * evidence.norm >= 0.9 * nearest
    if abs(offset) > max(SCALE_LIMIT, resolution) and along:
        return Assessment(Mismatch(MismatchKind.SCALE, name, offset, max(SCALE_LIMIT, resolution)), resolution)
    if max(abs(offset), resolution) <= SCALE_LIMIT:
        return Assessment(None, resolution)
    if small and (final or (not evidence.eager and prior is not None and prior.waived)):
        return Assessment(None, resolution, waived=True)
    return Assessment(Mismatch(MismatchKind.NOISE_TOO_LARGE, name, resolution, SCALE_LIMIT), resolution)
