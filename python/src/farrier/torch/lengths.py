"""Length buckets that share a graph, and the LRU cache of graphs. Pure: no torch."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")

#: Number of buckets between a length and its double. Above the shortest bucket, padding adds at
#: most an eighth to a length.
OCTAVE_STEPS = 8


class TooLong(ValueError):
    """The length exceeds the configured maximum."""


def bucket(length: int, *, shortest: int = 64, longest: int | None = None) -> int:
    """Returns the padded length, which is that of the next bucket, at most `longest`."""
    if length < 1:
        raise ValueError(f"length must be 1 or more, not {length}")
    if longest is not None and length > longest:
        raise TooLong(f"length {length} exceeds the maximum, {longest}")
    step = max(1, (1 << max(0, length - 1).bit_length()) // (2 * OCTAVE_STEPS))
    padded = max(shortest, -(-length // step) * step)
    return padded if longest is None else min(padded, longest)


@dataclass(frozen=True)
class Lengths:
    """How a batch is padded to a bucket.

    `pad` maps the name of each tensor that has the batch's length to a neutral value: 0 for ids,
    -100 for labels, 0 for an attention mask. Tensors are named as in the batch: by dict key, by
    field, or by the index in a tuple as text ("0"). Padding is on the right, so it does not affect
    the other positions of a causal model. Comparisons check the values, because they also run the
    unpadded batch. A batch longer than `longest` runs eagerly and unpadded.
    """

    pad: Mapping[str, float]
    dim: int = 1
    shortest: int = 64
    longest: int | None = None

    def __post_init__(self) -> None:
        if not self.pad:
            raise ValueError("pad is empty: pass the padding value of each tensor that has the length")

    def bucket(self, length: int) -> int:
        """The length of the bucket for `length`."""
        return bucket(length, shortest=self.shortest, longest=self.longest)


class LruCache(Generic[Key, Value]):
    """A cache with a maximum size, in order of last use."""

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise ValueError(f"limit must be 1 or more, not {limit}")
        self._limit = limit
        self._entries: OrderedDict[Key, Value] = OrderedDict()

    def get(self, key: Key) -> Value | None:
        """Returns the value, which becomes the most recently used."""
        value = self._entries.get(key)
        if value is not None:
            self._entries.move_to_end(key)
        return value

    def put(self, key: Key, value: Value) -> None:
        """Stores a value. If the cache is `full`, the caller evicts a value first."""
        self._entries[key] = value
        self._entries.move_to_end(key)

    def pop(self, key: Key) -> Value | None:
        """Removes and returns the value."""
        return self._entries.pop(key, None)

    def eviction_candidate(self, may_evict: Callable[[Value], bool]) -> Key | None:
        """The least recently used key whose value may be evicted, or None."""
        return next((key for key, value in self._entries.items() if may_evict(value)), None)

    @property
    def full(self) -> bool:
        """Whether the limit is reached."""
        return len(self._entries) >= self._limit

    def clear(self) -> list[Value]:
        """Removes and returns all values."""
        evicted = list(self._entries.values())
        self._entries.clear()
        return evicted

    def __len__(self) -> int:
        return len(self._entries)
