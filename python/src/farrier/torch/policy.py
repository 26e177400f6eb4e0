"""When a step is captured, verified and given up. Pure: no torch, no clock."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum


@dataclass(frozen=True)
class Policy:
    """What the user decides.

    Attributes:
        warmups: eager steps before the first capture (at least 11 under DistributedDataParallel, which reorders its
            buckets in the first ones).
        sights: how often a shape must have been seen before it gets a graph of its own.
        graphs: how many graphs are kept; the one unused for longest goes, once it has paid.
        pays: so many replays pay for a capture. A graph that has not paid yet does not go for another shape, unless it
            was unused for `break_even_replays` times `max_graphs` calls; until then the other shape runs eagerly.
        shapes: so many shapes without one that comes back, and the step is said to change its shape every time.
        gain: the least speed-up for which a graph is made (1.01: one per cent).
        verify_every: replays between two comparisons with an eager step; besides, replays 1, 2, 4, 8 ... are compared.
            None: by what they cost (`verify_interval`).
        profile: whether one eager step is measured with the profiler, to say beforehand what a graph would bring.
    """

    warmups: int = 3
    min_occurrences: int = 2
    max_graphs: int = 8
    break_even_replays: int = 32
    max_shapes: int = 32
    min_speedup: float = 1.01
    verify_every: int | None = None
    profile: bool = True

    def __post_init__(self) -> None:
        for name in ("warmups", "min_occurrences", "max_graphs", "break_even_replays", "max_shapes", "verify_every"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}, and must be 1 or more")


class CallAction(IntEnum):
    """What a call of the step does. Where ranks differ the highest is what all of them do."""

    REPLAY = 0
    VERIFY = 1
    CAPTURE = 2
    WARM_UP = 3
    EAGER = 4
    DISABLE = 5


def joint_action(highest: CallAction, *, same_shape: bool) -> CallAction:
    """What all ranks do. Graphs are for batches of one shape on all of them: a graph's reductions meet a graph's."""
    return CallAction.EAGER if highest <= CallAction.CAPTURE and not same_shape else highest


def may_evict(replays: int, idle_calls: int, policy: Policy) -> bool:
    """Whether a graph may be given up for another shape: it has paid for its capture, or nobody needs it any more."""
    return replays >= policy.break_even_replays or idle_calls >= policy.break_even_replays * policy.max_graphs


def is_early(count: int, every: int) -> bool:
    """Whether it is one of the first, which are compared at 1, 2, 4, 8 ... below `every`.

    Early ones often, because what is baked in (a Python number that changes) shows within a few steps.
    """
    return count < every and count & (count - 1) == 0


def verification_due(count: int, every: int) -> bool:
    """Whether the one of that number (the first is 1) is compared: early ones, and each `every`-th."""
    return is_early(count, every) or count % every == 0


#: Comparisons take at most this share of the time of the replays between them ...
VERIFY_SHARE = 0.003
#: ... and need not be closer together than so many replays (after the early ones) ...
VERIFY_STEPS = 1000
#: ... nor may be further apart than replays of so many seconds, unless `VERIFY_STEPS` of them take longer.
VERIFY_WITHIN_S = 120.0


def verify_interval(comparison_s: float, step_s: float) -> int:
    """Replays from one comparison to the next: few enough to find a wrong graph soon, so many that it costs little.

    Both bounds go before the share: slow steps are compared every `VERIFY_STEPS`, whatever that costs.
    """
    if not (step_s > 0 and 0 <= comparison_s < math.inf):
        return VERIFY_STEPS  # No clock is to keep a graph from being compared.
    by_cost = comparison_s / (VERIFY_SHARE * step_s)
    return max(VERIFY_STEPS, math.ceil(min(by_cost, VERIFY_WITHIN_S / step_s)))


@dataclass
class VerifySchedule:
    """When the replays of one graph are compared with eager steps. `every` is the user's number; None: by cost."""

    every: int | None
    interval: int = VERIFY_STEPS
    _last_replay: int = 0
    _comparison_s: float | None = None
    _step_s: float = math.inf

    def __post_init__(self) -> None:
        self.interval = self.every or VERIFY_STEPS

    def due(self, replay: int) -> bool:
        """Whether the replay of that number (the first is 1) is compared."""
        if self.every is not None:
            return verification_due(replay, self.every)
        return is_early(replay, VERIFY_STEPS) or replay - self._last_replay >= self.interval

    def record_comparison(self, replay: int, comparison_s: float, step_s: float) -> None:
        """What the comparison of that replay took, and the replay itself. The quickest replay is what one takes."""
        self._last_replay, self._comparison_s, self._step_s = replay, comparison_s, min(step_s, self._step_s)
        if self.every is None:
            self.interval = verify_interval(comparison_s, self._step_s)

    @property
    def cost_share(self) -> float | None:
        """What comparisons take at this pace, of the time with them; None: not measured."""
        if not self._comparison_s:
            return None
        return self._comparison_s / (self._comparison_s + self.interval * self._step_s)


