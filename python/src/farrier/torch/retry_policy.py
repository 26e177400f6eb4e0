"""What to try after a step ran out of memory. Pure: no torch, no clock.

    free --> split ... split --> recompute (--> split ...) --> offload --> ballast --> it does not fit

Splitting comes first because it costs next to nothing while a piece still fills the GPU (some thousand tokens), where
recomputing costs a second forward pass, about a third more work. `floor_rows` says below which size pieces no longer fill
the GPU: from there recomputing comes before splitting further.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum


class RetryStep(str, Enum):
    """One thing to try."""

    FREE = "free"
    SPLIT = "split"
    RECOMPUTE = "recompute"
    OFFLOAD = "offload"
    RESERVE = "reserve"


class ActivationMode(str, Enum):
    """How the activations of a piece are kept until backward."""

    PLAIN = "plain"
    RECOMPUTE = "recompute"
    OFFLOAD = "offload"


@dataclass(frozen=True)
class Plan:
    """How one call runs: the most rows of a piece, and what is done to make a piece fit."""

    rows: int
    recompute: bool = False
    offload: bool = False
    without_reserve: bool = False

    @property
    def mode(self) -> ActivationMode:
        """The mode in which this plan's sizes are learned."""
        if self.offload:
            return ActivationMode.OFFLOAD
        return ActivationMode.RECOMPUTE if self.recompute else ActivationMode.PLAIN

    def __str__(self) -> str:
        parts = [f"pieces of {self.rows} row{'' if self.rows == 1 else 's'}"]
        parts += [name for name, used in (("recompute", self.recompute), ("offload", self.offload)) if used]
        parts += ["ballast released"] if self.without_reserve else []
        return ", ".join(parts)


@dataclass(frozen=True)
class RetryOptions:
    """What can be done in this call."""

    rows: int
    split: bool = True
    recompute: bool = True
    offload: bool = True
    reserve: bool = False
    floor_rows: int = 1

    def plan(self, mode: ActivationMode, rows: int) -> Plan:
        """The plan of that mode. Offloading goes together with recomputing where both can be had."""
        recompute = self.recompute and mode is not ActivationMode.PLAIN
        return Plan(rows, recompute=recompute, offload=mode is ActivationMode.OFFLOAD)

    def modes(self) -> list[ActivationMode]:
        """The modes of this call, cheapest first."""
        can = {ActivationMode.PLAIN: True, ActivationMode.RECOMPUTE: self.recompute, ActivationMode.OFFLOAD: self.offload}
        return [mode for mode in ActivationMode if can[mode]]


@dataclass(frozen=True)
class NextAttempt:
    """The next attempt, and the rung it stands on."""

    retry_step: RetryStep
    plan: Plan


def next_attempt(
    plan: Plan, options: RetryOptions, *, retry_same: bool = False, expected_fitting_rows: int | None = None
) -> NextAttempt | None:
    """What to try after `plan` failed; None: nothing is left.

    `retry_same`: the failure may have come from fragmentation or garbage, and this plan was not retried yet.
    `expected_fitting_rows`: how many rows are expected to fit, where that is known; without it pieces are halved.
    """
    if retry_same:
        return NextAttempt(RetryStep.FREE, plan)
    # Offloading is the slowest of all: everything that can be split is split before.
    recompute_next = options.recompute and not plan.recompute
    floor = max(1, min(options.floor_rows, options.rows)) if recompute_next else 1
    if options.split and plan.rows > floor:
        return NextAttempt(
            RetryStep.SPLIT, replace(plan, rows=max(floor, fewer_rows(options.rows, plan.rows, expected_fitting_rows)))
        )
    if recompute_next:
        return NextAttempt(RetryStep.RECOMPUTE, replace(plan, recompute=True))
    if options.offload and not plan.offload:
        return NextAttempt(RetryStep.OFFLOAD, replace(plan, offload=True))
    if options.reserve and not plan.without_reserve:
        return NextAttempt(RetryStep.RESERVE, replace(plan, without_reserve=True))
    return None


def fewer_rows(total: int, rows: int, expected_fitting_rows: int | None) -> int:
    """The next smaller size of a piece: twice the pieces, or as many as are expected to be needed, evenly filled."""
    pieces = -(-total // rows)
    wanted = 2 * pieces if not expected_fitting_rows else max(pieces + 1, -(-total // expected_fitting_rows))
    return max(1, min(rows - 1, -(-total // wanted)))


def piece_sizes(total: int, rows: int) -> list[int]:
    """Sizes of the pieces of `total` rows, none above `rows`, as even as can be, in order."""
    if total <= 0:
        return [total]
    pieces = -(-total // max(1, rows))
    size, more = divmod(total, pieces)
    return [size + 1] * more + [size] * (pieces - more)


def worth_retrying(wanted: int | None, allocated_at_failure: int | None, capacity: int | None, garbage: int | None) -> bool:
    """Whether the same plan may fit after freeing: unknown is a yes, a true peak is a no.

    There was room but not in one piece (fragmentation), or freeing dropped more garbage than was wanted.
    """
    if wanted is None or allocated_at_failure is None or capacity is None:
        return True
    return capacity - allocated_at_failure >= wanted or (garbage is not None and garbage >= wanted)
