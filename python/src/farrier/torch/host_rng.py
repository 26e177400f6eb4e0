"""State of the host's random number generators: torch's CPU generator, Python's and numpy's."""

from __future__ import annotations

import pickle
import random
import sys
from typing import Any

import torch


class HostRngState:
    """The state of the host's RNGs. It includes numpy's RNG only if numpy is already imported."""

    def __init__(self) -> None:
        self._torch = torch.get_rng_state()
        self._python = random.getstate()
        self._numpy = _numpy_state()

    def changed(self) -> list[str]:
        """Names of the RNGs that were drawn from or seeded since this state was read."""
        names: list[str] = []
        if not torch.equal(self._torch, torch.get_rng_state()):
            names.append("torch's generator of the CPU")
        if self._python != random.getstate():
            names.append("Python's random")
        if self._numpy is not None and pickle.dumps(self._numpy) != pickle.dumps(_numpy_state()):
            names.append("numpy.random")
        return names

    def restore(self) -> None:
        """Restores the state of all these RNGs."""
        self.restore_torch()
        random.setstate(self._python)
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)

    def restore_torch(self) -> None:
        """Restores only torch's generator, because data-loading threads draw from the others."""
        torch.set_rng_state(self._torch)


def _numpy_state() -> Any:
    numpy: Any = sys.modules.get("numpy")
    return None if numpy is None else numpy.random.get_state(legacy=False)
