"""Caches a model's list of modules, because listing them takes 0.5 ms per call for 24 layers."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn


class ModuleCache:
    """All modules below some roots, listed again after one is added, removed or replaced."""

    def __init__(self, roots: Sequence[nn.Module]) -> None:
        self._roots = roots
        self._modules: list[nn.Module] = []
        self._children: list[int] = []

    def modules(self) -> list[nn.Module]:
        """Every module once."""
        # Comparing ids is enough: the cached modules are alive, so no new module can reuse an id.
        children = [id(child) for module in self._modules for child in module._modules.values()]
        if not self._modules or children != self._children:
            self._modules = list(dict.fromkeys(module for root in self._roots for module in root.modules()))
            self._children = [id(child) for module in self._modules for child in module._modules.values()]
        return self._modules

    def parameters(self) -> list[Tensor]:
        """Every parameter once."""
        parameters = (value for module in self.modules() for value in module._parameters.values() if value is not None)
        return list(dict.fromkeys(parameters))
