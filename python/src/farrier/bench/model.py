"""A decoder in plain torch, used by the benchmark and by examples/train_torch.py."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from farrier.bench.sizes import Size, size

#: Labels of this value are excluded from the loss and its mean.
IGNORED = -100


class Linear(nn.Module):
    """A projection without bias. With a rank, it also has a low-rank term (LoRA)."""

    def __init__(self, inputs: int, outputs: int, rank: int = 0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        nn.init.normal_(self.weight, std=0.02)
        self.rank = rank
        if rank:
            self.down = nn.Parameter(torch.empty(rank, inputs))
            self.up = nn.Parameter(torch.zeros(outputs, rank))
            nn.init.normal_(self.down, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        """Projects `x`."""
        y = functional.linear(x, self.weight)
        if self.rank:
            y = y + functional.linear(functional.linear(x, self.down), self.up)
        return y


class Norm(nn.Module):
    """RMSNorm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Normalises `x` by its root mean square."""
        return functional.rms_norm(x, (x.shape[-1],), self.weight, 1e-5)


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotary position embedding. The halves of each head are its real and imaginary parts."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cosine - b * sine, b * cosine + a * sine), dim=-1)


class Block(nn.Module):
    """Pre-norm attention and SwiGLU with residual connections."""

    def __init__(self, shape: Size, dropout: float) -> None:
        super().__init__()
        self.heads = shape.heads
        self.dropout = dropout
        width, rank = shape.width, shape.lora_rank
        self.before_attention, self.before_mixing = Norm(width), Norm(width)
        self.query, self.value = Linear(width, width, rank), Linear(width, width, rank)
        self.key, self.out = Linear(width, width), Linear(width, width)
        self.gate, self.into = Linear(width, shape.hidden), Linear(width, shape.hidden)
        self.back = Linear(shape.hidden, width)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """Returns the residual stream after this block."""
        rows, length, width = x.shape
        y = self.before_attention(x)
        q, k, v = (
            part(y).view(rows, length, self.heads, width // self.heads).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        q, k = rotate(q, cosine, sine), rotate(k, cosine, sine)
        dropout = self.dropout if self.training else 0.0
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout)
        x = x + functional.dropout(self.out(y.transpose(1, 2).reshape(rows, length, width)), dropout, self.training)
        y = self.before_mixing(x)
        y = self.back(functional.silu(self.gate(y)) * self.into(y))
        return x + functional.dropout(y, dropout, self.training)


class Decoder(nn.Module):
    """The whole model. Returns the loss if labels are given, otherwise the logits."""

    cosine: Tensor
    sine: Tensor

    def __init__(self, shape: Size, *, longest: int = 4096, dropout: float = 0.0) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.blocks = nn.ModuleList(Block(shape, dropout) for _ in range(shape.layers))
        self.last_norm = Norm(shape.width)
        self.head = Linear(shape.width, shape.vocabulary)
        half = shape.width // shape.heads // 2
        angles = torch.outer(torch.arange(longest).float(), 10_000.0 ** (-torch.arange(half).float() / half))
        self.register_buffer("cosine", angles.cos(), persistent=False)
        self.register_buffer("sine", angles.sin(), persistent=False)
        if shape.lora_rank:
            for name, parameter in self.named_parameters():
                parameter.requires_grad_(name.endswith((".down", ".up")))

    def forward(self, ids: Tensor, labels: Tensor | None = None) -> Tensor:
        """`ids` and `labels` are rows x length; labels are already shifted."""
        x = self.embedding(ids)
        length = ids.shape[1]
        cosine, sine = self.cosine[:length].to(x.dtype), self.sine[:length].to(x.dtype)
        for block in self.blocks:
            x = block(x, cosine, sine)
        logits: Tensor = self.head(self.last_norm(x))
        if labels is None:
            return logits
        return functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORED)


def build(
    name: str,
    *,
    device: torch.device | str = "cuda",
    dtype: torch.dtype = torch.bfloat16,
    dropout: float = 0.0,
    longest: int = 4096,
    seed: int = 0,
) -> Decoder:
    """Builds the named model, with weights determined by the seed alone."""
    torch.manual_seed(seed)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            return Decoder(size(name), longest=longest, dropout=dropout)
    finally:
        torch.set_default_dtype(before)
