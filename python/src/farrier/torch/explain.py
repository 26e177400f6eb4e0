"""Why a step cannot be captured, in words, with the line of the user's code that does it."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import TracebackType

from farrier.torch.comparison import Comparison
from farrier.torch.guard_report import NotCapturable

#: Folders whose frames are not the user's code.
_NOT_THE_USERS = ("/site-packages/", "/dist-packages/", "/lib/python3", "/farrier/torch/", "<frozen")

#: What a message of torch or CUDA means for a capture, and what to do. The first that matches counts.
_MEANINGS: tuple[tuple[str, str, str], ...] = (
    (
        "synchronizing CUDA operation",
        "it waits for the GPU (`.item()`, `.cpu()`, `.tolist()`, `float(t)`, `if t:`, `nonzero`, a mask as index)",
        "keep the value on the GPU and read it outside of the step; choose with torch.where instead of `if`",
    ),
    (
        "operation not permitted when stream is capturing",
        "it does what no capture allows: it waits for the GPU, or works on a stream that takes no part in the capture",
        "move it out of the step; let another stream wait for the current one first, other.wait_stream(current)",
    ),
    (
        "would make the legacy stream depend on a capturing",
        "it uses the default stream in between",
        "run everything on the current stream",
    ),
    (
        "unjoined work",
        "it starts work on another stream and does not wait for it",
        "join the other stream before the step ends: torch.cuda.current_stream().wait_stream(other)",
    ),
    (
        "dependency created on uncaptured work",
        "it waits for work of another stream that was queued before the step",
        "let the other stream wait for the current one first: other.wait_stream(torch.cuda.current_stream())",
    ),
    (
        "Cannot prepare for replay during capturing stage",
        "it replays another graph (a part compiled with mode reduce-overhead does)",
        "compile that part with mode default: the whole step is one graph already",
    ),
    (
        "Attempting CUDA graph capture of step() for an instance of",
        "its optimizer counts steps on the host",
        "use an optimizer of torch.optim with capturable=True",
    ),
    ("generator", "it draws random numbers of a generator that the graph does not know", "use the default generator"),
    ("out of memory", "there is no memory for it", "give less memory to others, or keep fewer graphs"),
)


class ReasonCode(Enum):
    """Reasons that programs may want to tell apart; all others are `OTHER`."""

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
    #: Whether batches of another shape may do better.
    shape_specific: bool = False
    code: ReasonCode = ReasonCode.OTHER

    def __str__(self) -> str:
        location = f" at {self.location}" if self.location else ""
        return f"{self.cause}{location}. What helps: {self.remedy}"


def eager_runs_differ(comparison: Comparison) -> Reason:
    """Runs of the eager step differ by more than noise."""
    remedy = "the step must depend on nothing but the batch, the model, the optimizer and torch's random numbers"
    return Reason(f"two eager runs of one batch differ: {comparison}", remedy, code=ReasonCode.EAGER_RUNS_DIFFER)


def comparison_failed(comparison: Comparison, replays: int) -> Reason:
    """A comparison that was not passed, after so many replays."""
    if comparison.too_noisy:
        cause = f"eager runs of one batch differ so much that a gradient wrong by 1 % would not be found: {comparison}"
        remedy = "use deterministic kernels (torch.use_deterministic_algorithms), or compute in a more precise type"
        return Reason(cause, remedy, code=ReasonCode.NOISE_TOO_LARGE)
    if comparison.eager_runs_differ:
        return eager_runs_differ(comparison)
    cause = f"graph and eager step differ after {replays} replays: {comparison}"
    remedy = "the step uses what a graph bakes in: a Python number that changes, state beside model and optimizer"
    return Reason(cause, remedy, code=ReasonCode.GRAPH_DIFFERS)


class GraphsDisabled(Exception):
    """There is no graph, and why. The batch was not trained on."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(str(reason))
        self.reason = reason


def user_frame(trace: TracebackType | None) -> str | None:
    """The innermost line that is the user's own, as `file:line: code`."""
    frames = [frame for frame in traceback.extract_tb(trace) if not any(part in frame.filename for part in _NOT_THE_USERS)]
    if not frames:
        return None
    last = frames[-1]
    return f"{Path(last.filename).name}:{last.lineno}: {last.line}"


def explain_error(err: BaseException) -> Reason:
    """What an exception in a capture, or in the run before it, means."""
    text = str(err)
    location = user_frame(err.__traceback__)
    if isinstance(err, NotCapturable):
        return Reason(text, "fewer or shorter rows, or more memory", shape_specific=True)
    for marker, cause, remedy in _MEANINGS:
        if marker.lower() in text.lower():
            return Reason(f"the step cannot be captured: {cause}", remedy, location)
    first = text.splitlines()[0] if text else type(err).__name__
    return Reason(
        f"the step cannot be captured: {type(err).__name__}: {first}", "see the line, or run it with graph=False", location
    )
