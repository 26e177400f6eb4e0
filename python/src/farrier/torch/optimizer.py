"""Makes an optimizer capturable, and adds a gate that turns its step into a no-op."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from farrier.torch.explain import GraphsDisabled, Reason

#: Optimizers whose fused kernels take `found_inf`, a device flag that skips the update.
_GATEABLE = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)

GradientObserver = Callable[[list[tuple[str, Tensor]]], None]


class UnsupportedOptimizer(ValueError):
    """An optimizer whose step cannot be captured, with the reason."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(str(reason))
        self.reason = reason


def make_capturable(optimizer: Optimizer) -> bool:
    """Makes the optimizer's step capturable, in place. Returns whether any group was made fused.

    Step counts move to the device, and learning rates stay as they are. Adam, AdamW and SGD become
    fused unless the user chose `foreach` or `fused`. If this raises, it has changed nothing.
    """
    reason = _unsupported_reason(optimizer)
    if reason is not None:
        raise UnsupportedOptimizer(reason)
    fused = False
    for group in _groups(optimizer):
        if "capturable" in group:
            group["capturable"] = True
        if isinstance(optimizer, _GATEABLE) and not group.get("fused") and not group.get("foreach") and _fusable(group):
            group["fused"], group["foreach"] = True, False
            optimizer._step_supports_amp_scaling = True
            fused = True
    for parameter, state in optimizer.state.items():
        step = state.get("step")
        if step is not None:
            state["step"] = torch.as_tensor(float(step), dtype=torch.float32, device=parameter.device)
    return fused


def unfuse(optimizer: Optimizer) -> None:
    """Undoes the fusing of SGD.

    Its fused kernel fails if only some of the parameters have a momentum. `OptimizerHooks` creates
    the missing momenta. Call this when those hooks are removed.
    """
    if isinstance(optimizer, torch.optim.SGD):
        for group in optimizer.param_groups:
            group["fused"], group["foreach"] = None, None
        optimizer._step_supports_amp_scaling = False


def _unsupported_reason(optimizer: Optimizer) -> Reason | None:
    name = type(optimizer).__name__
    if isinstance(optimizer, _GATEABLE) and not _uses_torch_step(optimizer):
        return Reason(f"{name} overrides step(), which may count on the host", "use the optimizer from torch.optim")
    for group in _groups(optimizer):
        if "capturable" not in group and not isinstance(optimizer, _GATEABLE):
            cause = f"{name} has no `capturable` option: it counts steps on the host"
            return Reason(cause, "use an optimizer of torch.optim that supports it, such as AdamW")
        devices = {str(parameter.device) for parameter in group["params"]}
        if len(devices) != 1:
            cause = f"a parameter group of the optimizer is on {', '.join(sorted(devices))}"
            return Reason(cause, "graphs need one CUDA device")
        if isinstance(optimizer, torch.optim.SGD) and group["momentum"] and group["dampening"]:
            cause = "SGD with dampening treats a parameter's first gradient specially, which a gated step cannot reproduce"
            return Reason(cause, "use dampening=0")
    return None


def _uses_torch_step(optimizer: Optimizer) -> bool:
    """Whether the optimizer uses torch's own step.

    The step of a subclass may ignore `capturable` and `found_inf`.
    """
    return inspect.unwrap(type(optimizer).step) in {inspect.unwrap(kind.step) for kind in _GATEABLE}


def _groups(optimizer: Optimizer) -> list[dict[str, Any]]:
    """The groups that have parameters. With LoRA, the group for weight decay may be empty."""
    return [group for group in optimizer.param_groups if group["params"]]


def _fusable(group: dict[str, Any]) -> bool:
    return not group.get("differentiable") and all(p.is_floating_point() for p in group["params"])


def _device(group: dict[str, Any]) -> torch.device:
    device: torch.device = group["params"][0].device
    return device


