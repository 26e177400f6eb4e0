"""Which lengths share a graph, and which graphs are kept. Pure: no torch."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Kept")

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


class LruCache(Generic[Key, Value]):
    """The most recently used of a kind, up to a limit."""

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise ValueError(f"a limit is 1 or more, not {limit}")
        self._limit = limit
        self._entries: OrderedDict[Key, Value] = OrderedDict()

    def get(self, key: Key) -> Value | None:
        """What is kept for the key, which thereby was used just now."""
        value = self._entries.get(key)
        if value is not None:
            self._entries.move_to_end(key)
        return value

    def put(self, key: Key, value: Value) -> None:
        """Keeps it; when `full`, something goes first."""
        self._entries[key] = value
        self._entries.move_to_end(key)

    def pop(self, key: Key) -> Value | None:
        """No longer keeps it, and gives it."""
        return self._entries.pop(key, None)

    def eviction_candidate(self, may_evict: Callable[[Value], bool]) -> Key | None:
        """Which of them goes for another: of those that may, the one unused for longest. None: there is none."""
        return next((key for key, value in self._entries.items() if may_evict(value)), None)

    @property
    def full(self) -> bool:
        """Whether another one is one too many."""
        return len(self._entries) >= self._limit

    def clear(self) -> list[Value]:
        """No longer keeps any."""
        evicted = list(self._entries.values())
        self._entries.clear()
        return evicted

    def __len__(self) -> int:
        return len(self._entries)
