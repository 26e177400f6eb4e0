"""What the guard did, for the log; and the error for a step that does not fit at all. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


def gib(size_bytes: int | None) -> str:
    """Bytes as a person reads them; unknown stays unknown."""
    if size_bytes is None:
        return "unknown"
    return f"{size_bytes / 2**30:.2f} GiB" if size_bytes >= 2**28 else f"{size_bytes / 2**20:.1f} MiB"


@dataclass(frozen=True)
class GuardReport:
    """The guard's work so far.

    Attributes:
        calls: calls that were made.
        split_calls: calls that ran in more than one piece.
        ooms: attempts that ran out of memory.
        lost: calls that did not fit at all.
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
    saved: Mapping[str, int]
    retry_s: float
    safe_rows: Mapping[str, int]
    peak_bytes: int | None
    notes: Sequence[str]

    def __str__(self) -> str:
        saved = ", ".join(f"{count} by {rung}" for rung, count in self.saved.items() if count) or "none"
        lines = [
            f"farrier guard: {self.calls} calls, {self.ooms} out-of-memory, {sum(self.saved.values())} steps saved "
            f"({saved}), {self.lost} lost; {self.split_calls} ran in pieces; {self.retry_s:.1f} s in failed attempts; "
            f"highest peak {gib(self.peak_bytes)}"
        ]
        shown = list(self.safe_rows.items())[-5:]
        lines += [f"  most at once so far: {rows} rows of {shape}" for shape, rows in shown]
        if len(self.safe_rows) > len(shown):
            lines.append(f"  and {len(self.safe_rows) - len(shown)} shapes more")
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
        wanted_bytes: int | None,
        allocated_bytes: int | None,
        capacity_bytes: int | None,
        impossible: Sequence[str] = (),
    ) -> None:
        self.tried = list(tried)
        self.wanted_bytes = wanted_bytes
        self.allocated_bytes = allocated_bytes
        self.capacity_bytes = capacity_bytes
        lines = [
            f"a step does not fit into memory: {shape}",
            f"  wanted {gib(wanted_bytes)} more, {gib(allocated_bytes)} in use, {gib(capacity_bytes)} at most",
            "  tried: " + "; ".join(tried),
            *(f"  not tried: {reason}" for reason in impossible),
            "  gradients, random states and buffers are as before this step",
            "hint: see what was not tried and why; otherwise make rows shorter, or shard the model or its optimizer",
        ]
        super().__init__("\n".join(lines))


class RunsInPieces(RuntimeError):
    """A batch that the guard does not run as a whole was to be captured. A graph would need the memory of the whole."""

    def __init__(self, shape: str, plan: str) -> None:
        super().__init__(f"the guard runs {shape} in {plan}, and a graph would need memory for the whole at once")
