"""Splits a batch by rows: counts its rows, describes their shape, and cuts micro-batches.

A batch is any nesting of dicts (and mappings such as Hugging Face's BatchEncoding), lists, tuples,
namedtuples and dataclasses. Tensors and arrays whose first dimension is the number of rows are
sliced, and so are lists of plain values with one value per row. Each micro-batch gets everything
else unchanged. Micro-batches are views; nothing is copied. A tensor whose first dimension has that
size by chance is sliced too. The check before the first split detects that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from farrier.torch.batch import rebuild
from farrier.torch.size_history import BatchShape

Split = Callable[[Any, Sequence[int]], Sequence[Any]]


class NotSplittable(ValueError):
    """The row dimension of the batch cannot be determined."""


def _is_value_list(value: Any) -> bool:
    """Whether the value is a list of plain values, such as one text or name per row."""
    return (
        isinstance(value, (list, tuple))
        and bool(value)
        and all(isinstance(item, (str, bytes, int, float, bool)) or item is None for item in value)
    )


def leaves(batch: Any) -> list[Any]:
    """Every leaf of the batch, in order. A list of plain values is one leaf."""
    leaves_found: list[Any] = []
    rebuild(batch, lambda _, leaf: leaves_found.append(leaf), is_leaf=_is_value_list)
    return leaves_found


def _array_shape(leaf: Any) -> tuple[int, ...] | None:
    """Shape of a tensor or array.

    None for anything else, and for nested tensors, which have no single shape.
    """
    if is_nested(leaf):
        return None
    shape = getattr(leaf, "shape", None)
    return tuple(int(size) for size in shape) if shape is not None and hasattr(leaf, "__getitem__") else None


def is_nested(leaf: Any) -> bool:
    """Whether the leaf is a nested tensor, with rows of different lengths."""
    return isinstance(leaf, Tensor) and leaf.is_nested


def reject_nested(batch: Any) -> None:
    """Raises `NotSplittable` for a nested tensor, which `split_rows` would not slice."""
    if any(map(is_nested, leaves(batch))):
        raise NotSplittable("the batch has a nested tensor, which cannot be split automatically: pass `split=` and `rows=`")


def row_count(batch: Any) -> int:
    """Returns the number of rows: the size of the first dimension that most tensors share.

    Raises `NotSplittable` if the number is ambiguous, because a wrong guess would give a wrong
    gradient.
    """
    if isinstance(batch, (list, tuple)) and batch and all(isinstance(item, Mapping) for item in batch):
        raise NotSplittable("the batch is a list of samples, which may depend on each other: pass `split=` and `rows=`")
    extents = [shape for shape in map(_array_shape, leaves(batch)) if shape]
    if not extents:
        raise NotSplittable("the batch has no tensor with a dimension: pass `split=` and `rows=`")
    counts = Counter(shape[0] for shape in extents).most_common(2)
    if len(counts) == 2 and counts[0][1] == counts[1][1]:
        sizes = " and ".join(str(size) for size, _ in counts)
        raise NotSplittable(f"equally many tensors have {sizes} as first dimension: pass `split=` and `rows=`")
    return counts[0][0]


def batch_shape(batch: Any, rows: int) -> BatchShape:
    """Describes the shape of a batch of that many rows."""
    parts: list[str] = []
    elements = 0
    for leaf in leaves(batch):
        shape = _array_shape(leaf)
        if is_nested(leaf):
            parts.append(f"{_dtype_name(leaf)}[nested]")
        if shape is None:
            continue
        inner = ",".join(map(str, shape[1:]))
        if shape and shape[0] == rows:
            parts.append(f"{_dtype_name(leaf)}[*,{inner}]" if inner else f"{_dtype_name(leaf)}[*]")
            size = 1
            for each in shape[1:]:
                size *= each
            elements += size
        else:
            parts.append(f"{_dtype_name(leaf)}[{','.join(map(str, shape))}]")
    return BatchShape(" ".join(parts), rows, elements)


def _dtype_name(leaf: Any) -> str:
    return str(getattr(leaf, "dtype", type(leaf).__name__)).removeprefix("torch.")


def split_rows(batch: Any, sizes: Sequence[int]) -> list[Any]:
    """Splits the batch into micro-batches of these sizes, which add up to its rows, in order."""
    rows = sum(sizes)
    micro_batches: list[Any] = []
    start = 0
    for size in sizes:
        micro_batches.append(rebuild(batch, _slice_rows(rows, start, start + size), is_leaf=_is_value_list))
        start += size
    return micro_batches


def select_rows(batch: Any, rows: int, indices: Sequence[int]) -> Any:
    """Copies the rows at these indices out of a batch of `rows` rows."""

    def pick(_: str, leaf: Any) -> Any:
        shape = _array_shape(leaf)
        if shape and shape[0] == rows:
            return leaf[list(indices)]
        return [leaf[index] for index in indices] if _is_value_list(leaf) and len(leaf) == rows else leaf

    return rebuild(batch, pick, is_leaf=_is_value_list)


def _slice_rows(rows: int, start: int, end: int) -> Callable[[str, Any], Any]:
    def slice_leaf(_: str, leaf: Any) -> Any:
        shape = _array_shape(leaf)
        if shape and shape[0] == rows:
            return leaf[start:end]
        if _is_value_list(leaf) and len(leaf) == rows:
            return leaf[start:end]
        return leaf

    return slice_leaf


def gradient_leaves(batch: Any) -> list[Tensor]:
    """The tensors of the batch that get gradients themselves."""
    return [leaf for leaf in leaves(batch) if isinstance(leaf, Tensor) and leaf.is_leaf and leaf.requires_grad]
