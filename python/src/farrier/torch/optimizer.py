"""An optimizer that can be part of a graph: its numbers on the device, and a gate that lets a step change nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from farrier.torch.explain import Reason

#: Those whose fused kernels take `found_inf`, a flag on the device that skips the update.
_GATED = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)

#: Numbers of a group that are read from the device at each replay; all others are baked into a graph.
_ON_DEVICE = ("lr",)


class UnsupportedOptimizer(ValueError):
    """An optimizer whose step cannot be captured, and why."""

    def __init__(self, why: Reason) -> None:
        super().__init__(str(why))
        self.why = why


def prepare(optimizer: Optimizer) -> None:
    """Makes the optimizer's step capturable, in place: step counts and learning rates on the device, fused kernels.

    Fused kernels are taken for Adam, AdamW and SGD unless the user chose `foreach` or `fused` himself. Schedulers of
    torch fill a learning rate that is a tensor in place (2.5 and later).
    """
    for group in optimizer.param_groups:
        gated = isinstance(optimizer, _GATED)
        if "capturable" in group:
            group["capturable"] = True
        elif not gated:
            name = type(optimizer).__name__
            what = f"{name} has no `capturable`: its steps are counted on the host"
            raise UnsupportedOptimizer(Reason(what, "use an optimizer of torch.optim that has it, such as AdamW"))
        if gated and not group.get("fused") and not group.get("foreach") and _fusable(group):
            group["fused"], group["foreach"] = True, False
            optimizer._step_supports_amp_scaling = True  # type: ignore[attr-defined]
        device = _device(group)
        if not isinstance(group["lr"], Tensor) or group["lr"].device != device:
            group["lr"] = torch.tensor(float(group["lr"]), dtype=torch.float32, device=device)
    for parameter, state in optimizer.state.items():
        step = state.get("step")
        if step is not None:
            state["step"] = torch.as_tensor(float(step), dtype=torch.float32, device=parameter.device)


def _fusable(group: dict[str, Any]) -> bool:
    return not group.get("differentiable") and all(p.is_floating_point() for p in group["params"])


def _device(group: dict[str, Any]) -> torch.device:
    devices: set[torch.device] = {parameter.device for parameter in group["params"]}
    if len(devices) != 1:
        what = f"a group of the optimizer's parameters lies on {', '.join(sorted(map(str, devices)))}"
        raise UnsupportedOptimizer(Reason(what, "graphs need one CUDA device"))
    return next(iter(devices))


class Rates:
    """Learning rates where a graph reads them, kept at what the user's groups say."""

    def __init__(self, optimizers: list[Optimizer]) -> None:
        self._held = [
            (group, name, group[name]) for each in optimizers for group in each.param_groups for name in _ON_DEVICE
        ]

    def refresh(self) -> None:
        """A rate that was assigned as a number is written to the device, and the group reads it there again."""
        for group, name, held in self._held:
            if group[name] is not held:
                held.fill_(group[name])
                group[name] = held


def constants(optimizers: list[Optimizer]) -> dict[str, object]:
    """All that a graph of these optimizers bakes in, by name: where it changes, the graph is stale."""
    baked: dict[str, object] = {}
    for optimizer in optimizers:
        for place, group in enumerate(optimizer.param_groups):
            baked[f"parameters of group {place}"] = len(group["params"])
            for key, value in group.items():
                if key != "params" and key not in _ON_DEVICE and key != "initial_lr":
                    baked[f"{key} of group {place}"] = id(value) if isinstance(value, Tensor) else value
    return baked


def is_gated(optimizer: Optimizer) -> bool:
    """Whether the flag can keep the optimizer's step from changing anything."""
    return isinstance(optimizer, _GATED) and all(group.get("fused") for group in optimizer.param_groups)


class Watch:
    """Sees each `optimizer.step()` of a step: counts it, shows the gradients, and holds the gate.

    A closed gate is `found_inf` = 1 on the device: fused kernels then leave weights and state as they are, also inside a
    graph. Where a GradScaler set a `found_inf` of its own the two are joined.
    """

    def __init__(self, optimizers: list[Optimizer], names: Mapping[Tensor, str]) -> None:
        self.calls = 0
        self._names = names
        self._looker: Callable[[list[tuple[str, Tensor]]], None] | None = None
        self._closed = {id(each): _flag(each) for each in optimizers if is_gated(each)}
        self._gates_in = False
        self._ours: set[int] = set()
        self._handles = []
        for optimizer in optimizers:
            self._handles.append(optimizer.register_step_pre_hook(self._before))
            self._handles.append(optimizer.register_step_post_hook(self._after))

    @contextmanager
    def looking(self, looker: Callable[[list[tuple[str, Tensor]]], None] | None) -> Iterator[None]:
        """Inside, gradients are shown to `looker` as the optimizer gets them, and the gate is part of the step."""
        self._looker, self._gates_in = looker, True
        try:
            yield
        finally:
            self._looker, self._gates_in = None, False

    def close(self, closed: bool) -> None:
        """Closes or opens the gate, for graphs too."""
        for flag in self._closed.values():
            flag.fill_(1.0 if closed else 0.0)

    def make_state(self, optimizers: list[Optimizer]) -> None:
        """Lets gated optimizers make their state now, a parameter at a time behind the closed gate.

        Made in the first step it would lie between that step's activations, and keep their memory from being given back.
        """
        self.close(True)
        with self.looking(None):
            for optimizer in (each for each in optimizers if is_gated(each)):
                parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
                grads = [(p, p.grad) for p in parameters]
                for p in parameters:
                    p.grad = None
                for p in parameters:
                    if not optimizer.state[p]:
                        p.grad = torch.zeros_like(p)
                        optimizer.step()
                        p.grad = None
                for p, grad in grads:
                    p.grad = grad
        self.close(False)

    def remove(self) -> None:
        """Takes the hooks away."""
        for handle in self._handles:
            handle.remove()

    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self.calls += 1
        if self._looker is not None:
            pairs = [(p, p.grad) for group in optimizer.param_groups for p in group["params"]]
            self._looker([(self._names[p], grad) for p, grad in pairs if grad is not None])
        flag = self._closed.get(id(optimizer))
        if not self._gates_in or flag is None:
            return
        scalers = getattr(optimizer, "found_inf", None)
        if scalers is None:
            self._ours.add(id(optimizer))
        optimizer.found_inf = flag if scalers is None else torch.maximum(scalers.reshape(()), flag)  # type: ignore[attr-defined]

    def _after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if id(optimizer) in self._ours:
            self._ours.discard(id(optimizer))
            del optimizer.found_inf  # type: ignore[attr-defined]


def _flag(optimizer: Optimizer) -> Tensor:
    return torch.zeros((), dtype=torch.float32, device=optimizer.param_groups[0]["params"][0].device)
