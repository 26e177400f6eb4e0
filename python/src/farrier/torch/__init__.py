"""Training steps for PyTorch: launched as one graph, and not killed by memory.

Names are imported when they are used: what is pure here (buckets, policies, the ladder) needs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from farrier.torch.allocator import classic_pool, configure_allocator
    from farrier.torch.ballast import Ballast
    from farrier.torch.graphed import Step, step
    from farrier.torch.guard_report import DoesNotFit, GuardReport, RunsInPieces
    from farrier.torch.guarded import Guard, guard
    from farrier.torch.hugging_face import trainer
    from farrier.torch.lengths import Lengths
    from farrier.torch.policy import Policy

__all__ = [
    "Ballast",
    "DoesNotFit",
    "Guard",
    "GuardReport",
    "Lengths",
    "Policy",
    "RunsInPieces",
    "Step",
    "classic_pool",
    "configure_allocator",
    "guard",
    "step",
    "trainer",
]

_ROOMS = {
    "Ballast": "ballast",
    "DoesNotFit": "guard_report",
    "Guard": "guarded",
    "GuardReport": "guard_report",
    "Lengths": "lengths",
    "Policy": "policy",
    "RunsInPieces": "guard_report",
    "Step": "graphed",
    "classic_pool": "allocator",
    "configure_allocator": "allocator",
    "guard": "guarded",
    "step": "graphed",
    "trainer": "hugging_face",
}


def __getattr__(name: str) -> Any:
    if name not in _ROOMS:
        raise AttributeError(f"farrier.torch has no `{name}`; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(f"farrier.torch.{_ROOMS[name]}"), name)


def __dir__() -> list[str]:
    """What is imported when it is used, too."""
    return sorted({*globals(), *__all__})
