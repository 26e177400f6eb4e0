"""A step that leaves no trace: what a comparison runs must not train."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from farrier.torch.optimizer import is_gated


class Undo:
    """Takes what a step changes, and puts it back.

    Weights and state of an optimizer that the gate can hold are not touched by a gated step and not taken; those of
    others go to the host. Always taken: random numbers, buffers (running statistics), the scaler's scale.
    """

    def __init__(self, model: nn.Module, optimizers: list[Optimizer], scaler: Any, device: torch.device) -> None:
        self._device = device
        self._random = torch.get_rng_state(), torch.cuda.get_rng_state(device)
        small = [buffer for buffer in model.buffers() if buffer.numel()]
        for name in ("_scale", "_growth_tracker"):
            value = getattr(scaler, name, None)
            if isinstance(value, Tensor):
                small.append(value)
        self._small = [(tensor, tensor.detach().clone()) for tensor in small]
        self._large = [(tensor, tensor.detach().to("cpu", copy=True)) for tensor in _changed_by(optimizers)]

    def random(self) -> None:
        """Puts the random numbers back."""
        torch.set_rng_state(self._random[0])
        torch.cuda.set_rng_state(self._random[1], self._device)

    @torch.no_grad()
    def all(self) -> None:
        """Puts everything back."""
        self.random()
        for tensor, before in (*self._small, *self._large):
            tensor.copy_(before)


def _changed_by(optimizers: list[Optimizer]) -> list[Tensor]:
    changed: list[Tensor] = []
    for optimizer in optimizers:
        if is_gated(optimizer):
            continue
        for group in optimizer.param_groups:
            changed += group["params"]
        for state in optimizer.state.values():
            changed += [value for value in state.values() if isinstance(value, Tensor)]
    return changed
