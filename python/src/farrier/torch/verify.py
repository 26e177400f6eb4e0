"""The same batch eagerly and as a graph: loss and every gradient compared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from farrier.torch.policy import OTHER_ORDER, SAME_ORDER, Tolerance, coarsest, tolerance_for

#: Elements that are compared at a time: 4 Mi of them in 32 bits are 16 MiB, which no step will miss.
PIECE = 1 << 22


@dataclass(frozen=True)
class Comparison:
    """What came of it. `worst` is the largest relative difference and the gradient that has it.

    `noise` is what two eager runs of a batch were seen to differ by.
    """

    loss: float
    expected_loss: float
    gradients: int
    worst: float
    worst_name: str
    wrong: list[str] = field(default_factory=list)
    noise: float = 0.0

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

    def on(self, device: torch.device) -> Iterator[tuple[str, Tensor]]:
        """Each of them on the device, one at a time."""
        for name, gradient in self.held.items():
            yield name, gradient.to(device)


@dataclass(frozen=True)
class Rule:
    """What may differ. `dtype` None: the type of each gradient says it; `loss_roundings` None: as the gradients."""

    roundings: int = SAME_ORDER
    noise: float = 0.0
    dtype: str | None = None
    loss_roundings: int | None = None

    def limit(self, dtype: str) -> Tolerance:
        """How far a gradient of that type may lie apart."""
        return tolerance_for(self.dtype or dtype, noise=self.noise, roundings=self.roundings)

    def loss_limit(self, dtype: str) -> Tolerance:
        """How far the loss may."""
        roundings = self.roundings if self.loss_roundings is None else self.loss_roundings
        return tolerance_for(self.dtype or dtype, noise=self.noise, roundings=roundings)

    @classmethod
    def of_noise(cls, noise: float) -> Rule:
        """For a step of which two eager runs were just seen to differ by so much.

        Any difference says that its sums come in another order each time. How far that leads is only drawn once: the
        order in which a GPU adds depends on what else it does, and on whether a graph or the host launches. The loss is
        summed in one order, and stays held to that.
        """
        return cls(OTHER_ORDER if noise > 0 else SAME_ORDER, noise, loss_roundings=SAME_ORDER)


#: Two eager runs of one batch.
AGAIN = Rule(OTHER_ORDER)

#: A batch padded and as it came. What it was computed in shows in no gradient (autocast), so the coarsest type is allowed.
#: A wrong padding value is beyond that wherever the padding counts.
PADDED = Rule(OTHER_ORDER, dtype="bfloat16")


@dataclass(frozen=True)
class Measured:
    """How far two runs of one batch lie apart, before anybody says how far they may.

    `numbers` are the squared norms of difference and expectation of each gradient in `named` (with its type), and in how
    many places only one of them is finite; `wrong` is what no tolerance allows.
    """

    named: list[tuple[str, str]]
    numbers: list[list[float]]
    wrong: list[str]
    expected_loss: float
    loss: float

    @classmethod
    def of(cls, expected: Gradients, found: Iterable[tuple[str, Tensor]], expected_loss: float, loss: float) -> Measured:
        """Measures what was found against what was expected."""
        wrong: list[str] = []
        named: list[tuple[str, str]] = []
        measures: list[Tensor] = []
        for name, gradient in found:
            twin = expected.held.get(name)
            if twin is None or twin.shape != gradient.shape:
                wrong.append(
                    f"{name} has a gradient in the graph and {'none' if twin is None else 'another shape'} eagerly"
                )
                continue
            named.append((name, str(gradient.dtype).removeprefix("torch.")))
            measures.append(_measure(gradient.reshape(-1), twin.reshape(-1)))
        missing = sorted(expected.held.keys() - {name for name, _ in named})
        wrong += [f"{name} has a gradient eagerly and none in the graph" for name in missing]
        numbers = torch.stack(measures).tolist() if measures else []
        return cls(named, numbers, wrong, expected_loss, loss)

    def judge(self, rule: Rule) -> Comparison:
        """What the rule says of it."""
        wrong = list(self.wrong)
        whole = sum(norm for _, norm, _ in self.numbers) ** 0.5
        worst, worst_name = 0.0, "-"
        for (name, dtype), (difference, norm, odd) in zip(self.named, self.numbers, strict=True):
            difference, norm = difference**0.5, norm**0.5
            limit = rule.limit(dtype)
            relative = difference / max(norm, limit.floor * whole, 1e-300)
            if not relative <= worst:  # NaN is the worst of all.
                worst, worst_name = relative, name
            if odd:
                wrong.append(f"{name} is infinite or no number in {odd:.0f} places where the other is not")
            elif not limit.allows(difference, norm, whole):
                wrong.append(f"{name} is {relative:.1e} away (allowed {limit.relative:.1e})")
        wrong += _loss_wrong(self.loss, self.expected_loss, rule.loss_limit(coarsest(dtype for _, dtype in self.named)))
        return Comparison(self.loss, self.expected_loss, len(self.named), worst, worst_name, wrong, rule.noise)


def _measure(found: Tensor, expected: Tensor) -> Tensor:
    """The squared norms of the difference and of what was expected, and in how many places only one is finite.

    What is infinite on both sides alike, or no number on both, is the same: a float16 step that overflows is skipped by
    its scaler, as a graph and eagerly. Norms are of the finite rest. A piece at a time.
    """
    total = torch.zeros(3, dtype=torch.float64, device=found.device)
    for a, b in zip(torch.split(found, PIECE), torch.split(expected, PIECE), strict=True):
        wide = torch.float64 if a.dtype == torch.float64 else torch.float32
        a, b = a.to(wide), b.to(a.device, non_blocking=True).to(wide)
        finite = a.isfinite() & b.isfinite()
        alike = finite | (a == b) | (a.isnan() & b.isnan())
        difference = torch.where(finite, a - b, 0.0)
        norms = [torch.linalg.vector_norm(each, dtype=torch.float64) for each in (difference, torch.where(finite, b, 0.0))]
        total += torch.stack([*(norm.square() for norm in norms), (~alike).sum().double()])
    return total


def _loss_wrong(loss: float, expected: float, limit: Tolerance) -> list[str]:
    if loss == expected or abs(loss - expected) <= limit.relative * abs(expected):
        return []
    both_nan = loss != loss and expected != expected
    return [] if both_nan else [f"the loss is {loss:.6g}, eagerly {expected:.6g}"]
