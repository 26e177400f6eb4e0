"""Recognises out-of-memory errors, parses them, and releases the memory that they reference."""

from __future__ import annotations

import re
import traceback
from dataclasses import dataclass

import torch

from farrier.oom import GPU_OOM, HOST_OOM, bytes_wanted, parse_bytes

#: If one rank runs out of memory inside a collective, the other ranks hang in it. A retry on one
#: rank does not help them.
_COLLECTIVE = re.compile("nccl|gloo", re.IGNORECASE)
_ALLOCATED = re.compile(r"([\d.]+ (?:bytes|KiB|MiB|GiB)) is allocated by PyTorch")


@dataclass(frozen=True)
class OomFailure:
    """An attempt that ran out of memory. Holds no reference to a tensor or a stack frame."""

    message: str
    requested_bytes: int | None
    allocated_bytes: int | None


def parse_oom(error: BaseException) -> OomFailure | None:
    """Parses an out-of-memory error. Returns None for any other error."""
    message = str(error)
    if not isinstance(error, torch.OutOfMemoryError):
        if not isinstance(error, RuntimeError) or _COLLECTIVE.search(message):
            return None
        # Also for host memory, because splitting the batch needs less of it too.
        if not (GPU_OOM.search(message) or HOST_OOM.search(message)):
            return None
    first_line = message.strip().splitlines()[0] if message.strip() else type(error).__name__
    allocated = _ALLOCATED.search(message)
    return OomFailure(first_line, bytes_wanted(message), parse_bytes(allocated[1]) if allocated else None)


#: Hint for a step that ran out of memory.
GUARD = (
    "hint: farrier.torch.guard(loss_fn, model=model) around forward and backward recovers such a step (docs/training.md)"
)


def add_guard_hint(error: BaseException) -> None:
    """Adds the guard hint to a GPU out-of-memory error."""
    if isinstance(error, torch.OutOfMemoryError) and GUARD not in str(error):
        error.args = (f"{error}\n{GUARD}", *error.args[1:])


def clear_frames(error: BaseException) -> None:
    """Clears the stack frames of an error and its causes. Their locals keep activations alive."""
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
