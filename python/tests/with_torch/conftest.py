"""Simulated memory: counts tensors that autograd keeps, and raises out-of-memory at a limit."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn

torch.set_num_threads(1)


class Memory:
    """Counts bytes of saved activations and raises torch's own error above `limit`.

    Also serves as the guard's meter.
    """

    def __init__(self):
        self.limit = self.backward_limit = 10**18
        self.live = self.highest = 0
        self.says_bytes = True

    def keep(self, size):
        """A tensor of that many bytes, counted while it is referenced."""
        if self.live + size > self.limit:
            self.refuse(size)
        self.live += size
        self.highest = max(self.highest, self.live)
        kept = torch.zeros(size, dtype=torch.uint8)
        # Track the storage, not the tensor: another tensor may share the memory.
        weakref.finalize(kept.untyped_storage(), self._drop, size)
        return kept

    def _drop(self, size):
        self.live -= size

    def refuse(self, size):
        more = f" Tried to allocate {size} bytes. {self.live} bytes is allocated by PyTorch" if self.says_bytes else ""
        raise torch.OutOfMemoryError(f"CUDA out of memory.{more}")

    def allocated(self):
        return self.live

    def peak(self):
        return self.highest

    def restart_peak(self):
        self.highest = self.live

    def capacity(self):
        return self.limit

    def free(self):
        gc.collect()


class Keep(torch.autograd.Function):
    """Saves one byte per element until backward; raises in backward above `backward_limit`."""

    @staticmethod
    def forward(ctx, x, memory, refuses):
        ctx.save_for_backward(memory.keep(x.numel()))
        ctx.memory, ctx.refuses, ctx.size = memory, refuses, x.numel()
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        (_kept,) = ctx.saved_tensors
        if ctx.refuses and ctx.size > ctx.memory.backward_limit:
            ctx.memory.refuse(ctx.size)
        return gradient, None, None


class Block(nn.Module):
    def __init__(self, width, memory, dropout=0.0, batchnorm=False, refuses=False):
        super().__init__()
        self.inner = nn.Linear(width, width, dtype=torch.float64)
        self.norm = nn.BatchNorm1d(width, dtype=torch.float64) if batchnorm else None
        self.dropout = nn.Dropout(dropout)
        self.memory, self.refuses = memory, refuses

    def forward(self, x):
        for _ in range(3):
            x = Keep.apply(x, self.memory, self.refuses)
        y = torch.tanh(self.inner(x))
        if self.norm is not None:
            y = self.norm(y.transpose(1, 2)).transpose(1, 2)
        return x + self.dropout(y)


class Net(nn.Module):
    """Rows x length x width in, one value per token out.

    `refuses` is the index of the block whose backward runs out of memory.
    """

    def __init__(self, memory, width=4, layers=4, refuses=None, **more):
        super().__init__()
        # With a layer before them, the inputs of all blocks need gradients, so all blocks keep
        # activations.
        self.into = nn.Linear(width, width, dtype=torch.float64)
        self.blocks = nn.ModuleList(Block(width, memory, refuses=place == refuses, **more) for place in range(layers))
        self.head = nn.Linear(width, 1, dtype=torch.float64)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.seen += x.shape[0]
        x = self.into(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x).squeeze(-1)


@pytest.fixture
def memory():
    return Memory()


@pytest.fixture
def net(memory):
    def make(**more):
        torch.manual_seed(0)
        return Net(memory, **more)

    return make


@pytest.fixture
def batch():
    def make(rows=8, length=5, width=4, ignored=0.0, seed=1):
        numbers = torch.Generator().manual_seed(seed)
        x = torch.randn(rows, length, width, generator=numbers, dtype=torch.float64)
        y = torch.randn(rows, length, generator=numbers, dtype=torch.float64)
        keep = torch.rand(rows, length, generator=numbers) >= ignored
        return {"x": x, "y": y, "keep": keep}

    return make
