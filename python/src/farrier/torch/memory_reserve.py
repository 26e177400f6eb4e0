"""Memory held back for a bad day."""

from __future__ import annotations

import torch
from torch import Tensor

from farrier.torch.oom import parse_oom


class MemoryReserve:
    """`size_bytes` of device memory that nothing uses, until a step would be lost for want of it.

    Take it after the model and its optimizer are there, outside of any graph capture. The guard releases it when nothing
    else helps, lets the step finish, asks for a checkpoint, and takes it again when there is room.
    """

    def __init__(self, size_bytes: int, device: torch.device | str = "cuda") -> None:
        if size_bytes <= 0:
            raise ValueError(f"a ballast of {size_bytes} bytes holds nothing back: give its size in bytes")
        self.size_bytes = size_bytes
        self._device = torch.device(device)
        self._tensor: Tensor | None = None
        if not self.acquire():
            raise MemoryError(f"no room for a ballast of {size_bytes} bytes on {self._device}: make it smaller")

    @property
    def is_held(self) -> bool:
        """Whether it is there to be released."""
        return self._tensor is not None

    def acquire(self) -> bool:
        """Takes the memory, if there is room; says whether it is held."""
        if self._tensor is not None:
            return True
        if self._device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise RuntimeError("a ballast taken while a CUDA graph is captured would belong to the graph: take it before")
        try:
            self._tensor = torch.empty(self.size_bytes, dtype=torch.uint8, device=self._device)
        except RuntimeError as error:
            if parse_oom(error) is None:
                raise
        return self._tensor is not None

    def release(self) -> None:
        """Gives the memory to whoever needs it."""
        self._tensor = None
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
