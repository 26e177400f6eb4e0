"""The generators of random numbers that live on the host: torch's own of the CPU, Python's and numpy's."""

from __future__ import annotations

import pickle
import random
import sys
from typing import Any

import torch


class HostRngState:
    """Where they stand. Numpy's is looked at only where numpy was imported already."""

    def __init__(self) -> None:
        self._torch = torch.get_rng_state()
        self._python = random.getstate()
        self._numpy = _numpy_state()

    def changed(self) -> list[str]:
        """Which of them stand elsewhere now: somebody drew from them, or seeded them."""
        names: list[str] = []
        if not torch.equal(self._torch, torch.get_rng_state()):
            names.append("torch's generator of the CPU")
        if self._python != random.getstate():
            names.append("Python's random")
        if self._numpy is not None and pickle.dumps(self._numpy) != pickle.dumps(_numpy_state()):
            names.append("numpy.random")
        return names

    def restore(self) -> None:
        """Puts all of them back."""
        self.restore_torch()
        random.setstate(self._python)
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)

    def restore_torch(self) -> None:
        """Puts torch's own back. The others are drawn from by threads that load data, too."""
        torch.set_rng_state(self._torch)


def _numpy_state() -> Any:
    numpy: Any = sys.modules.get("numpy")
    return None if numpy is None else numpy.random.get_state(legacy=False)
