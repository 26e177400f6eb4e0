"""Farrier inside a training job.

`farrier.torch.step` runs a whole training step as one verified CUDA graph, and
`farrier.torch.guard` repeats steps that ran out of memory. `farrier.keras` and `farrier.jax` do as
much as those frameworks allow. All of them report to the node's agent, if there is one, and never
wait for the agent.

This module imports no framework. `farrier.torch`, for example, imports PyTorch.
"""

__version__ = "0.1.0"

from farrier.binary import CannotRun, CheckResult, Finding, check

__all__ = ["CannotRun", "CheckResult", "Finding", "__version__", "check"]
