"""Reads memory capacity, use and peak of a device. Unknown is None, never zero."""

from __future__ import annotations

import contextlib
import gc
from typing import Protocol

import torch


class MemoryMeter(Protocol):
    """Reads and frees the memory of a device, for the guard."""

    def allocated(self) -> int | None:
        """Bytes allocated by tensors now."""

    def peak(self) -> int | None:
        """Peak bytes allocated by tensors since `restart_peak`."""

    def restart_peak(self) -> None:
        """Resets the peak."""

    def capacity(self) -> int | None:
        """The most bytes that tensors could allocate at present."""

    def free(self) -> None:
        """Collects garbage and releases cached memory."""


class UnknownMeter:
    """The meter of a device that does not report its memory."""

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
    """The meter of a CUDA device, by torch's own counters."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def _bytes(self, counter: str, which: str) -> int | None:
        # The nested form is faster, which matters on every call: the flat form builds two hundred
        # keys.
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
        """The process's memory fraction, or free plus reserved memory, whichever is less."""
        free, total = torch.cuda.mem_get_info(self._device)
        reserved = self._bytes("reserved_bytes", "current") or 0
        # Public since torch 2.8. Older versions do not show a fraction that the user set.
        share = getattr(torch.cuda.memory, "get_per_process_memory_fraction", None)
        fraction = float(share(self._device)) if share is not None else 1.0
        return min(int(total * fraction), free + reserved)

    def free(self) -> None:
        """Collects garbage and releases cached memory.

        It collects no garbage if collection is disabled. A step that may become a graph disables
        it, because torch aborts if an old pool is collected while another is in use. While such a
        pool is in use, no cached memory can be released either; torch before 2.8 raises then.
        """
        if gc.isenabled():
            gc.collect()
        with contextlib.suppress(RuntimeError):
            torch.cuda.empty_cache()


def meter_for(device: torch.device) -> MemoryMeter:
    """Returns the meter for a device."""
    return CudaMemoryMeter(device) if device.type == "cuda" else UnknownMeter()
