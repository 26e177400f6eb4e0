"""Compares the gradients of a run with those of a reference run, by a few numbers per gradient."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from farrier.torch.comparison import Comparison, Evidence, losses_match
from farrier.torch.graph_policy import OTHER_ORDER, Tolerance, coarsest, tolerance_for
from farrier.torch.noise import MAX_NOISE, GradientReading, Mismatch, MismatchKind, TensorEvidence

#: Elements compared at a time. 4 Mi elements of 32 bits take 16 MiB, which every step can spare.
CHUNK_ELEMENTS = 1 << 22

#: Tolerance between a padded and an unpadded run. With autocast, the dtype of the gradients is not
#: the dtype of the computation, so allow for the coarsest. A wrong padding value that contributes
#: to the loss exceeds this tolerance.
PADDING_TOLERANCE = tolerance_for("bfloat16", roundings=OTHER_ORDER)


@dataclass(frozen=True)
class RunReadings:
    """One run, compared with the reference run. `norms` are the norms in the reference run."""

    loss: float
    readings: dict[str, GradientReading] = field(default_factory=dict)
    norms: dict[str, float] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)
    mismatches: list[Mismatch] = field(default_factory=list)

    def within_tolerance(self, limit: Tolerance, loss_limit: Tolerance, expected_loss: float) -> Comparison:
        """Judges this single run by the given tolerances."""
        mismatches = list(self.mismatches)
        total_norm = math.sqrt(sum(norm**2 for norm in self.norms.values()))
        max_distance, max_distance_name = 0.0, "-"
        for name, reading in self.readings.items():
            relative = reading.distance / max(self.norms[name], limit.floor * total_norm, 1e-300)
            if not relative <= max_distance:  # NaN counts as the largest.
                max_distance, max_distance_name = relative, name
            if reading.nonfinite_mismatches:
                mismatches.append(Mismatch(MismatchKind.NOT_FINITE, name, reading.nonfinite_mismatches))
            elif not limit.allows(reading.distance, self.norms[name], total_norm):
                mismatches.append(Mismatch(MismatchKind.DISTANCE, name, relative, limit.relative))
        if not losses_match(self.loss, expected_loss, loss_limit.relative * abs(expected_loss)):
            mismatches.append(Mismatch(MismatchKind.LOSS, "loss", self.loss, expected_loss))
        return Comparison(self.loss, expected_loss, len(self.readings), max_distance, max_distance_name, mismatches)

    def is_same_step(self, expected_loss: float) -> Comparison:
        """Compares this eager run with the reference run, which should differ only by noise."""
        loss_limit = tolerance_for(coarsest(self.dtypes.values()), roundings=OTHER_ORDER)
        return self.within_tolerance(Tolerance(MAX_NOISE), loss_limit, expected_loss)

    def evidence(self, expected_loss: float) -> Evidence:
        """Starts the evidence of a comparison, with this run as the first replay."""
        rounding = tolerance_for(coarsest(self.dtypes.values())).relative
        tensors = [TensorEvidence(name, self.dtypes[name], self.norms[name]) for name in self.readings]
        evidence = Evidence(tensors, expected_loss, rounding, list(self.mismatches))
        self.add_to(evidence, eager=False)
        return evidence

    def add_to(self, evidence: Evidence, *, eager: bool) -> None:
        """Adds this run to the evidence, as an eager run or as a replay."""
        (evidence.add_eager_run if eager else evidence.add_replay)(self.readings, self.loss)


class ReferenceGradients:
    """Gradients of the reference run, copied to the host because the step may need device memory.

    The host memory is pinned, so that copies run asynchronously at the speed of the link.
    """

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}

    def add(self, gradients: Iterable[tuple[str, Tensor]]) -> None:
        """Copies the gradients to the host asynchronously, on the current stream."""
        for name, gradient in gradients:
            reference = torch.empty_like(gradient, device="cpu", pin_memory=gradient.is_cuda)
            self.tensors[name] = reference.copy_(gradient.detach(), non_blocking=True)


class GradientComparator:
    """Compares the gradients of another run when an optimizer receives them, without a copy."""

    def __init__(self, reference: ReferenceGradients) -> None:
        self._reference = reference.tensors
        self._mismatches: list[Mismatch] = []
        self._compared_names: set[str] = set()
        self._dtypes: dict[str, str] = {}
        self._numbers: list[list[float]] = []

    def add(self, gradients: Iterable[tuple[str, Tensor]]) -> None:
        """Compares some gradients with the reference, and waits for the result."""
        measures: list[Tensor] = []
        for name, gradient in gradients:
            self._compared_names.add(name)
            reference = self._reference.get(name)
            if reference is None or reference.shape != gradient.shape:
                self._mismatches.append(
                    Mismatch(MismatchKind.MISSING_EAGERLY if reference is None else MismatchKind.SHAPE, name)
                )
                continue
            self._dtypes[name] = str(gradient.dtype).removeprefix("torch.")
            measures.append(_measure(gradient.detach().reshape(-1), reference.reshape(-1)))
        self._numbers += torch.stack(measures).tolist() if measures else []

    def finish(self, loss: float) -> RunReadings:
        """Returns the readings of the complete run. `loss` is the loss of that run."""
        missing = sorted(self._reference.keys() - self._compared_names)
        mismatches = self._mismatches + [Mismatch(MismatchKind.MISSING_IN_GRAPH, name) for name in missing]
        readings: dict[str, GradientReading] = {}
        norms: dict[str, float] = {}
        for name, (difference, product, norm, nonfinite_mismatches) in zip(self._dtypes, self._numbers, strict=True):
            norms[name] = math.sqrt(norm)
            readings[name] = GradientReading(math.sqrt(difference), product / norm if norm else 0.0, nonfinite_mismatches)
        return RunReadings(loss, readings, norms, self._dtypes, mismatches)


def _measure(gradients: Tensor, expected: Tensor) -> Tensor:
    """Returns four sums that compare two gradients.

    With d = gradients - expected, these are |d|^2, <d, expected>, |expected|^2, and the number of
    elements that differ although at least one side is not finite. Equal infinities, or NaN on both
    sides, count as equal: a float16 step that overflows is skipped by its scaler, in a graph as in
    eager mode. The first three sums cover the elements that are finite on both sides. The gradients
    are compared in chunks.
    """
    total = torch.zeros(4, dtype=torch.float64, device=gradients.device)
    for a, b in zip(torch.split(gradients, CHUNK_ELEMENTS), torch.split(expected, CHUNK_ELEMENTS), strict=True):
        wide = torch.float64 if a.dtype == torch.float64 else torch.float32
        a, b = a.to(wide), b.to(a.device, non_blocking=True).to(wide)
        finite = a.isfinite() & b.isfinite()
        alike = finite | (a == b) | (a.isnan() & b.isnan())
        difference, finite_b = torch.where(finite, a - b, 0.0), torch.where(finite, b, 0.0)
        squares = [torch.linalg.vector_norm(each, dtype=torch.float64).square() for each in (difference, finite_b)]
        product = torch.dot(difference.double(), finite_b.double())  # 32 bits may overflow.
        total += torch.stack([squares[0], product, squares[1], (~alike).sum().double()])
    return total
