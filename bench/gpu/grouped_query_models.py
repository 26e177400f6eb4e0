"""Decoder models with grouped-query attention, similar to current LLMs but bound by launches.

| name | like | attention | weights |
|---|---|---|---|
| `llama` | Llama | 16 query heads, 4 KV heads, RoPE | float32 under bfloat16 autocast |
| `qwen` | Qwen | 16/4, QK norm, biases of Q, K and V | float32 under bfloat16 autocast |
| `mistral` | Mistral | 16/1 (multi-query), sliding window of 512 as a mask | bfloat16 |
| `gemma` | Gemma | 8/2, QK norm, GeGLU, tied and scaled embeddings | bfloat16 |
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Shape:
    """A model and its batch."""

    rows: int
    length: int
    layers: int
    width: int = 1024
    heads: int = 16
    kv_heads: int = 4
    inner: int = 2816
    vocabulary: int = 32_000
    autocast: bool = True
    qk_norm: bool = False
    bias: bool = False
    window: int | None = None
    gelu: bool = False
    tied: bool = False


MODELS = {
    "llama": Shape(rows=4, length=1024, layers=16),
    "qwen": Shape(rows=2, length=1024, layers=12, qk_norm=True, bias=True),
    "mistral": Shape(rows=2, length=1024, layers=12, kv_heads=1, window=512, autocast=False),
    "gemma": Shape(
        rows=2, length=1024, layers=12, heads=8, kv_heads=2, qk_norm=True, gelu=True, tied=True, autocast=False
    ),
}


class Attention(nn.Module):
    """Causal attention with fewer KV heads than query heads, rotary positions."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.size = shape.heads, shape.kv_heads, shape.width // shape.heads
        self.q = nn.Linear(shape.width, shape.heads * self.size, bias=shape.bias)
        self.k = nn.Linear(shape.width, shape.kv_heads * self.size, bias=shape.bias)
        self.v = nn.Linear(shape.width, shape.kv_heads * self.size, bias=shape.bias)
        self.o = nn.Linear(shape.width, shape.width, bias=False)
        self.q_norm = nn.RMSNorm(self.size) if shape.qk_norm else nn.Identity()
        self.k_norm = nn.RMSNorm(self.size) if shape.qk_norm else nn.Identity()

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor, mask: Tensor | None) -> Tensor:
        """Attention of a block."""
        rows, length, _ = x.shape
        q = self.q_norm(self.q(x).view(rows, length, self.heads, self.size)).transpose(1, 2)
        k = self.k_norm(self.k(x).view(rows, length, self.kv_heads, self.size)).transpose(1, 2)
        v = self.v(x).view(rows, length, self.kv_heads, self.size).transpose(1, 2)
        q, k = rotated(q, cosine, sine).to(v.dtype), rotated(k, cosine, sine).to(v.dtype)
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=True)
        return self.o(y.transpose(1, 2).reshape(rows, length, -1))


def rotated(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotary position embedding."""
    first, second = x.chunk(2, -1)
    return x * cosine + torch.cat([-second, first], -1) * sine


class Block(nn.Module):
    """Attention and a gated MLP."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.before, self.between = nn.RMSNorm(shape.width), nn.RMSNorm(shape.width)
        self.attention = Attention(shape)
        self.gate, self.up = (nn.Linear(shape.width, shape.inner, bias=False) for _ in range(2))
        self.down = nn.Linear(shape.inner, shape.width, bias=False)
        self.gelu = shape.gelu

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor, mask: Tensor | None) -> Tensor:
        """One layer."""
        x = x + self.attention(self.before(x), cosine, sine, mask)
        y = self.between(x)
        gate = functional.gelu(self.gate(y), approximate="tanh") if self.gelu else functional.silu(self.gate(y))
        return x + self.down(gate * self.up(y))


class Decoder(nn.Module):
    """The model with its loss."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        if shape.tied:
            self.head.weight = self.embedding.weight
        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.02)
        size = shape.width // shape.heads
        angles = torch.outer(torch.arange(shape.length), 10_000.0 ** (-torch.arange(0, size, 2) / size))
        self.register_buffer("cosine", torch.cat([angles, angles], -1).cos(), persistent=False)
        self.register_buffer("sine", torch.cat([angles, angles], -1).sin(), persistent=False)
        mask = None
        if shape.window is not None:
            distance = torch.arange(shape.length)[:, None] - torch.arange(shape.length)
            mask = (distance >= 0) & (distance < shape.window)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        """The mean loss over tokens."""
        x = self.embedding(ids)
        if self.shape.tied:
            x = x * math.sqrt(self.shape.width)
        for block in self.blocks:
            x = block(x, self.cosine, self.sine, self.mask)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


def build(name: str) -> Decoder:
    """The model on the GPU, with the same weights each time."""
    torch.manual_seed(0)
    shape = MODELS[name]
    with torch.device("cuda"):
        model = Decoder(shape)
    return model if shape.autocast else model.bfloat16()


def batches(shape: Shape, count: int) -> list[dict[str, Tensor]]:
    """Batches of random tokens, on the GPU."""
    generator = torch.Generator().manual_seed(1)
    drawn = [torch.randint(0, shape.vocabulary, (shape.rows, shape.length + 1), generator=generator) for _ in range(count)]
    return [{"ids": ids[:, :-1].cuda(), "labels": ids[:, 1:].contiguous().cuda()} for ids in drawn]


def training_step(
    model: Decoder,
    optimizer: torch.optim.Optimizer,
    forward: Callable[..., Tensor] | None = None,
    before_update: Callable[[], None] = lambda: None,
) -> Callable[[Any], Tensor]:
    """A whole step. `before_update` is called when the optimizer is about to read the gradients."""
    run, autocast = model if forward is None else forward, model.shape.autocast

    def train(batch: Any) -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16) if autocast else contextlib.nullcontext():
            loss = run(batch["ids"], batch["labels"])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        before_update()
        optimizer.step()
        return loss.detach()

    return train
