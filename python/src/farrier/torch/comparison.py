"""Collects all runs of one batch, eager and replayed, and evaluates them together. No torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median_low

from farrier.torch.noise import (
    COMMON_MIN_GRADIENTS,
    DISTANCE_MARGIN,
    FLOOR,
    MAX_ROUNDS,
    Assessment,
    CommonScale,
    GradientReading,
    Mismatch,
    MismatchKind,
    TensorEvidence,
    TensorNoise,
    assess,
)

#: Noise of each gradient, from earlier comparisons of one graph.
NoiseHistory = Mapping[str, TensorNoise]


@dataclass(frozen=True)
class Comparison:
    """The outcome of a comparison.

    Attributes:
        loss: the loss of a replay that is nearest to `expected_loss`.
        expected_loss: loss of the reference run.
        gradients: number of compared gradients.
        max_distance: each gradient has a relative distance between the reference run and the replay
            that is nearest to the reference run; this is the largest of these distances.
        max_distance_name: the gradient with that distance.
        mismatches: every mismatch.
        noise: the largest relative distance of a gradient between two eager runs; 0 if there was
            only one.
        resolution: how precisely the scale of the gradients is known. A gradient with a scale error
            of `resolution` plus `SCALE_LIMIT` would have been found. 0 if replays reproduced the
            reference run almost exactly.
        waived: gradients below `FLOOR` whose noise hides a scale error of 1 %.
        eager_runs: number of runs of the eager step.
        replays: number of runs of the graph.
        noise_history: the noise of each gradient, for the next comparison. None if it was not
            measured.
    """

    loss: float
    expected_loss: float
    gradients: int
    max_distance: float
    max_distance_name: str
    mismatches: list[Mismatch] = field(default_factory=list)
    noise: float = 0.0
    resolution: float = 0.0
    waived: list[str] = field(default_factory=list)
    eager_runs: int = 1
    replays: int = 1
    noise_history: NoiseHistory | None = None

    @property
    def passed(self) -> bool:
        """Whether graph and eager step agree."""
        return not self.mismatches

    @property
    def too_noisy(self) -> bool:
        """Whether the only problem is noise that hides possible errors."""
        return bool(self.mismatches) and all(each.kind is MismatchKind.NOISE_TOO_LARGE for each in self.mismatches)

    @property
    def eager_runs_differ(self) -> bool:
        """Whether eager runs differ by more than noise explains."""
        return any(each.kind is MismatchKind.EAGER_RUNS_DIFFER for each in self.mismatches)

    def __str__(self) -> str:
        if self.mismatches:
            more_text = f"; and {len(self.mismatches) - 4} more" if len(self.mismatches) > 4 else ""
            return "; ".join(map(str, self.mismatches[:4])) + more_text
        text = f"{self.gradients} gradients compared, largest difference {self.max_distance:.1e} ({self.max_distance_name})"
        if self.eager_runs > 1:
            text += f", eager runs differ by {self.noise:.1e}; {self.eager_runs} eager runs, {self.replays} replays"
        if self.resolution:
            text += f", scale known to {self.resolution:.1e}"
        if self.waived:
            text += f"; too small and noisy to judge: {', '.join(self.waived[:4])}"
        return text


_MISSING = GradientReading(distance=math.inf, scale=0.0)


@dataclass
class Evidence:
    """All runs of one batch."""

    tensors: list[TensorEvidence]
    expected_loss: float
    loss_rounding: float
    mismatches: list[Mismatch] = field(default_factory=list)
    eager_losses: list[float] = field(default_factory=list)
    graph_losses: list[float] = field(default_factory=list)

    def add_eager_run(self, readings: Mapping[str, GradientReading], loss: float) -> None:
        """Adds an eager run. A missing gradient counts as infinitely distant."""
        self.eager_losses.append(loss)
        for tensor in self.tensors:
            tensor.eager.append(readings.get(tensor.name, _MISSING))

    def add_replay(self, readings: Mapping[str, GradientReading], loss: float) -> None:
        """Adds a replay."""
        self.graph_losses.append(loss)
        for tensor in self.tensors:
            tensor.graph.append(readings.get(tensor.name, _MISSING))

    def evaluate(self, prior: NoiseHistory | None = None, *, final: bool = False) -> Comparison:
        """Evaluates the runs so far.

        Until there is a second eager run, the noise in `prior` is used instead of measured noise.
        """
        previous_history, prior = prior or {}, None if self.eager_losses else prior
        common = self._common_scale() if len(self.tensors) >= COMMON_MIN_GRADIENTS else None
        assessments = self._assess_all(prior, common, final=final)
        if final and common is not None:
            # With two optimizers, a scale may be common to most gradients but not to all. So judge
            # gradients that are too noisy once more, without the common scale.
            without_common = self._assess_all(prior, None, final=True)
            assessments = [
                other if with_common.too_noisy and other.mismatch is None else with_common
                for with_common, other in zip(assessments, without_common, strict=True)
            ]
        mismatches = self.mismatches + [each.mismatch for each in assessments if each.mismatch is not None]
        if common is not None and common.mismatch is not None:
            mismatches.append(common.mismatch)
        waived = [tensor.name for tensor, each in zip(self.tensors, assessments, strict=True) if each.waived]
        resolution = max(
            (each.resolution for each in assessments if each.mismatch is None and not each.waived), default=0.0
        )
        max_distance, max_distance_name, noise = 0.0, "-", 0.0
        for tensor in self.tensors:
            size = max(tensor.norm, FLOOR * self._total_norm, 1e-300)
            noise = max([noise] + [each.distance / size for each in tensor.eager])
            nearest = min(each.distance for each in tensor.graph) / size
            if not nearest <= max_distance:  # NaN counts as the largest.
                max_distance, max_distance_name = nearest, tensor.name
        loss = min(self.graph_losses, key=lambda each: _distance(each, self.expected_loss))
        mismatches += self._loss_mismatches(loss)
        return Comparison(
            loss=loss,
            expected_loss=self.expected_loss,
            gradients=len(self.tensors),
            max_distance=max_distance,
            max_distance_name=max_distance_name,
            mismatches=mismatches,
            noise=noise,
            resolution=resolution,
            waived=waived,
            eager_runs=1 + len(self.eager_losses),
            replays=len(self.graph_losses),
            noise_history=self._updated_history(previous_history, waived, common) if self.eager_losses else None,
        )

    @property
    def _total_norm(self) -> float:
        """The norm of all gradients."""
        return math.sqrt(sum(each.norm**2 for each in self.tensors))

    def _assess_all(self, prior: NoiseHistory | None, common: CommonScale | None, *, final: bool) -> list[Assessment]:
        is_noisy = any(each.is_noisy for each in self.tensors) or bool(
            prior and any(noise.spread for noise in prior.values())
        )
        total_norm, prior_by_name = self._total_norm, prior or {}
        return [
            assess(each, total_norm, is_noisy=is_noisy, prior=prior_by_name.get(each.name), common=common, final=final)
            for each in self.tensors
        ]

    def _common_scale(self) -> CommonScale:
        tensors = [each for each in self.tensors if each.norm > 0]
        if not tensors:
            return CommonScale([0.0] * len(self.eager_losses), [0.0] * len(self.graph_losses))
        eager = [median_low(each.eager[run].scale for each in tensors) for run in range(len(self.eager_losses))]
        graph = [median_low(each.graph[run].scale for each in tensors) for run in range(len(self.graph_losses))]
        return CommonScale(eager, graph)

    def _updated_history(
        self, previous_history: NoiseHistory, waived: list[str], common: CommonScale | None
    ) -> NoiseHistory:
        measured = {each.name: each.noise(common, waived=each.name in waived) for each in self.tensors}
        return {name: noise.pooled_with(previous_history.get(name)) for name, noise in measured.items()}

    def _loss_mismatches(self, loss: float) -> list[Mismatch]:
        repeated = max((_distance(each, self.expected_loss) for each in self.eager_losses), default=0.0)
        allowed = max(self.loss_rounding * abs(self.expected_loss), DISTANCE_MARGIN * repeated)
        if losses_match(loss, self.expected_loss, allowed):
            return []
        return [Mismatch(MismatchKind.LOSS, "loss", loss, self.expected_loss)]


def losses_match(loss: float, expected: float, allowed: float) -> bool:
    """Whether two losses match. Equal infinities match, and so do two NaNs."""
    distance = _distance(loss, expected)
    return distance == 0 or (distance < math.inf and distance <= allowed)


def _distance(one: float, other: float) -> float:
    if one == other or (one != one and other != other):
        return 0.0
    return abs(one - other) if math.isfinite(one) and math.isfinite(other) else math.inf


def compare_until_decided(
    evidence: Evidence,
    prior: NoiseHistory | None,
    *,
    eager_run: Callable[[], None],
    replay: Callable[[], None],
    all_ranks_done: Callable[[bool], bool] = bool,
) -> Comparison:
    """Adds runs until the comparison passes or the limit is reached.

    `all_ranks_done` gets True if this rank is done, and returns True if all ranks are done.
    """
    result = evidence.evaluate(prior)
    for number in range(1, MAX_ROUNDS + 1):
        if all_ranks_done(result.passed):
            break
        # Alternate the order, so that neither the eager run nor the replay always comes second.
        for run in (eager_run, replay) if number % 2 else (replay, eager_run):
            run()
        result = evidence.evaluate(prior, final=number == MAX_ROUNDS)
    return result
