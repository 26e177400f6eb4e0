"""When a step is captured and verified, and when graphs are disabled. Pure: no torch, no clock."""

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
            which reorders its buckets in the first ones).
        min_occurrences: how often a shape must occur before it gets its own graph.
        max_graphs: how many graphs are kept. To make room, the least recently used graph that has
            paid for its capture is evicted.
        break_even_replays: after this many replays, a graph has saved more time than its capture
            took. A graph with fewer replays is not evicted for another shape, unless it was idle
            for `break_even_replays` times `max_graphs` calls. Until then, the other shape runs
            eagerly.
        max_shapes: if this many distinct shapes occur and none of them twice, graphs are disabled.
        min_speedup: a graph is captured only if its estimated speed-up is at least this (1.01 is
            one per cent).
        verify_every: every `verify_every`-th replay is compared with an eager step, and so are
            replays 1, 2, 4, 8 ... None chooses the interval by cost (`verify_interval`).
        profile: whether to profile one eager step, to estimate the speed-up beforehand.
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

    If the shapes differ between ranks, all of them run eagerly. The collectives inside a graph can
    only pair with those of the same graph on the other ranks.
    """
    return CallAction.EAGER if highest <= CallAction.CAPTURE and not same_shape else highest


def may_evict(replays: int, idle_calls: int, policy: Policy) -> bool:
    """Whether a graph has paid for its capture or is idle, so that it may be evicted."""
    return replays >= policy.break_even_replays or idle_calls >= policy.break_even_replays * policy.max_graphs


def is_early(count: int, every: int) -> bool:
    """Whether `count` is one of the early comparisons, at 1, 2, 4, 8 ... below `every`.

    Early comparisons are frequent, because they find the most likely error: a Python number that
    changes between steps, but is a constant in the graph.
    """
    return count < every and count & (count - 1) == 0


def verification_due(count: int, every: int) -> bool:
    """Whether step number `count`, from 1, is compared: the early ones, and every `every`-th."""
    return is_early(count, every) or count % every == 0


#: Comparisons take at most this share of the time of the replays between them.
VERIFY_SHARE = 0.003
#: Comparisons are at least this many replays apart, after the early ones.
VERIFY_STEPS = 1000
#: Comparisons are at most this many seconds of replays apart, unless `VERIFY_STEPS` replays take
#: longer.
VERIFY_WITHIN_S = 120.0


def verify_interval(comparison_s: float, step_s: float) -> int:
    """Returns the number of replays between two comparisons.

    It is small enough to find a wrong graph soon, and large enough to stay cheap. `VERIFY_STEPS`
    and `VERIFY_WITHIN_S` override `VERIFY_SHARE`: slow steps are compared every `VERIFY_STEPS`
    replays, whatever that costs.
    """
    if not (step_s > 0 and 0 <= comparison_s < math.inf):
        return VERIFY_STEPS  # A broken clock must not prevent comparisons.
    by_cost = comparison_s / (VERIFY_SHARE * step_s)
    return max(VERIFY_STEPS, math.ceil(min(by_cost, VERIFY_WITHIN_S / step_s)))


@dataclass
class VerifySchedule:
    """When replays of one graph are compared with eager steps.

    `every` is the interval that the user chose. If it is None, the interval depends on the cost.
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
        """Records the duration of a comparison and of the replay that was compared.

        The fastest replay so far counts as the step time.
        """
        self._last_replay, self._comparison_s, self._step_s = replay, comparison_s, min(step_s, self._step_s)
        if self.every is None:
            self.interval = verify_interval(comparison_s, self._step_s)

    @property
    def cost_share(self) -> float | None:
        """Share of time spent on comparisons at this interval. None if not measured."""
        if not self._comparison_s:
            return None
        return self._comparison_s / (self._comparison_s + self.interval * self._step_s)


@dataclass(frozen=True)
class StepTiming:
    """Timing of one eager step, on the host and on the GPU.

    `busy_s` is the time during which a kernel or copy ran. `busy_s` and `launches` are None if the
    step was not profiled.
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

    `relative` limits ||a - b|| / ||b|| of one gradient. ||b|| counts as at least `floor` times the
    norm of all gradients, because a tiny gradient may be nothing but noise.
    """

    relative: float
    floor: float = 1e-3

    def allows(self, difference: float, norm: float, total_norm: float) -> bool:
        """Whether a gradient with this norm may differ by this much. NaN is never allowed."""
        return difference <= self.relative * max(norm, self.floor * total_norm)


#: Mantissa bits by dtype. The rounding error of one operation is 2**-(bits + 1).
FRACTION_BITS = {"float64": 52, "float32": 23, "bfloat16": 7, "float16": 10}


#: Roundings that another order of summation explains: between two eager runs of one batch, or
#: between a padded and an unpadded batch.
OTHER_ORDER = 8
#: Roundings allowed for the same kernels on the same numbers.
SAME_ORDER = 1


def tolerance_for(dtype: str, *, roundings: int = SAME_ORDER) -> Tolerance:
    """Tolerance of `roundings` roundings of a dtype. float32 matmuls may run in TF32 (10 bits)."""
    if dtype not in FRACTION_BITS:
        raise ValueError(f"no known tolerance for gradients of {dtype}")
    bits = min(FRACTION_BITS[dtype], 10) if dtype == "float32" else FRACTION_BITS[dtype]
    return Tolerance(relative=roundings * 2.0 ** -(bits + 1))


def coarsest(dtypes: Iterable[str]) -> str:
    """The dtype with the fewest mantissa bits."""
    return min(dtypes, key=lambda dtype: FRACTION_BITS.get(dtype, 0), default="float32")