#: A step that sets the learning rate would set it several times per batch when it runs eagerly for
#: a comparison, and never in a graph.
STEP_SETS_LR = Reason("the step sets the learning rate itself", "step the scheduler after the call, not in it")


class LearningRates:
    """Copies of the learning rates on the device, where graphs read them.

    The user's groups keep their own rates, as numbers in full precision.
    """

    def __init__(self, optimizers: list[Optimizer]) -> None:
        self._groups = [group for each in optimizers for group in _groups(each)]
        self._device_rates = [torch.zeros((), dtype=torch.float32, device=_device(group)) for group in self._groups]
        self._written_versions: list[object] = [None] * len(self._device_rates)

    def user_values(self) -> list[object]:
        """The groups' rates, in a form that can be compared.

        A tensor counts as changed if it was written to.
        """
        rates = (group["lr"] for group in self._groups)
        return [(id(rate), rate._version) if isinstance(rate, Tensor) else rate for rate in rates]

    def refresh(self) -> None:
        """Copies the groups' rates to the device tensors."""
        current = self.user_values()
        for index, (group, device_rate) in enumerate(zip(self._groups, self._device_rates, strict=True)):
            if current[index] == self._written_versions[index]:
                continue
            rate = group["lr"]
            device_rate.copy_(rate, non_blocking=True) if isinstance(rate, Tensor) else device_rate.fill_(rate)
        self._written_versions = current

    @contextmanager
    def on_device(self) -> Iterator[None]:
        """Inside the context, optimizers read the device tensors, as in a graph.

        Raises `GraphsDisabled` if the step sets a rate itself.
        """
        self.refresh()
        user_values = [group["lr"] for group in self._groups]
        versions_before = [device_rate._version for device_rate in self._device_rates]
        for group, device_rate in zip(self._groups, self._device_rates, strict=True):
            group["lr"] = device_rate
        unchanged = True
        try:
            yield
            unchanged = all(
                group["lr"] is device_rate for group, device_rate in zip(self._groups, self._device_rates, strict=True)
            )
        finally:
            for group, rate in zip(self._groups, user_values, strict=True):
                group["lr"] = rate
        if not unchanged or versions_before != [device_rate._version for device_rate in self._device_rates]:
            self._written_versions = [None] * len(self._device_rates)
            raise GraphsDisabled(STEP_SETS_LR)


def captured_constants(optimizers: list[Optimizer]) -> dict[str, object]:
    """Everything that a graph of these optimizers captures as a constant, by name.

    If one of these values changes, the graph is stale.
    """
    constants: dict[str, object] = {}
    for optimizer in optimizers:
        for index, group in enumerate(optimizer.param_groups):
            constants[f"parameters of group {index}"] = tuple(map(id, group["params"]))
            for key, value in group.items():
                if key not in ("params", "lr", "initial_lr"):
                    constants[f"{key} of group {index}"] = id(value) if isinstance(value, Tensor) else value
    return constants


def has_gate(optimizer: Optimizer) -> bool:
    """Whether `found_inf` can turn the optimizer's step into a no-op."""
    groups = _groups(optimizer)
    fused = bool(groups) and all(group.get("fused") for group in groups)
    return fused and isinstance(optimizer, _GATEABLE) and _uses_torch_step(optimizer)


