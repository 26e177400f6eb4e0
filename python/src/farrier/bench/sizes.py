"""The sizes of the models that are measured, and what a token of them costs. Pure: no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Size:
    """A decoder of the Llama shape: RMSNorm, rotary positions, SwiGLU, no biases, head not tied to the embedding."""

    layers: int
    width: int
    heads: int
    hidden: int
    vocabulary: int = 32_000
    lora_rank: int = 0

    @property
    def parameters(self) -> int:
        """All weights, the low-rank ones too."""
        block = 4 * self.width**2 + 3 * self.width * self.hidden + 2 * self.width
        return self.layers * block + 2 * self.vocabulary * self.width + self.width + self.lora_parameters

    @property
    def lora_parameters(self) -> int:
        """The weights that a low-rank run trains: of the query and of the value projection."""
        return self.layers * 2 * 2 * self.width * self.lora_rank

    def flops_per_token(self, length: int, *, causal: bool) -> float:
        """Floating-point operations of one trained token.

        Two a weight and token forward and four backward (two where the weight is frozen: its own gradient is not made).
        The embedding is looked up and not multiplied. Attention is 2 x 2 x length x width a layer forward and twice that
        backward; `causal` counts the half that a causal mask leaves (the stricter convention), otherwise all of it
        (PaLM's).
        """
        multiplied = self.parameters - self.lora_parameters - self.vocabulary * self.width
        weights = 4.0 * multiplied + 6.0 * self.lora_parameters if self.lora_rank else 6.0 * multiplied
        attention = 12.0 * self.layers * self.width * length
        return weights + (attention / 2 if causal else attention)


SIZES: dict[str, Size] = {
    "tiny": Size(layers=2, width=64, heads=4, hidden=192, vocabulary=512),
    "191m": Size(layers=20, width=768, heads=12, hidden=2048),
    "1.4b": Size(layers=24, width=2048, heads=16, hidden=5632),
    "7b-lora": Size(layers=32, width=4096, heads=32, hidden=11008, lora_rank=16),
}


def size(name: str) -> Size:
    """The size of that name."""
    if name not in SIZES:
        raise ValueError(f"no model `{name}`; there are {', '.join(SIZES)}")
    return SIZES[name]
