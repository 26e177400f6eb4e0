"""Which lengths share a graph, and which graphs are kept. Pure: no torch."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

Key = TypeVar("Key")
Kept = TypeVar("Kept")

#: Steps an octave: a bucket is at most an eighth longer than what is in it.
OCTAVE_STEPS = 8


class TooLong(ValueError):
    """A length beyond the longest that was given."""


def bucket(length: int, *, shortest: int = 64, longest: int | None = None) -> int:
    """The length to which `length` is padded: the next of eight steps an octave, never beyond `longest`."""
    if length < 1:
        raise ValueError(f"a length is 1 or more, not {length}")
    if longest is not None and length > longest:
        raise TooLong(f"a length of {length} is beyond the longest, {longest}")
    step = max(1, (1 << max(0, length - 1).bit_length()) // (2 * OCTAVE_STEPS))
    padded = max(shortest, -(-length // step) * step)
    return padded if longest is None else min(padded, longest)


@dataclass(frozen=True)
class Lengths:
    """How a batch is padded to a bucket.

    `pad` gives, for each tensor that has the length, the value that changes nothing: 0 for ids, -100 for labels, 0 for an
    attention mask. Tensors are named as in the batch: a key of a dict, a field, or the place in a tuple as text ("0").
    Padding is to the right, so a causal model sees nothing of it. Whether the values are right is verified: a comparison
    runs the batch as it came, too. A batch beyond `longest` runs eagerly, as it came.
    """

    pad: Mapping[str, float]
    dim: int = 1
    shortest: int = 64
    longest: int | None = None

    def __post_init__(self) -> None:
        if not self.pad:
            raise ValueError("pad names no tensor: give the padding value of each that has the length")

    def bucket(self, length: int) -> int:
        """The length of the bucket that `length` falls in."""
        return bucket(length, shortest=self.shortest, longest=self.longest)


class Recent(Generic[Key, Kept]):
    """The most recently used of a kind, up to a limit."""

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise ValueError(f"a limit is 1 or more, not {limit}")
        self._limit = limit
        self._kept: OrderedDict[Key, Kept] = OrderedDict()

    def get(self, key: Key) -> Kept | None:
        """What is kept for the key, which thereby was used just now."""
        kept = self._kept.get(key)
        if kept is not None:
            self._kept.move_to_end(key)
        return kept

    def put(self, key: Key, kept: Kept) -> None:
        """Keeps it; when `full`, something goes first."""
        self._kept[key] = kept
        self._kept.move_to_end(key)

    def pop(self, key: Key) -> Kept | None:
        """No longer keeps it, and gives it."""
        return self._kept.pop(key, None)

    def in_the_way(self, may_go: Callable[[Kept], bool]) -> Key | None:
        """Which of them goes for another: of those that may, the one unused for longest. None: there is none."""
        return next((key for key, kept in self._kept.items() if may_go(kept)), None)

    @property
    def full(self) -> bool:
        """Whether another one is one too many."""
        return len(self._kept) >= self._limit

    def clear(self) -> list[Kept]:
        """No longer keeps any."""
        gone = list(self._kept.values())
        self._kept.clear()
        return gone

    def __len__(self) -> int:
        return len(self._kept)
