"""The same batch eagerly and as a graph: loss and every gradient compared."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from farrier.torch.policy import Tolerance, tolerance_for

#: Elements that are compared at a time: 4 Mi of them in 32 bits are 16 MiB, which no step will miss.
PIECE = 1 << 22


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
    """Gradients of one batch, kept on the host: a second set on the device is memory that the step may need.

    The host's memory is pinned, so that the copies run at the link's speed and nobody waits for them.
    """

    def __init__(self) -> None:
        self.held: dict[str, Tensor] = {}

    def take(self, gradients: Iterable[tuple[str, Tensor]]) -> None:
        """Copies them, in the order of the current stream."""
        for name, gradient in gradients:
            twin = torch.empty_like(gradient, device="cpu", pin_memory=gradient.is_cuda)
            self.held[name] = twin.copy_(gradient.detach(), non_blocking=True)


def compare(
    expected: Gradients,
    found: Iterable[tuple[str, Tensor]],
    expected_loss: float,
    loss: float,
    noise: float = 0.0,
) -> Comparison:
    """Holds the gradients of a graph against those of the eager step."""
    wrong: list[str] = []
    named: list[tuple[str, str]] = []
    squares: list[Tensor] = []
    for name, gradient in found:
        twin = expected.held.get(name)
        if twin is None or twin.shape != gradient.shape:
            wrong.append(f"{name} has a gradient in the graph and {'none' if twin is None else 'another shape'} eagerly")
            continue
        named.append((name, str(gradient.dtype).removeprefix("torch.")))
        squares.append(_squares(gradient.reshape(-1), twin.reshape(-1)))
    missing = sorted(expected.held.keys() - {name for name, _ in named})
    wrong += [f"{name} has a gradient eagerly and none in the graph" for name in missing]
    norms = torch.stack(squares).sqrt().tolist() if squares else []
    whole = sum(norm**2 for _, norm in norms) ** 0.5
    worst, worst_name = 0.0, "-"
    for (name, dtype), (difference, norm) in zip(named, norms, strict=True):
        limit = tolerance_for(dtype, noise=noise)
        relative = difference / max(norm, limit.floor * whole, 1e-300)
        if not relative <= worst:  # NaN is the worst of all.
            worst, worst_name = relative, name
        if not limit.allows(difference, norm, whole):
            wrong.append(f"{name} is {relative:.1e} away (allowed {limit.relative:.1e})")
    wrong += _loss_wrong(loss, expected_loss, max((dtype for _, dtype in named), default="float32"), noise)
    return Comparison(loss, expected_loss, len(named), worst, worst_name, wrong)


def _squares(found: Tensor, expected: Tensor) -> Tensor:
    """The squared norms of the difference and of what was expected, a piece at a time."""
    total = torch.zeros(2, dtype=torch.float64, device=found.device)
    for a, b in zip(torch.split(found, PIECE), torch.split(expected, PIECE), strict=True):
        wide = torch.float64 if a.dtype == torch.float64 else torch.float32
        b = b.to(a.device, non_blocking=True).to(wide)
        parts = (a.to(wide) - b).square().sum(), b.square().sum()
        total += torch.stack(parts).double()
    return total


def _loss_wrong(loss: float, expected: float, dtype: str, noise: float) -> list[str]:
    limit: Tolerance = tolerance_for(dtype, noise=noise)
    if loss == expected or abs(loss - expected) <= limit.relative * abs(expected):
        return []
    both_nan = loss != loss and expected != expected
    return [] if both_nan else [f"the loss is {loss:.6g}, eagerly {expected:.6g}"]
