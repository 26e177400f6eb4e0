"""Training steps for PyTorch: launched as one graph, and not killed by memory."""

from farrier.torch.lengths import Lengths
from farrier.torch.policy import Policy
from farrier.torch.step import Step, step

__all__ = ["Lengths", "Policy", "Step", "step"]
