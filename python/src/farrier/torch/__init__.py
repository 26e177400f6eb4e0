"""Training steps for PyTorch: verified CUDA graphs and recovery from out-of-memory.

Public names are imported lazily, so that the modules that need no torch (lengths, graph policy,
retry policy) can be used without it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from farrier.torch.allocator import classic_pool, configure_allocator
    from farrier.torch.graph_policy import Policy
    from farrier.torch.guard_report import DoesNotFit, GuardReport, NotCapturable
    from farrier.torch.hugging_face import trainer
    from farrier.torch.lengths import Lengths
    from farrier.torch.memory_guard import Guard, guard
    from farrier.torch.memory_reserve import MemoryReserve
    from farrier.torch.training_step import Step, step

__all__ = [
    "DoesNotFit",
    "Guard",
    "GuardReport",
    "Lengths",
    "MemoryReserve",
    "NotCapturable",
    "Policy",
    "Step",
    "classic_pool",
    "configure_allocator",
    "guard",
    "step",
    "trainer",
]

_LAZY = {
    "MemoryReserve": "memory_reserve",
    "DoesNotFit": "guard_report",
    "Guard": "memory_guard",
    "GuardReport": "guard_report",
    "Lengths": "lengths",
    "Policy": "graph_policy",
    "NotCapturable": "guard_report",
    "Step": "training_step",
    "classic_pool": "allocator",
    "configure_allocator": "allocator",
    "guard": "memory_guard",
    "step": "training_step",
    "trainer": "hugging_face",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"farrier.torch has no `{name}`; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(f"farrier.torch.{_LAZY[name]}"), name)


def __dir__() -> list[str]:
    """Includes the lazily imported names."""
    return sorted({*globals(), *__all__})
