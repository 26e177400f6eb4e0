"""How much memory there is, is in use and was in use. Unknown is None, never zero."""

from __future__ import annotations

import contextlib
import gc
from typing import Protocol

import torch


class MemoryMeter(Protocol):
    """What the guard asks of a device."""

    def allocated(self) -> int | None:
        """Bytes that tensors hold now."""

    def peak(self) -> int | None:
        """The most that tensors held since `restart_peak`."""

    def restart_peak(self) -> None:
        """Begins a new peak."""

    def capacity(self) -> int | None:
        """Bytes that tensors could hold at most, as things stand."""

    def free(self) -> None:
        """Collects garbage and gives cached memory back."""


class UnknownMeter:
    """A device that says nothing of its memory."""

    def allocated(self) -> int | None:
        """Unknown."""
        return None

    def peak(self) -> int | None:
        """Unknown."""
        return None

    def restart_peak(self) -> None:
        """Nothing to begin."""

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
        # The nested form: the flat one builds two hundred keys, and this is asked in every call.
        stats = torch.cuda.memory_stats_as_nested_dict(self._device)
        found = stats.get(counter, {}).get("all", {}).get(which)
        return int(found) if found is not None else None

    def allocated(self) -> int | None:
        """Bytes that tensors hold now."""
        return self._bytes("allocated_bytes", "current")

    def peak(self) -> int | None:
        """The most that tensors held since `restart_peak`."""
        return self._bytes("allocated_bytes", "peak")

    def restart_peak(self) -> None:
        """Begins a new peak; `torch.cuda.max_memory_allocated` begins anew with it."""
        torch.cuda.reset_peak_memory_stats(self._device)

    def capacity(self) -> int | None:
        """The process's share, or what is free and cached together, whichever is less."""
        free, total = torch.cuda.mem_get_info(self._device)
        reserved = self._bytes("reserved_bytes", "current") or 0
        # Public since 2.8; before, a share set by the user shows only when it is met.
        share = getattr(torch.cuda.memory, "get_per_process_memory_fraction", None)
        fraction = float(share(self._device)) if share is not None else 1.0
        return min(int(total * fraction), free + reserved)

    def free(self) -> None:
        """Collects garbage and gives cached memory back.

        Not where collecting is switched off: a step that may become a graph does so, because torch aborts when an old pool
        is collected while another is in use. In such a pool no memory can be given back either: torch before 2.8 raises.
        """
        if gc.isenabled():
            gc.collect()
        with contextlib.suppress(RuntimeError):
            torch.cuda.empty_cache()


def meter_for(device: torch.device) -> MemoryMeter:
    """The meter for a device."""
    return CudaMemoryMeter(device) if device.type == "cuda" else UnknownMeter()
