"""Which errors are out-of-memory, what they say, and how to let go of what they hold."""

from __future__ import annotations

import re
import traceback
from dataclasses import dataclass

import torch

from farrier.oom import OF_THE_GPU, OF_THE_HOST, amount, bytes_wanted

#: A collective that died of memory has left the other ranks alone with it: no retry on one rank mends that.
_OF_A_COLLECTIVE = re.compile("nccl|gloo", re.IGNORECASE)
_ALLOCATED = re.compile(r"([\d.]+ (?:bytes|KiB|MiB|GiB)) is allocated by PyTorch")


@dataclass(frozen=True)
class Failure:
    """An attempt that ran out of memory. Holds no tensor and no frame."""

    message: str
    wanted_bytes: int | None
    allocated_bytes: int | None


def failure_of(error: BaseException) -> Failure | None:
    """What an error says of memory; None for every other error."""
    message = str(error)
    if not isinstance(error, torch.OutOfMemoryError):
        if not isinstance(error, RuntimeError) or _OF_A_COLLECTIVE.search(message):
            return None
        # The host's memory, too: to split helps there as well.
        if not (OF_THE_GPU.search(message) or OF_THE_HOST.search(message)):
            return None
    first_line = message.strip().splitlines()[0] if message.strip() else type(error).__name__
    allocated = _ALLOCATED.search(message)
    return Failure(first_line, bytes_wanted(message), amount(allocated[1]) if allocated else None)


#: What is said to those whose step ran out of memory.
GUARD = "hint: farrier.torch.guard(loss_fn, model=model) around forward and backward keeps such a step (docs/training.md)"


def point_to_guard(error: BaseException) -> None:
    """Adds to an error that the GPU's memory ran out what helps against it."""
    if isinstance(error, torch.OutOfMemoryError) and GUARD not in str(error):
        error.args = (f"{error}\n{GUARD}", *error.args[1:])


def let_go(error: BaseException) -> None:
    """Clears the frames of an error and of those it came from: their locals hold the activations of the failed attempt."""
    met: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        each = waiting.pop()
        if each is None or id(each) in met:
            continue
        met.add(id(each))
        traceback.clear_frames(each.__traceback__)
        each.__traceback__ = None
        waiting += [each.__cause__, each.__context__]
