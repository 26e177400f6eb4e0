"""What of the model a graph bakes in: where its tensors lie, which are trained, which modules are in training."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from operator import attrgetter
from typing import Any

from torch import Tensor, nn

_trained = attrgetter("requires_grad")
_training = attrgetter("training")


def _values(dicts: list[dict[str, Any]]) -> Iterator[Any]:
    return chain.from_iterable(map(dict.values, dicts))


class Baked:
    """Read at every call, so each reading is a few passes over flat lists that C does.

    With 1,000 parameters in 836 modules a reading took 0.2 ms of the host's time (2026-11-15, a busy core of a virtual
    machine, Python 3.11), while the GPU is at the step of before.
    """

    def __init__(self, model: nn.Module, others: list[Tensor]) -> None:
        """`others` are tensors of no module: parameters that only an optimizer knows."""
        self._modules = list(model.modules())
        self._children: list[dict[str, Any]] = [module._modules for module in self._modules if module._modules]
        self._parameters: list[dict[str, Any]] = [module._parameters for module in self._modules if module._parameters]
        self._buffers: list[dict[str, Any]] = [module._buffers for module in self._modules if module._buffers]
        self._others = others
        self.layout = self.now()

    def now(self) -> tuple[object, ...]:
        """Modules and addresses. Where they change every graph is stale, and this reader as well."""
        tensors = chain(_values(self._parameters), _values(self._buffers), self._others)
        return [*_values(self._children)], [tensor.data_ptr() for tensor in tensors if tensor is not None]

    def mode(self) -> bytes:
        """What is trained and what is in training: each of those has graphs of its own."""
        parameters = [tensor for tensor in chain(_values(self._parameters), self._others) if tensor is not None]
        return bytes(map(_trained, parameters)) + b"|" + bytes(map(_training, self._modules))
