"""Explains why a step cannot be captured, and names the line of the user's code."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import TracebackType

from farrier.torch.comparison import Comparison
from farrier.torch.guard_report import NotCapturable

#: Path fragments of frames that are not the user's code.
_NOT_THE_USERS = ("/site-packages/", "/dist-packages/", "/lib/python3", "/farrier/torch/", "<frozen")

#: For each kind of error: part of the message of torch or CUDA, the cause, and the remedy. The
#: first entry that matches an error is used.
_MEANINGS: tuple[tuple[str, str, str], ...] = (
    (
        "synchronizing CUDA operation",
        "it waits for the GPU (`.item()`, `.cpu()`, `.tolist()`, `float(t)`, `if t:`, `nonzero`, boolean indexing)",
        "keep the value on the GPU and read it outside the step; use torch.where instead of `if`",
    ),
    (
        "operation not permitted when stream is capturing",
        "it does something that a capture forbids: it waits for the GPU, or uses a stream outside the capture",
        "move it out of the step; make the other stream wait for the current one first, other.wait_stream(current)",
    ),
    (
        "would make the legacy stream depend on a capturing",
        "it uses the default stream",
        "run everything on the current stream",
    ),
    (
        "unjoined work",
        "it starts work on another stream and does not wait for it",
        "join the other stream before the step ends: torch.cuda.current_stream().wait_stream(other)",
    ),
    (
        "dependency created on uncaptured work",
        "it waits for work that another stream queued before the step",
        "make the other stream wait for the current one first: other.wait_stream(torch.cuda.current_stream())",
    ),
    (
        "Cannot prepare for replay during capturing stage",
        "it replays another graph (as code compiled with mode reduce-overhead does)",
        "compile that part with the default mode: the whole step is already one graph",
    ),
    (
        "Attempting CUDA graph capture of step() for an instance of",
        "its optimizer counts steps on the host",
        "use an optimizer of torch.optim with capturable=True",
    ),
    (
        "generator",
        "it draws random numbers from a generator that is not registered with the graph",
        "use the default generator",
    ),
    ("out of memory", "there is not enough memory", "free memory elsewhere, or keep fewer graphs"),
)


class ReasonCode(Enum):
    """Codes of reasons that programs may distinguish; all others are `OTHER`."""

    EAGER_RUNS_DIFFER = "eager-runs-differ"
    GRAPH_DIFFERS = "graph-differs"
    NOISE_TOO_LARGE = "noise-too-large"
    OTHER = "other"


@dataclass(frozen=True)
class Reason:
    """Why a step runs eagerly."""

    cause: str
    remedy: str
    location: str | None = None
    #: Whether batches of another shape may succeed.
    shape_specific: bool = False
    code: ReasonCode = ReasonCode.OTHER

    def __str__(self) -> str:
        location = f" at {self.location}" if self.location else ""
        return f"{self.cause}{location}. Remedy: {self.remedy}"


def eager_runs_differ(comparison: Comparison) -> Reason:
    """The reason if eager runs differ by more than noise."""
    remedy = "the step may depend only on the batch, the model, the optimizer and torch's random numbers"
    return Reason(f"two eager runs of one batch differ: {comparison}", remedy, code=ReasonCode.EAGER_RUNS_DIFFER)


def comparison_failed(comparison: Comparison, replays: int) -> Reason:
    """The reason for graphs being disabled after a comparison that failed."""
    if comparison.too_noisy:
        cause = f"eager runs of one batch differ so much that a gradient error of 1 % would go unnoticed: {comparison}"
        remedy = "use deterministic kernels (torch.use_deterministic_algorithms) or a more precise dtype"
        return Reason(cause, remedy, code=ReasonCode.NOISE_TOO_LARGE)
    if comparison.eager_runs_differ:
        return eager_runs_differ(comparison)
    cause = f"graph and eager step differ after {replays} replays: {comparison}"
    remedy = "keep changing Python numbers, and state outside model and optimizer, out of the step: a graph freezes them"
    return Reason(cause, remedy, code=ReasonCode.GRAPH_DIFFERS)


class GraphsDisabled(Exception):
    """Graphs are disabled, with the reason. The call did not train on its batch."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(str(reason))
        self.reason = reason


def user_frame(trace: TracebackType | None) -> str | None:
    """The innermost line of the user's own code, as `file:line: code`."""
    frames = [frame for frame in traceback.extract_tb(trace) if not any(part in frame.filename for part in _NOT_THE_USERS)]
    if not frames:
        return None
    last = frames[-1]
    return f"{Path(last.filename).name}:{last.lineno}: {last.line}"


def explain_error(err: BaseException) -> Reason:
    """Explains an exception raised in a capture, or in the dry run before it."""
    text = str(err)
    location = user_frame(err.__traceback__)
    if isinstance(err, NotCapturable):
        return Reason(text, "fewer or shorter rows, or more memory", shape_specific=True)
    for marker, cause, remedy in _MEANINGS:
        if marker.lower() in text.lower():
            return Reason(f"the step cannot be captured: {cause}", remedy, location)
    first = text.splitlines()[0] if text else type(err).__name__
    return Reason(
        f"the step cannot be captured: {type(err).__name__}: {first}", "see the line, or pass graph=False", location
    )
