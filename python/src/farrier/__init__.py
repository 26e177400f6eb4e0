"""Farrier inside a training job.

`farrier.torch.step` runs a whole training step as one verified CUDA graph, and
`farrier.torch.guard` retries a step that ran out of GPU memory. `farrier.keras` and `farrier.jax`
report steps and out-of-memory errors, and receive checkpoint requests. All of these modules talk to
the node's agent if there is one, and never wait for the agent.

This module imports no framework. Each submodule with the name of a framework imports that
framework.
"""

__version__ = "0.1.0"

from farrier.binary import CannotRun, CheckResult, Finding, check

__all__ = ["CannotRun", "CheckResult", "Finding", "__version__", "check"]
