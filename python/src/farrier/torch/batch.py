"""Reads and rebuilds batches: nested dicts, other mappings, tuples, lists and dataclasses."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from farrier.torch.lengths import Lengths

#: Batches with the same signature can use the same graph. A signature has the name, shape and
#: dtype of each tensor, and the name and value of everything else in the batch.
Signature = tuple[object, ...]


def rebuild(
    value: Any, transform: Callable[[str, Any], Any], name: str = "", *, is_leaf: Callable[[Any], bool] = lambda _: False
) -> Any:
    """Returns the same structure with `transform(name, leaf)` in place of each leaf.

    A value for which `is_leaf` is true counts as a leaf, even if it is a list.
    """

    def rebuild_item(key: str, item: Any) -> Any:
        return rebuild(item, transform, f"{name}.{key}" if name else key, is_leaf=is_leaf)

    if is_leaf(value):
        return transform(name, value)
    if isinstance(value, Mapping):
        items = {key: rebuild_item(str(key), item) for key, item in value.items()}
        return items if type(value) is dict else _rebuild_mapping(value, items)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(rebuild_item(key, getattr(value, key)) for key in value._fields))
    if isinstance(value, (tuple, list)):
        return type(value)(rebuild_item(str(index), item) for index, item in enumerate(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value) if field.init]
        return dataclasses.replace(value, **{key: rebuild_item(key, getattr(value, key)) for key in names})
    return transform(name, value)


def _rebuild_mapping(mapping: Mapping[str, Any], items: dict[str, Any]) -> Any:
    """Rebuilds Hugging Face's BatchEncoding and similar mappings from a dict."""
    try:
        return type(mapping)(items)  # type: ignore[call-arg]
    except TypeError:
        return items


def leaves(value: Any) -> dict[str, Any]:
    """Every leaf by name."""
    found: dict[str, Any] = {}

    def record(name: str, leaf: Any) -> Any:
        found[name] = leaf
        return leaf

    rebuild(value, record)
    return found


def tensors(value: Any) -> dict[str, Tensor]:
    """Every tensor by name."""
    return {name: leaf for name, leaf in leaves(value).items() if isinstance(leaf, Tensor)}


def signature(batch: Any) -> Signature:
    """The graph signature of this batch.

    Raises TypeError for a leaf that is neither a tensor of fixed shape nor a plain value.
    """
    parts: list[object] = []
    for name, leaf in leaves(batch).items():
        if isinstance(leaf, Tensor):
            if leaf.is_nested or leaf.layout is not torch.strided:
                kind = "nested" if leaf.is_nested else "sparse"
                raise TypeError(f"`{name or 'batch'}` of the batch is a {kind} tensor, which has no fixed memory layout")
            parts.append((name, tuple(leaf.shape), leaf.dtype))
        elif leaf is None or isinstance(leaf, (bool, int, float, str, torch.dtype, torch.device)):
            parts.append((name, leaf))
        else:
            raise TypeError(f"`{name or 'batch'}` of the batch is a {type(leaf).__name__}: pass tensors or plain values")
    return tuple(parts)


def pad_batch(batch: Any, lengths: Lengths) -> Any:
    """Pads the batch to its bucket. Every tensor with the batch's length needs a padding value."""
    candidates = {name: tensor for name, tensor in tensors(batch).items() if tensor.dim() > lengths.dim}
    missing = sorted(set(lengths.pad) - set(candidates))
    if missing:
        raise ValueError(f"pad names {missing}, but the batch has only {sorted(candidates)} with a dimension {lengths.dim}")
    longest = max(candidates[name].shape[lengths.dim] for name in lengths.pad)
    unnamed = sorted(name for name in set(candidates) - set(lengths.pad) if candidates[name].shape[lengths.dim] == longest)
    if unnamed:
        raise ValueError(f"{unnamed} have the length {longest} but no padding value in pad")
    target = lengths.bucket(longest)

    def pad(name: str, leaf: Any) -> Any:
        if name not in lengths.pad or not isinstance(leaf, Tensor):
            return leaf
        trailing_dims = leaf.dim() - 1 - lengths.dim
        padding = target - leaf.shape[lengths.dim]
        return functional.pad(leaf, (0, 0) * trailing_dims + (0, padding), value=lengths.pad[name]) if padding else leaf

    return rebuild(batch, pad)