@dataclass(frozen=True)
class StepTiming:
    """One eager step: what the host needed for it and what the GPU needed.

    `busy_s` is the time in which a kernel or copy ran; None where no profiler could say. `launches` likewise.
    """

    wall_s: float
    enqueue_s: float
    busy_s: float | None = None
    launches: int | None = None
    launch_s: float | None = None

    @property
    def gain(self) -> float | None:
        """How many times faster the step would be if the GPU never waited for the host; None: not known."""
        if self.busy_s is not None and self.busy_s > 0:
            return max(1.0, self.wall_s / self.busy_s)
        if self.enqueue_s < 0.5 * self.wall_s:
            return 1.0  # The host was done long before the GPU: it is not what the step waits for.
        return None

    def __str__(self) -> str:
        busy = "unknown" if self.busy_s is None else f"{100 * self.busy_s / self.wall_s:.0f} %"
        how = "timed" if self.busy_s is None else "profiled"
        gain = "is unknown" if self.gain is None else f"is about {self.gain:.2f}x, by one {how} step"
        launches = "" if self.launches is None else f", {self.launches} launches"
        if self.launch_s is not None:
            launches += f" ({1e3 * self.launch_s:.2f} ms in the launching calls)"
        return f"eager step {1e3 * self.wall_s:.2f} ms, GPU busy {busy}{launches}; what a graph brings {gain}"


@dataclass(frozen=True)
class Tolerance:
    """How far gradients of one batch may lie apart.

    `relative` is the largest ||a - b|| / ||b|| of one gradient, with ||b|| not below `floor` times the norm of all
    gradients: a gradient that is noise is not held to its own size.
    """

    relative: float
    floor: float = 1e-3

    def allows(self, difference: float, norm: float, whole: float) -> bool:
        """Whether a gradient of that norm may differ by that much. What is no number never may."""
        return difference <= self.relative * max(norm, self.floor * whole)


#: Bits of the fraction, by dtype: rounding of one step is 2**-(bits + 1).
FRACTION_BITS = {"float64": 52, "float32": 23, "bfloat16": 7, "float16": 10}


#: What a sum in another order explains: two eager runs of one batch, or of one batch padded and as it came.
OTHER_ORDER = 8
#: What the same kernels on the same numbers may differ by.
SAME_ORDER = 1


def tolerance_for(dtype: str, *, roundings: int = SAME_ORDER) -> Tolerance:
    """What so many roundings of that type explain; for 32-bit types the products may be of TF32 (10 bits)."""
    if dtype not in FRACTION_BITS:
        raise ValueError(f"no tolerance is known for gradients of {dtype}")
    bits = min(FRACTION_BITS[dtype], 10) if dtype == "float32" else FRACTION_BITS[dtype]
    return Tolerance(relative=roundings * 2.0 ** -(bits + 1))


def coarsest(dtypes: Iterable[str]) -> str:
    """The type with the fewest bits of fraction."""
    return min(dtypes, key=lambda dtype: FRACTION_BITS.get(dtype, 0), default="float32")
