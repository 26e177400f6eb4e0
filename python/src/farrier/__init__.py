"""Farrier inside a training job.

`farrier.torch.step` runs a whole training step as one verified CUDA graph, and
`farrier.torch.guard` recovers steps from out-of-memory. `farrier.keras` and `farrier.jax` do what
those frameworks allow. All of them report to the node's agent, if there is one, and never wait for
it.

Frameworks are not imported here; each is imported by the module of its name.
"""

__version__ = "0.1.0"

from farrier.binary import CannotRun, CheckResult, Finding, check

__all__ = ["CannotRun", "CheckResult", "Finding", "__version__", "check"]
