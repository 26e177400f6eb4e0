"""Farrier inside a training job.

`farrier.torch.step` launches a whole training step as one verified CUDA graph, `farrier.torch.guard` keeps a step from
dying of memory, `farrier.keras` and `farrier.jax` do what those frameworks allow. All of them tell the node's agent what
the job does, where there is one, and never wait for it.

Nothing heavy is imported here: each framework is imported by the module of its name.
"""

__version__ = "0.1.0"

from farrier.binary import CannotRun, CheckResult, Finding, check

__all__ = ["CannotRun", "CheckResult", "Finding", "__version__", "check"]
