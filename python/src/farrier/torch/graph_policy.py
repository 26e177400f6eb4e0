"""Decides when a step is captured and verified, and when graphs are disabled.

Pure: no torch, no clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum


@dataclass(frozen=True)
class Policy:
    """User settings for graphs.

    Attributes:
        warmups: eager steps before the first capture (at least 11 under DistributedDataParallel,
            which reorders its buckets in the first steps).
        min_occurrences: how often a shape must occur before it gets its own graph.
        max_graphs: maximum number of graphs. The least recently used graph is evicted when its
            replays have saved more time than its capture took.
        break_even_replays: number of replays that save as much time as a capture takes. A graph
            with fewer replays is evicted for another shape only if it was not used for
            `break_even_replays` times `max_graphs` calls. Until then the other shape runs eagerly.
        max_shapes: if this many distinct shapes occur and none occurs again, graphs are disabled,
            because every batch has another shape.
        min_speedup: the least estimated speed-up for which a graph is captured (1.01: one per
            cent).
        verify_every: replays between two comparisons with an eager step; replays 1, 2, 4, 8 and so
            on are compared as well. None chooses the interval by cost (`verify_interval`).
        profile: whether to profile one eager step, to estimate the speed-up before the capture.
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
                raise ValueError(f"{name} is {value}; it must be 1 or more")


class CallAction(IntEnum):
    """What a call of the step does. If ranks propose different actions, all perform the highest."""

    REPLAY = 0
    VERIFY = 1
    CAPTURE = 2
    WARM_UP = 3
    EAGER = 4
    DISABLE = 5


def joint_action(highest: CallAction, *, same_shape: bool) -> CallAction:
    """Returns the action for all ranks.

    Graphs need the same shape on every rank, because the collectives in a graph must pair with
    those in the graphs of the other ranks.
    """
    return CallAction.EAGER if highest <= CallAction.CAPTURE and not same_shape else highest


def may_evict(replays: int, idle_calls: int, policy: Policy) -> bool:
    """Whether a graph may be evicted for another shape, by its replays and its idle time."""
    return replays >= policy.break_even_replays or idle_calls >= policy.break_even_replays * policy.max_graphs


def is_early(count: int, every: int) -> bool:
    """Whether `count` is one of the early comparisons, at 1, 2, 4, 8 ... below `every`.

    Early comparisons are frequent, because an error such as a Python number that changes but was
    captured as a constant shows within a few steps.
    """
    return count < every and count & (count - 1) == 0


def verification_due(count: int, every: int) -> bool:
    """Whether run number `count`, starting at 1, is compared: early runs and every `every`-th."""
    return is_early(count, every) or count % every == 0


#: A comparison takes at most this share of the time of the replays between two comparisons. The two
#: limits below take precedence.
VERIFY_SHARE = 0.003
#: After the early comparisons, at least this many replays lie between two comparisons.
VERIFY_STEPS = 1000
#: At most this many seconds of replays lie between two comparisons, unless `VERIFY_STEPS` replays
#: take longer.
VERIFY_WITHIN_S = 120.0


def verify_interval(comparison_s: float, step_s: float) -> int:
    """Replays between two comparisons, so that a wrong graph is found soon at a low cost.

    `VERIFY_STEPS` and `VERIFY_WITHIN_S` override `VERIFY_SHARE`: slow steps are compared every
    `VERIFY_STEPS` replays, whatever a comparison costs.
    """
    if not (step_s > 0 and 0 <= comparison_s < math.inf):
        return VERIFY_STEPS  # A broken clock must not prevent comparisons.
    by_cost = comparison_s / (VERIFY_SHARE * step_s)
    return max(VERIFY_STEPS, math.ceil(min(by_cost, VERIFY_WITHIN_S / step_s)))


