"""Model sizes of the benchmark and their FLOPs per token. Pure: no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Size:
    """A Llama-style decoder: RMSNorm, rotary positions, SwiGLU, no biases, untied head."""

    layers: int
    width: int
    heads: int
    hidden: int
    vocabulary: int = 32_000
    lora_rank: int = 0

    @property
    def parameters(self) -> int:
        """All weights, including low-rank ones."""
        block = 4 * self.width**2 + 3 * self.width * self.hidden + 2 * self.width
        return self.layers * block + 2 * self.vocabulary * self.width + self.width + self.lora_parameters

    @property
    def lora_parameters(self) -> int:
        """The weights that a LoRA run trains, in the query and value projections."""
        return self.layers * 2 * 2 * self.width * self.lora_rank

    def flops_per_token(self, length: int, *, causal: bool) -> float:
        """FLOPs per trained token.

        Each weight takes two FLOPs per token in forward and four in backward, or two in backward if
        it is frozen, because its gradient is not computed. The embedding is a lookup without
        multiplication. Attention takes 2 x 2 x length x width per layer in forward, and twice that
        in backward. With `causal`, only the half of attention that a causal mask leaves counts (the
        stricter convention), otherwise all of it (PaLM's convention).
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
    """Returns the size of that name."""
    if name not in SIZES:
        raise ValueError(f"unknown model `{name}`; expected one of {', '.join(SIZES)}")
    return SIZES[name]
