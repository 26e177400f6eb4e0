"""Which errors are out-of-memory, what they say, and how to let go of what they hold."""

from __future__ import annotations

import re
import traceback
from dataclasses import dataclass

import torch

#: Errors that are no `torch.OutOfMemoryError` and still say that memory ran out. Lower case.
_SAYINGS = (
    "cuda out of memory",
    "cuda error: out of memory",
    "cublas_status_alloc_failed",
    "cudnn_status_alloc_failed",
    "hip out of memory",
    "defaultcpuallocator: can't allocate memory",
    "defaultcpuallocator: not enough memory",
)
#: A collective that died of memory has left the other ranks alone with it: no retry on one rank mends that.
_NEVER = ("nccl", "gloo")

_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_WANTED = re.compile(r"[Tt]ried to allocate ([\d.]+) (bytes|KiB|MiB|GiB)")
_ALLOCATED = re.compile(r"([\d.]+) (bytes|KiB|MiB|GiB) is allocated by PyTorch")


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
        said = message.lower()
        if not isinstance(error, RuntimeError) or any(word in said for word in _NEVER):
            return None
        if not any(saying in said for saying in _SAYINGS):
            return None
    first_line = message.strip().splitlines()[0] if message.strip() else type(error).__name__
    return Failure(first_line, _bytes(_WANTED, message), _bytes(_ALLOCATED, message))


def _bytes(pattern: re.Pattern[str], message: str) -> int | None:
    found = pattern.search(message)
    return int(float(found[1]) * _UNITS[found[2]]) if found else None


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