@dataclass
class VerifySchedule:
    """When replays of one graph are compared with eager steps.

    `every` is the user's interval; None chooses the interval by cost.
    """

    every: int | None
    interval: int = VERIFY_STEPS
    _last_replay: int = 0
    _comparison_s: float | None = None
    _step_s: float = math.inf

    def __post_init__(self) -> None:
        self.interval = self.every or VERIFY_STEPS

    def due(self, replay: int) -> bool:
        """Whether replay number `replay`, starting at 1, is compared."""
        if self.every is not None:
            return verification_due(replay, self.every)
        return is_early(replay, VERIFY_STEPS) or replay - self._last_replay >= self.interval

    def record_comparison(self, replay: int, comparison_s: float, step_s: float) -> None:
        """Records the duration of a comparison and of its replay.

        The fastest replay counts as the step time.
        """
        self._last_replay, self._comparison_s, self._step_s = replay, comparison_s, min(step_s, self._step_s)
        if self.every is None:
            self.interval = verify_interval(comparison_s, self._step_s)

    @property
    def cost_share(self) -> float | None:
        """Share of time that comparisons take at this interval. None if none was made yet."""
        if not self._comparison_s:
            return None
        return self._comparison_s / (self._comparison_s + self.interval * self._step_s)


@dataclass(frozen=True)
class StepTiming:
    """Timing of one eager step, on the host and on the GPU.

    `busy_s` is the time during which a kernel or a copy ran. `busy_s` and `launches` are None if
    the step was not profiled.
    """

    wall_s: float
    enqueue_s: float
    busy_s: float | None = None
    launches: int | None = None
    launch_s: float | None = None

    @property
    def gain(self) -> float | None:
        """Estimated speed-up if the GPU never waited for the host. None if unknown."""
        if self.busy_s is not None and self.busy_s > 0:
            return max(1.0, self.wall_s / self.busy_s)
        if self.enqueue_s < 0.5 * self.wall_s:
            return 1.0  # The host finished long before the GPU, so it is not the bottleneck.
        return None

    def __str__(self) -> str:
        busy = "unknown" if self.busy_s is None else f"{100 * self.busy_s / self.wall_s:.0f} %"
        how = "timed" if self.busy_s is None else "profiled"
        gain = "is unknown" if self.gain is None else f"is about {self.gain:.2f}x, by one {how} step"
        launches = "" if self.launches is None else f", {self.launches} launches"
        if self.launch_s is not None:
            launches += f" ({1e3 * self.launch_s:.2f} ms in the launching calls)"
        return f"eager step {1e3 * self.wall_s:.2f} ms, GPU busy {busy}{launches}; estimated graph speed-up {gain}"


@dataclass(frozen=True)
class Tolerance:
    """Allowed distance between gradients of one batch.

    `relative` limits ||a - b|| / ||b|| of each gradient. There ||b|| counts as at least `floor`
    times the norm of all gradients together, because a tiny gradient may consist of noise only.
    """

    relative: float
    floor: float = 1e-3

    def allows(self, difference: float, norm: float, total_norm: float) -> bool:
        """Whether a gradient with norm `norm` may differ by `difference`. NaN is never allowed."""
        return difference <= self.relative * max(norm, self.floor * total_norm)


#: Mantissa bits by dtype. One operation rounds by up to 2**-(bits + 1).
FRACTION_BITS = {"float64": 52, "float32": 23, "bfloat16": 7, "float16": 10}


#: Number of roundings by which two runs may differ if they add in another order, such as two eager
#: runs of one batch, or a padded and an unpadded run.
OTHER_ORDER = 8
#: Number of roundings by which two runs may differ if they use the same kernels on the same
#: numbers.
SAME_ORDER = 1


def tolerance_for(dtype: str, *, roundings: int = SAME_ORDER) -> Tolerance:
    """Tolerance of `roundings` roundings in that dtype.

    float32 counts as 10 bits, because its matmuls may run in TF32.
    """
    if dtype not in FRACTION_BITS:
        raise ValueError(f"no known tolerance for gradients of {dtype}")
    bits = min(FRACTION_BITS[dtype], 10) if dtype == "float32" else FRACTION_BITS[dtype]
    return Tolerance(relative=roundings * 2.0 ** -(bits + 1))


def coarsest(dtypes: Iterable[str]) -> str:
    """The dtype with the fewest mantissa bits."""
    return min(dtypes, key=lambda dtype: FRACTION_BITS.get(dtype, 0), default="float32")
