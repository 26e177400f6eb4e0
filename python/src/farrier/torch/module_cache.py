"""All modules of a model, found once: walking the tree anew in every call costs half a millisecond for 24 layers."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn


class ModuleCache:
    """The modules below some roots, walked anew when a module was added, taken away or put in another's place."""

    def __init__(self, roots: Sequence[nn.Module]) -> None:
        self._roots = roots
        self._modules: list[nn.Module] = []
        self._children: list[int] = []

    def modules(self) -> list[nn.Module]:
        """Every module once."""
        # Identities suffice: the modules that were found are held, so that no new one can have the identity of an old one.
        children = [id(child) for module in self._modules for child in module._modules.values()]
        if not self._modules or children != self._children:
            self._modules = list(dict.fromkeys(module for root in self._roots for module in root.modules()))
            self._children = [id(child) for module in self._modules for child in module._modules.values()]
        return self._modules

    def parameters(self) -> list[Tensor]:
        """Every parameter once."""
        parameters = (value for module in self.modules() for value in module._parameters.values() if value is not None)
        return list(dict.fromkeys(parameters))
