"""Copies and restores training state, so that comparison runs do not train."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from farrier.torch.host_rng import HostRngState
from farrier.torch.optimizer import has_gate

#: State that the step changes besides model and optimizer, such as averaged weights or statistics.
#: The user names it.
ExtraState = Sequence[nn.Module | Tensor]


class TrainingSnapshot:
    """Copies the state that a step changes, and restores it.

    A gated step changes neither weights nor optimizer state, so these are not copied. The weights
    and state of optimizers without a gate, and the user's `extra_state`, are copied to the host.
    RNG state, buffers (running statistics), and the scaler's scale and stage are always copied.
    """

    def __init__(
        self, model: nn.Module, optimizers: list[Optimizer], scaler: Any, device: torch.device, extra_state: ExtraState = ()
    ) -> None:
        self._device, self._scaler, self._optimizers = device, scaler, optimizers
        self.host_rng = HostRngState()
        self._cuda_rng = torch.cuda.get_rng_state(device)
        self._buffers = [
            (f"{path}.{name}".lstrip("."), module._buffers, name, buffer)
            for path, module in model.named_modules()
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]
        small = [buffer for *_, buffer in self._buffers]
        small += [value for name in ("_scale", "_growth_tracker") if (value := getattr(scaler, name, None)) is not None]
        self._small = [(tensor, tensor.detach().clone()) for tensor in small]
        large = [*_ungated_tensors(optimizers), *_extra_tensors(extra_state)]
        self._large = [(tensor, tensor.detach().to("cpu", copy=True)) for tensor in large]
        self._scaler_stages = _scaler_stages(scaler)
        self._parameters_with_state = [_parameters_with_state(each) for each in optimizers]

    def replaced_buffers(self) -> list[str]:
        """Names of buffers that the step replaced by other tensors.

        A graph would go on writing to the old tensors.
        """
        return [path for path, buffers, name, buffer in self._buffers if buffers.get(name) is not buffer]

    def has_new_state(self) -> bool:
        """Whether an optimizer created state for a parameter that had none."""
        return any(
            _parameters_with_state(each) - saved
            for each, saved in zip(self._optimizers, self._parameters_with_state, strict=True)
        )

    @torch.no_grad()
    def restore(self) -> None:
        """Restores all copied state."""
        self.host_rng.restore_torch()
        torch.cuda.set_rng_state(self._cuda_rng, self._device)
        for _, buffers, name, buffer in self._buffers:
            buffers[name] = buffer
        for tensor, saved in (*self._small, *self._large):
            tensor.copy_(saved)
        if self._scaler_stages is not None:
            self._scaler._per_optimizer_states.clear()
            self._scaler._per_optimizer_states.update(_copy_stages(self._scaler_stages))
        for optimizer, saved in zip(self._optimizers, self._parameters_with_state, strict=True):
            for parameter in _parameters_with_state(optimizer) - saved:
                del optimizer.state[parameter]


def _ungated_tensors(optimizers: list[Optimizer]) -> list[Tensor]:
    changed: list[Tensor] = []
    for optimizer in optimizers:
        if has_gate(optimizer):
            continue
        for group in optimizer.param_groups:
            changed += group["params"]
        for state in optimizer.state.values():
            changed += [value for value in state.values() if isinstance(value, Tensor)]
    return changed


def _extra_tensors(extra_state: ExtraState) -> Iterable[Tensor]:
    for each in extra_state:
        if isinstance(each, Tensor):
            yield each
        else:
            yield from (*each.parameters(), *each.buffers())


def _parameters_with_state(optimizer: Optimizer) -> set[Tensor]:
    return {parameter for parameter, state in optimizer.state.items() if state}


def _scaler_stages(scaler: Any) -> dict[int, dict[str, Any]] | None:
    """Stage of the GradScaler per optimizer (scaled, unscaled, stepped).

    A step that fails may end after any of these stages.
    """
    stages = getattr(scaler, "_per_optimizer_states", None)
    return None if stages is None else _copy_stages(stages)


def _copy_stages(stages: dict[int, dict[str, Any]]) -> dict[int, dict[str, Any]]:
    return {
        key: {name: dict(value) if isinstance(value, dict) else value for name, value in stage.items()}
        for key, stage in stages.items()
    }
