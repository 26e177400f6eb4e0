"""The guard's report, and the error for a step that does not fit at all. Needs no torch."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from farrier.formatting import count_of
from farrier.torch.retry_policy import Plan, RetryStep

log = logging.getLogger("farrier.torch")


def gib(size_bytes: int | None) -> str:
    """Formats a number of bytes for a person. None becomes "unknown"."""
    if size_bytes is None:
        return "unknown"
    return f"{size_bytes / 2**30:.2f} GiB" if size_bytes >= 2**28 else f"{size_bytes / 2**20:.1f} MiB"


def describe_recovery(rows: int, shape: str, retry_step: RetryStep, plan: Plan, micro_batch_count: int) -> str:
    """Describes how batches of this shape run from now on, after `rows` rows ran out of memory."""
    if retry_step is RetryStep.FREE:
        return f"out of memory at {count_of(rows, 'row')} of {shape}: they ran after cached memory was freed"
    measures = [
        f"{micro_batch_count} micro-batches of {count_of(plan.rows, 'row')}"
        if micro_batch_count > 1
        else "all rows at once"
    ]
    measures += [name for name, used in (("recomputed", plan.recompute), ("offloaded to the host", plan.offload)) if used]
    if retry_step is RetryStep.RESERVE:
        return f"out of memory at {count_of(rows, 'row')} of {shape}: {', '.join(measures)} ran, with the reserve released"
    return f"out of memory at {count_of(rows, 'row')}: from here on {', '.join(measures)} for {shape}"


class ShapeWarnings:
    """Warns once per shape how its batches run from now on, because they became slower."""

    def __init__(self) -> None:
        self._warned_shapes: set[str] = set()

    def warn_once(self, rows: int, shape: str, retry_step: RetryStep | None, plan: Plan, micro_batch_count: int) -> None:
        """Logs a recovered step. `retry_step` is None if the plan succeeded at once."""
        if retry_step is not None and shape not in self._warned_shapes:
            self._warned_shapes.add(shape)
            log.warning("%s", describe_recovery(rows, shape, retry_step, plan, micro_batch_count))


@dataclass(frozen=True)
class GuardReport:
    """Statistics of a guard.

    Attributes:
        calls: number of calls.
        split_calls: calls that ran in more than one micro-batch.
        ooms: attempts that ran out of memory.
        lost: calls that did not fit at all, or that failed with another error after they ran out of
            memory.
        recovered: calls that ran out of memory and then succeeded, by the retry step that helped.
        retry_s: seconds spent in failed attempts.
        safe_rows: by shape and mode, the most rows that ran at once. More rows did not occur, or
            did not fit.
        peak_bytes: the highest measured peak.
        notes: notes for the user, once each.
    """

    calls: int
    split_calls: int
    ooms: int
    lost: int
    recovered: Mapping[str, int]
    retry_s: float
    safe_rows: Mapping[str, int]
    peak_bytes: int | None
    notes: Sequence[str]

    def __str__(self) -> str:
        recovered = ", ".join(f"{count} by {retry_step}" for retry_step, count in self.recovered.items() if count) or "none"
        lines = [
            f"farrier guard: {count_of(self.calls, 'call')}, {self.ooms} out-of-memory, "
            f"{count_of(sum(self.recovered.values()), 'step')} recovered ({recovered}), {self.lost} lost; "
            f"{self.split_calls} ran in micro-batches; {self.retry_s:.1f} s in failed attempts; "
            f"highest peak {gib(self.peak_bytes)}"
        ]
        shown = list(self.safe_rows.items())[-5:]
        lines += [f"  most at once so far: {count_of(rows, 'row')} of {shape}" for shape, rows in shown]
        if len(self.safe_rows) > len(shown):
            lines.append(f"  and {count_of(len(self.safe_rows) - len(shown), 'shape')} more")
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines)


class DoesNotFit(RuntimeError):
    """A step did not fit with any plan. Gradients, RNG states and buffers are as before the call.

    Attributes:
        tried: each attempt in order, with its plan.
        requested_bytes: size of the allocation that failed in the last attempt. None if the error
            does not state it.
        allocated_bytes: memory in use at that time.
        capacity_bytes: memory that tensors could use at most.
    """

    def __init__(
        self,
        tried: Sequence[str],
        *,
        shape: str,
        requested_bytes: int | None,
        allocated_bytes: int | None,
        capacity_bytes: int | None,
        not_tried: Sequence[str] = (),
    ) -> None:
        self.tried = list(tried)
        self.requested_bytes = requested_bytes
        self.allocated_bytes = allocated_bytes
        self.capacity_bytes = capacity_bytes
        lines = [
            f"a step does not fit into memory: {shape}",
            f"  requested {gib(requested_bytes)} more, {gib(allocated_bytes)} in use, {gib(capacity_bytes)} at most",
            "  tried: " + "; ".join(tried),
            *(f"  not tried: {reason}" for reason in not_tried),
            "  gradients, RNG states and buffers are as before this step",
            "hint: see `not tried` above; otherwise shorten rows, or shard the model or its optimizer",
        ]
        super().__init__("\n".join(lines))


class NotCapturable(RuntimeError):
    """The guard would not run this batch as one plain pass, which a graph needs."""

    def __init__(self, shape: str, plan: str) -> None:
        super().__init__(f"the guard runs {shape} in {plan}, but a graph needs memory for the whole batch at once")
