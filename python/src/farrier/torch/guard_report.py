"""What the guard did, for the log; and the error for a step that does not fit at all. Needs no torch."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from farrier.formatting import count_of
from farrier.torch.retry_policy import Plan, RetryStep

log = logging.getLogger("farrier.torch")


def gib(size_bytes: int | None) -> str:
    """Bytes as a person reads them; unknown stays unknown."""
    if size_bytes is None:
        return "unknown"
    return f"{size_bytes / 2**30:.2f} GiB" if size_bytes >= 2**28 else f"{size_bytes / 2**20:.1f} MiB"


def describe_recovery(rows: int, shape: str, retry_step: RetryStep, plan: Plan, pieces: int) -> str:
    """What is from now on done for batches of a shape of which so many rows ran out of memory."""
    if retry_step is RetryStep.FREE:
        return f"out of memory at {count_of(rows, 'row')} of {shape}: they ran once what was cached had been freed"
    how = [f"{pieces} pieces of {count_of(plan.rows, 'row')}" if pieces > 1 else "all rows at once"]
    how += [name for name, used in (("recomputed", plan.recompute), ("kept on the host", plan.offload)) if used]
    if retry_step is RetryStep.RESERVE:
        return f"out of memory at {count_of(rows, 'row')} of {shape}: {', '.join(how)} ran, with the ballast given up"
    return f"out of memory at {count_of(rows, 'row')}: from here on {', '.join(how)} for {shape}"


class ShapeWarnings:
    """How batches of a shape run from now on, in the log, once a shape: the step is slower, and nobody asked for it."""

    def __init__(self) -> None:
        self._warned_shapes: set[str] = set()

    def warn_once(self, rows: int, shape: str, retry_step: RetryStep | None, plan: Plan, pieces: int) -> None:
        """A step ended well, on that rung; None: it was planned so."""
        if retry_step is not None and shape not in self._warned_shapes:
            self._warned_shapes.add(shape)
            log.warning("%s", describe_recovery(rows, shape, retry_step, plan, pieces))


@dataclass(frozen=True)
class GuardReport:
    """The guard's work so far.

    Attributes:
        calls: calls that were made.
        split_calls: calls that ran in more than one piece.
        ooms: attempts that ran out of memory.
        lost: calls that did not fit at all, or failed with another error after memory had run out.
        saved: calls that ran out of memory and ended well, by the rung that saved them.
        retry_s: time spent in failed attempts.
        safe_rows: by shape and mode, the most rows that ran at once and fitted; more were not needed, or did not fit.
        peak_bytes: the highest peak that was measured.
        notes: what the user should know, once each.

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
            f"{count_of(sum(self.recovered.values()), 'step')} saved ({recovered}), {self.lost} lost; {self.split_calls} ran in "
            f"pieces; {self.retry_s:.1f} s in failed attempts; highest peak {gib(self.peak_bytes)}"
        ]
        shown = list(self.safe_rows.items())[-5:]
        lines += [f"  most at once so far: {count_of(rows, 'row')} of {shape}" for shape, rows in shown]
        if len(self.safe_rows) > len(shown):
            lines.append(f"  and {count_of(len(self.safe_rows) - len(shown), 'shape')} more")
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines)


class DoesNotFit(RuntimeError):
    """A step for which nothing helped. Gradients, random states and buffers are as before the call.

    Attributes:
        tried: each attempt in order, with what it was.
        wanted_bytes: what the last attempt asked for in vain, where it said so.
        allocated_bytes: what was in use then.
        capacity_bytes: what could be in use at most.

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
            f"  wanted {gib(requested_bytes)} more, {gib(allocated_bytes)} in use, {gib(capacity_bytes)} at most",
            "  tried: " + "; ".join(tried),
            *(f"  not tried: {reason}" for reason in not_tried),
            "  gradients, random states and buffers are as before this step",
            "hint: see what was not tried and why; otherwise make rows shorter, or shard the model or its optimizer",
        ]
        super().__init__("\n".join(lines))


class NotCapturable(RuntimeError):
    """A batch that the guard does not run as a whole was to be captured. A graph would need the memory of the whole."""

    def __init__(self, shape: str, plan: str) -> None:
        super().__init__(f"the guard runs {shape} in {plan}, and a graph would need memory for the whole at once")
