"""Device memory that is held in reserve, and released when a step runs out of memory."""

from __future__ import annotations

import torch
from torch import Tensor

from farrier.torch.oom import parse_oom


class MemoryReserve:
    """`size_bytes` of device memory that is not used until a step would be lost without it.

    Create it after the model and its optimizer, outside any graph capture. If nothing else helps,
    the guard releases it, finishes the step and requests a checkpoint. It reacquires the reserve
    when there is enough memory.
    """

    def __init__(self, size_bytes: int, device: torch.device | str = "cuda") -> None:
        if size_bytes <= 0:
            raise ValueError(f"a reserve of {size_bytes} bytes reserves nothing: pass its size in bytes")
        self.size_bytes = size_bytes
        self._device = torch.device(device)
        self._tensor: Tensor | None = None
        if not self.acquire():
            raise MemoryError(f"no memory for a reserve of {size_bytes} bytes on {self._device}: make it smaller")

    @property
    def is_held(self) -> bool:
        """Whether the memory is held and can be released."""
        return self._tensor is not None

    def acquire(self) -> bool:
        """Allocates the memory if possible. Returns whether it is held."""
        if self._tensor is not None:
            return True
        if self._device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise RuntimeError("a reserve acquired during CUDA graph capture would belong to the graph: acquire it before")
        try:
            self._tensor = torch.empty(self.size_bytes, dtype=torch.uint8, device=self._device)
        except RuntimeError as error:
            if parse_oom(error) is None:
                raise
        return self._tensor is not None

    def release(self) -> None:
        """Frees the memory."""
        self._tensor = None
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
