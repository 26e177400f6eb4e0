"""The same batch eagerly and as a graph: loss and every gradient compared."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from farrier.torch.policy import Tolerance, tolerance_for


@dataclass(frozen=True)
class Comparison:
    """What came of it. `worst` is the largest relative difference and the gradient that has it."""

    loss: float
    expected_loss: float
    gradients: int
    worst: float
    worst_name: str
    wrong: list[str] = field(default_factory=list)

    @property
    def same(self) -> bool:
        """Whether graph and eager step are one."""
        return not self.wrong

    def __str__(self) -> str:
        if self.same:
            return f"{self.gradients} gradients compared, the furthest apart {self.worst:.1e} ({self.worst_name})"
        return "; ".join(self.wrong[:4]) + (f"; and {len(self.wrong) - 4} more" if len(self.wrong) > 4 else "")


class Gradients:
    """Gradients of one batch, kept on the host: a second set on the device is memory that the step may need."""

    def __init__(self) -> None:
        self.held: dict[str, Tensor] = {}

    def take(self, gradients: Iterable[tuple[str, Tensor]]) -> None:
        """Copies them."""
        for name, gradient in gradients:
            self.held[name] = gradient.detach().to("cpu", copy=True)


def compare(
    expected: Gradients,
    found: Iterable[tuple[str, Tensor]],
    expected_loss: float,
    loss: float,
    noise: float = 0.0,
) -> Comparison:
    """Holds the gradients of a graph against those of the eager step, one at a time on the device."""
    sizes: dict[str, tuple[float, float, str]] = {}
    wrong: list[str] = []
    for name, gradient in found:
        twin = expected.held.get(name)
        if twin is None or twin.shape != gradient.shape:
            wrong.append(f"{name} has a gradient in the graph and {'none' if twin is None else 'another shape'} eagerly")
            continue
        wide = torch.float64 if gradient.dtype == torch.float64 else torch.float32
        a, b = gradient.to(wide), twin.to(gradient.device).to(wide)
        difference, norm = torch.stack((torch.linalg.vector_norm(a - b), torch.linalg.vector_norm(b))).tolist()
        sizes[name] = (difference, norm, str(gradient.dtype).removeprefix("torch."))
    wrong += [f"{name} has a gradient eagerly and none in the graph" for name in expected.held.keys() - sizes.keys()]
    whole = sum(norm**2 for _, norm, _ in sizes.values()) ** 0.5
    worst, worst_name = 0.0, "-"
    for name, (difference, norm, dtype) in sizes.items():
        limit = tolerance_for(dtype, noise=noise)
        relative = difference / max(norm, limit.floor * whole, 1e-300)
        if not relative <= worst:  # NaN is the worst of all.
            worst, worst_name = relative, name
        if not limit.allows(difference, norm, whole):
            wrong.append(f"{name} is {relative:.1e} away (allowed {limit.relative:.1e})")
    wrong += _loss_wrong(loss, expected_loss, max((size[2] for size in sizes.values()), default="float32"), noise)
    return Comparison(loss, expected_loss, len(sizes), worst, worst_name, wrong)


def _loss_wrong(loss: float, expected: float, dtype: str, noise: float) -> list[str]:
    limit: Tolerance = tolerance_for(dtype, noise=noise)
    if loss == expected or abs(loss - expected) <= limit.relative * abs(expected):
        return []
    both_nan = loss != loss and expected != expected
    return [] if both_nan else [f"the loss is {loss:.6g}, eagerly {expected:.6g}"]
