"""Detects GPU out-of-memory errors, and how many bytes were requested.

Every framework has its own error type. This module recognises errors by the name of their type and
by their message, so that it imports no framework. An error about host memory does not count.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from farrier import agent

#: How many errors of a chain of causes are inspected.
_CHAIN = 8

_UNITS = {"bytes": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}

#: PyTorch: "Tried to allocate 2.00 GiB"; XLA: "Out of memory while trying to allocate 4294967296
#: bytes" and, on the host client, "Out of memory allocating 4294967296 bytes".
_REQUESTED = re.compile(r"(?:to allocate|memory allocating)\s+([\d.]+\s*(?:bytes|[KMGT]iB))", re.IGNORECASE)
_AMOUNT = re.compile(r"([\d.]+)\s*(bytes|[KMGT]iB)", re.IGNORECASE)

#: TensorFlow: "OOM when allocating tensor with shape[8,1024] and type float on /job:localhost/...".
_TENSOR = re.compile(r"allocating tensor with shape\s*\[([\d,\s]*)\] and type (\w+)")

_TYPE_BYTES = {
    "double": 8, "int64": 8, "uint64": 8, "complex64": 8, "complex128": 16, "float": 4, "int32": 4, "uint32": 4,
    "half": 2, "bfloat16": 2, "int16": 2, "uint16": 2, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip

_MEMORY_WORDS = re.compile(r"\bOOM\b|out of memory|failed to allocate|allocating", re.IGNORECASE)
#: Matches messages of errors about host memory.
HOST_OOM = re.compile(r"device:CPU:|DefaultCPUAllocator|allocator cpu\b|alloc_cpu")
#: Matches messages of errors about GPU memory that have no type of their own.
GPU_OOM = re.compile(
    r"(?:CUDA|HIP) out of memory|(?:CUDA|HIP) error: out of memory|CUDA_ERROR_OUT_OF_MEMORY|_STATUS_ALLOC_FAILED",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class OutOfMemory:
    """A GPU out-of-memory error. `bytes_wanted` is None if the error does not state the amount."""

    bytes_wanted: int | None
    message: str


def detect(err: BaseException) -> OutOfMemory | None:
    """Returns the GPU out-of-memory error among this error and its causes, or None."""
    current: BaseException | None = err
    for _ in range(_CHAIN):
        if current is None:
            return None
        text = str(current)
        if _is_oom([base.__name__ for base in type(current).__mro__], text):
            return OutOfMemory(bytes_wanted(text), text.strip().splitlines()[0] if text.strip() else "")
        current = current.__cause__ or current.__context__
    return None


def _is_oom(names: list[str], text: str) -> bool:
    if HOST_OOM.search(text):
        return False
    if "OutOfMemoryError" in names:  # torch.OutOfMemoryError, torch.cuda.OutOfMemoryError
        return True
    if "ResourceExhaustedError" in names:  # tf.errors; also raised for full queues and oversized messages
        return _MEMORY_WORDS.search(text) is not None
    if "XlaRuntimeError" in names or "JaxRuntimeError" in names:
        return "RESOURCE_EXHAUSTED" in text and _MEMORY_WORDS.search(text) is not None
    return "RuntimeError" in names and GPU_OOM.search(text) is not None


def bytes_wanted(text: str) -> int | None:
    """The requested bytes, parsed from the error message."""
    requested = _REQUESTED.search(text)
    if requested is not None:
        return parse_bytes(requested[1])
    tensor = _TENSOR.search(text)
    if tensor is None or tensor[2] not in _TYPE_BYTES:
        return None
    dims = [int(dim) for dim in tensor[1].split(",") if dim.strip()]
    return math.prod(dims) * _TYPE_BYTES[tensor[2]]


def parse_bytes(text: str) -> int | None:
    """Parses `2.00 GiB` or `512 bytes`."""
    number = _AMOUNT.fullmatch(text)
    if number is None:
        return None
    try:
        return int(float(number[1]) * _UNITS[number[2].lower()])
    except ValueError:
        return None


def report(err: BaseException, job: agent.Job | None = None) -> OutOfMemory | None:
    """Reports an out-of-memory error to the agent, once even if the error is raised again."""
    oom_error = detect(err)
    if oom_error is None or getattr(err, "_farrier_reported", False):
        return oom_error
    (job or agent.job()).oom(oom_error.bytes_wanted)
    # The mark is an attribute of the error. An error that takes no attributes may be reported
    # twice, which is harmless.
    with suppress(AttributeError, TypeError):
        err._farrier_reported = True  # type: ignore[attr-defined]
    return oom_error


@contextmanager
def reporting(job: agent.Job | None = None) -> Iterator[None]:
    """Reports a GPU out-of-memory raised inside to the agent, and re-raises it."""
    try:
        yield
    except Exception as err:
        report(err, job)
        raise