def _init_momentum(optimizer: Optimizer, predicate: Callable[[Tensor], bool]) -> None:
    """Gives SGD parameters without momentum a zero momentum.

    Without dampening, a step with zero momentum equals a first step. If the momentum were missing,
    the fused kernel would create it as uninitialised memory, and a skipped step would not write it.
    The kernel also fails if only some of the parameters have a momentum.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"] if group["momentum"] else ():
            if predicate(parameter) and optimizer.state[parameter].get("momentum_buffer") is None:
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)


class OptimizerHooks:
    """Hooks into each `optimizer.step()`: counts it, passes on the gradients, applies the gate.

    The gate is closed if `found_inf` on the device is 1: fused kernels then leave weights and state
    unchanged, also inside a graph. The flag is combined with a GradScaler's own `found_inf`.
    """

    def __init__(self, optimizers: list[Optimizer], names: Mapping[Tensor, str]) -> None:
        self.calls = 0
        self._names = names
        self._observer: GradientObserver | None = None
        self._gate_flags = {id(each): _zero_flag(each) for each in optimizers if has_gate(each)}
        self._gate_in_step = False
        self._set_by_us: set[int] = set()
        self._handles = []
        for optimizer in optimizers:
            self._handles.append(optimizer.register_step_pre_hook(self._before))
            self._handles.append(optimizer.register_step_post_hook(self._after))

    @contextmanager
    def observing(self, observer: GradientObserver | None) -> Iterator[None]:
        """Inside the context, `observer` receives the gradients, and the gate applies to steps."""
        self._observer, self._gate_in_step = observer, True
        try:
            yield
        finally:
            self._observer, self._gate_in_step = None, False

    def set_gate(self, closed: bool) -> None:
        """Closes or opens the gate, for graphs too."""
        for flag in self._gate_flags.values():
            flag.fill_(1.0 if closed else 0.0)

    def init_state(self, optimizers: list[Optimizer]) -> None:
        """Makes gated optimizers create their state now, one parameter at a time.

        State that is created in the first step would lie between that step's activations, and their
        memory could not be released. State that is created in a comparison would lie in memory that
        graphs write. The user's step hooks and replacements of `step` are not called (a scheduler
        counts calls), because this is not a training step.
        """
        for optimizer in (each for each in optimizers if has_gate(each)):
            if isinstance(optimizer, torch.optim.SGD):
                _init_momentum(optimizer, lambda parameter: parameter.requires_grad)
                continue
            parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
            grads = [(p, p.grad) for p in parameters]
            for p in parameters:
                p.grad = None
            with _gated_step(optimizer) as step:
                for p in parameters:
                    if not optimizer.state.get(p):
                        p.grad = torch.zeros_like(p)
                        step()
                        p.grad = None
            for p, grad in grads:
                p.grad = grad

    def remove(self) -> None:
        """Removes the hooks."""
        for handle in self._handles:
            handle.remove()

    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self.calls += 1
        if self._observer is not None:
            pairs = [(p, p.grad) for group in optimizer.param_groups for p in group["params"]]
            self._observer([(self._names[p], grad) for p, grad in pairs if grad is not None])
        flag = self._gate_flags.get(id(optimizer))
        if flag is None:
            return
        if isinstance(optimizer, torch.optim.SGD):
            _init_momentum(optimizer, lambda parameter: parameter.grad is not None)
        if not self._gate_in_step:
            return
        scaler_flag = getattr(optimizer, "found_inf", None)
        if scaler_flag is None:
            self._set_by_us.add(id(optimizer))
        optimizer.found_inf = flag if scaler_flag is None else torch.maximum(scaler_flag.reshape(()), flag)  # type: ignore[attr-defined]

    def _after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if id(optimizer) in self._set_by_us:
            self._set_by_us.discard(id(optimizer))
            del optimizer.found_inf  # type: ignore[attr-defined]


@contextmanager
def _gated_step(optimizer: Optimizer) -> Iterator[Callable[[], object]]:
    """Yields torch's own step of the optimizer, with the gate closed."""
    untyped: Any = optimizer
    scaler_flag = getattr(untyped, "found_inf", None)
    untyped.found_inf = _zero_flag(optimizer).fill_(1.0)
    try:
        with torch.no_grad():
            yield functools.partial(inspect.unwrap(type(optimizer).step), untyped)
    finally:
        if scaler_flag is None:
            del untyped.found_inf
        else:
            untyped.found_inf = scaler_flag


def _zero_flag(optimizer: Optimizer) -> Tensor:
    return torch.zeros((), dtype=torch.float32, device=_device(_groups(optimizer)[0]))
