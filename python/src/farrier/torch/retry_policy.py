"""What to try after a step ran out of memory. Pure: no torch, no clock.

    free --> split ... split --> recompute (--> split ...) --> offload --> reserve --> does not fit

Splitting comes first. It costs almost nothing as long as a micro-batch is large enough to use the
whole GPU (some thousand tokens). Recomputing costs a second forward pass, about a third more work.
Micro-batches of fewer than `floor_rows` rows are too small to use the whole GPU, so recomputing
comes before splitting further.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum


class RetryStep(str, Enum):
    """One measure to try."""

    FREE = "free"
    SPLIT = "split"
    RECOMPUTE = "recompute"
    OFFLOAD = "offload"
    RESERVE = "reserve"


class ActivationMode(str, Enum):
    """How activations are kept until backward."""

    PLAIN = "plain"
    RECOMPUTE = "recompute"
    OFFLOAD = "offload"


@dataclass(frozen=True)
class Plan:
    """How one call runs: the maximum rows per micro-batch, and the measures that make them fit."""

    rows: int
    recompute: bool = False
    offload: bool = False
    without_reserve: bool = False

    @property
    def mode(self) -> ActivationMode:
        """The mode under which this plan's sizes are recorded."""
        if self.offload:
            return ActivationMode.OFFLOAD
        return ActivationMode.RECOMPUTE if self.recompute else ActivationMode.PLAIN

    def __str__(self) -> str:
        parts = [f"micro-batches of {self.rows} row{'' if self.rows == 1 else 's'}"]
        parts += [name for name, used in (("recompute", self.recompute), ("offload", self.offload)) if used]
        parts += ["reserve released"] if self.without_reserve else []
        return ", ".join(parts)


@dataclass(frozen=True)
class RetryOptions:
    """The measures available in this call."""

    rows: int
    split: bool = True
    recompute: bool = True
    offload: bool = True
    reserve: bool = False
    floor_rows: int = 1

    def plan(self, mode: ActivationMode, rows: int) -> Plan:
        """Returns the plan for an activation mode.

        Offloading also recomputes, if recomputing is available.
        """
        recompute = self.recompute and mode is not ActivationMode.PLAIN
        return Plan(rows, recompute=recompute, offload=mode is ActivationMode.OFFLOAD)

    def modes(self) -> list[ActivationMode]:
        """The available modes, cheapest first."""
        can = {ActivationMode.PLAIN: True, ActivationMode.RECOMPUTE: self.recompute, ActivationMode.OFFLOAD: self.offload}
        return [mode for mode in ActivationMode if can[mode]]


@dataclass(frozen=True)
class NextAttempt:
    """The next plan, and the measure that led to it."""

    retry_step: RetryStep
    plan: Plan


def next_attempt(
    plan: Plan, options: RetryOptions, *, retry_same: bool = False, expected_fitting_rows: int | None = None
) -> NextAttempt | None:
    """Returns what to try after `plan` failed, or None if nothing is left.

    `retry_same`: fragmentation or garbage may have caused the failure, and this plan was not
    retried yet. `expected_fitting_rows`: the number of rows that should fit. If None, micro-batches
    are halved.
    """
    if retry_same:
        return NextAttempt(RetryStep.FREE, plan)
    # Offloading is the slowest measure, so split as far as possible before it.
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
    """Returns the next smaller micro-batch size: half, or the number of rows that should fit."""
    micro_batches = -(-total // rows)
    next_micro_batches = (
        2 * micro_batches if not expected_fitting_rows else max(micro_batches + 1, -(-total // expected_fitting_rows))
    )
    return max(1, min(rows - 1, -(-total // next_micro_batches)))


def micro_batch_sizes(total: int, rows: int) -> list[int]:
    """Splits `total` rows into the fewest micro-batches of at most `rows`, of similar sizes."""
    if total <= 0:
        return [total]
    micro_batches = -(-total // max(1, rows))
    size, larger = divmod(total, micro_batches)
    return [size + 1] * larger + [size] * (micro_batches - larger)


def worth_retrying(
    requested_bytes: int | None, allocated_at_failure: int | None, capacity: int | None, garbage: int | None
) -> bool:
    """Whether the same plan may fit after freeing memory. True if that is unknown.

    It may fit if enough memory was free but not contiguous (fragmentation), or if freeing garbage
    released at least the requested amount.
    """
    if requested_bytes is None or allocated_at_failure is None or capacity is None:
        return True
    return capacity - allocated_at_failure >= requested_bytes or (garbage is not None and garbage >= requested_bytes)
