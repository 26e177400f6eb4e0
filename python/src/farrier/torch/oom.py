"""Which errors are out-of-memory, what they say, and how to let go of what they hold."""

from __future__ import annotations

import re
import traceback
from dataclasses import dataclass

import torch

from farrier.oom import GPU_OOM, HOST_OOM, bytes_wanted, parse_bytes

#: A collective that died of memory has left the other ranks alone with it: no retry on one rank mends that.
_COLLECTIVE = re.compile("nccl|gloo", re.IGNORECASE)
_ALLOCATED = re.compile(r"([\d.]+ (?:bytes|KiB|MiB|GiB)) is allocated by PyTorch")


@dataclass(frozen=True)
class OomFailure:
    """An attempt that ran out of memory. Holds no tensor and no frame."""

    message: str
    requested_bytes: int | None
    allocated_bytes: int | None


def parse_oom(error: BaseException) -> OomFailure | None:
    """What an error says of memory; None for every other error."""
    message = str(error)
    if not isinstance(error, torch.OutOfMemoryError):
        if not isinstance(error, RuntimeError) or _COLLECTIVE.search(message):
            return None
        # The host's memory, too: to split helps there as well.
        if not (GPU_OOM.search(message) or HOST_OOM.search(message)):
            return None
    first_line = message.strip().splitlines()[0] if message.strip() else type(error).__name__
    allocated = _ALLOCATED.search(message)
    return OomFailure(first_line, bytes_wanted(message), parse_bytes(allocated[1]) if allocated else None)


#: What is said to those whose step ran out of memory.
GUARD = "hint: farrier.torch.guard(loss_fn, model=model) around forward and backward keeps such a step (docs/training.md)"


def add_guard_hint(error: BaseException) -> None:
    """Adds to an error that the GPU's memory ran out what helps against it."""
    if isinstance(error, torch.OutOfMemoryError) and GUARD not in str(error):
        error.args = (f"{error}\n{GUARD}", *error.args[1:])


def clear_frames(error: BaseException) -> None:
    """Clears the frames of an error and of those it came from: their locals hold the activations of the failed attempt."""
    visited: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        each = pending.pop()
        if each is None or id(each) in visited:
            continue
        visited.add(id(each))
        traceback.clear_frames(each.__traceback__)
        each.__traceback__ = None
        pending += [each.__cause__, each.__context__]
