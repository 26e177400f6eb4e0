"""Training steps for PyTorch: launched as one graph, and not killed by memory.

Where torch is not installed, the decisions (`ladder`, `learned`, `policy`, `allocator`, ...) can still be imported from
their modules; the names of this one need it. No module has the name of `guard`: imported, it would hide the function.
"""

import importlib.util as _importlib

if _importlib.find_spec("torch") is not None:
    from farrier.torch.allocator import classic_pool, configure_allocator
    from farrier.torch.ballast import Ballast
    from farrier.torch.guard_report import DoesNotFit, GuardReport
    from farrier.torch.guarded import Guard, guard
    from farrier.torch.lengths import Lengths
    from farrier.torch.policy import Policy
    from farrier.torch.step import Step, step

__all__ = [
    "Ballast",
    "DoesNotFit",
    "Guard",
    "GuardReport",
    "Lengths",
    "Policy",
    "Step",
    "classic_pool",
    "configure_allocator",
    "guard",
    "step",
]


def __getattr__(name: str) -> object:
    if name in __all__:
        raise ImportError(f"farrier.torch.{name} needs torch: pip install 'farrier[torch]'")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
