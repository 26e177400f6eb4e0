"""Reads memory capacity, use and peak of a device. Unknown is None, never zero."""

from __future__ import annotations

import contextlib
import gc
from typing import Protocol

import torch


class MemoryMeter(Protocol):
    """What the guard reads from a device."""

    def allocated(self) -> int | None:
        """Bytes allocated by tensors now."""

    def peak(self) -> int | None:
        """Peak bytes allocated by tensors since `restart_peak`."""

    def restart_peak(self) -> None:
        """Resets the peak."""

    def capacity(self) -> int | None:
        """Bytes that tensors could currently allocate at most."""

    def free(self) -> None:
        """Collects garbage and releases cached memory."""


class UnknownMeter:
    """A device that does not report its memory."""

    def allocated(self) -> int | None:
        """Unknown."""
        return None

    def peak(self) -> int | None:
        """Unknown."""
        return None

    def restart_peak(self) -> None:
        """Does nothing."""

    def capacity(self) -> int | None:
        """Unknown."""
        return None

    def free(self) -> None:
        """Collects garbage."""
        gc.collect()


class CudaMemoryMeter:
    """A CUDA device, by torch's own counters."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def _bytes(self, counter: str, which: str) -> int | None:
        # `memory_stats` would build a flat dictionary of two hundred keys, and this runs at every
        # call.
        stats = torch.cuda.memory_stats_as_nested_dict(self._device)
        value = stats.get(counter, {}).get("all", {}).get(which)
        return int(value) if value is not None else None

    def allocated(self) -> int | None:
        """Bytes allocated by tensors now."""
        return self._bytes("allocated_bytes", "current")

    def peak(self) -> int | None:
        """Peak bytes allocated by tensors since `restart_peak`."""
        return self._bytes("allocated_bytes", "peak")

    def restart_peak(self) -> None:
        """Resets the peak, and with it `torch.cuda.max_memory_allocated`."""
        torch.cuda.reset_peak_memory_stats(self._device)

    def capacity(self) -> int | None:
        """The memory fraction of the process, or free plus cached memory, whichever is less."""
        free, total = torch.cuda.mem_get_info(self._device)
        reserved = self._bytes("reserved_bytes", "current") or 0
        # Public since torch 2.8. Older versions do not tell which fraction the user has set.
        share = getattr(torch.cuda.memory, "get_per_process_memory_fraction", None)
        fraction = float(share(self._device)) if share is not None else 1.0
        return min(int(total * fraction), free + reserved)

    def free(self) -> None:
        """Collects garbage and releases cached memory.

        Collects no garbage if collection is disabled. A step that may become a graph disables it,
        because torch aborts if an old memory pool is collected while another is in use. While a
        pool is in use, torch before 2.8 raises an error instead of releasing cached memory.
        """
        if gc.isenabled():
            gc.collect()
        with contextlib.suppress(RuntimeError):
            torch.cuda.empty_cache()


def meter_for(device: torch.device) -> MemoryMeter:
    """Returns the meter for a device."""
    return CudaMemoryMeter(device) if device.type == "cuda" else UnknownMeter()
