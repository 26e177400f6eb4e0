"""What the user gave to a guard, tried on the first batch: it must not come out wrong only when memory has run out."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from torch import Tensor

from farrier.torch.arguments import kind
from farrier.torch.attempt import Setting, cut, weighed
from farrier.torch.ladder import Means
from farrier.torch.learned import Learned
from farrier.torch.split import pieces_of, row_count

Result = TypeVar("Result")


def learned_of(given: Any) -> Learned:
    """What an earlier guard learned."""
    if not isinstance(given, Mapping):
        raise TypeError(f"learned is {kind(given)}: give what learned_sizes() of an earlier guard gave")
    try:
        return Learned.from_json(given)
    except (AttributeError, KeyError, TypeError) as err:
        said = f"{type(err).__name__}: {err}"
        raise ValueError(f"learned is not what learned_sizes() of an earlier guard gave ({said})") from err


def rows_checked(rows: Callable[[Any], Any]) -> Callable[[Any], int]:
    """The user's count of rows; what is no number of rows is an error."""

    def checked(batch: Any) -> int:
        found = rows(batch)
        try:
            number = operator.index(found)
        except TypeError:
            raise TypeError(f"rows gave {kind(found)}: it must give how many rows a batch has, a whole number") from None
        if number < 0:
            raise ValueError(f"rows gave {number}: it must give how many rows a batch has")
        return number

    return checked


def try_functions(setting: Setting, batch: Any, means: Means, rows: Callable[[Any], int]) -> None:
    """Runs `count` on the batch, and `split`, `count` and `rows` on two pieces of it, where it has rows to split."""
    if setting.count is not None:
        _number(_tried("count", lambda: setting.count(batch)))  # type: ignore[misc]
    if not means.split or (setting.count is None and setting.split is pieces_of):
        return
    sizes = [means.rows - means.rows // 2, means.rows // 2]
    pieces = _tried("split", lambda: cut(setting, batch, sizes))
    if rows is not row_count:
        found = _tried("rows", lambda: [rows(piece) for piece in pieces])
        if found != sizes:
            raise ValueError(f"split gave pieces of {found} rows, by rows=, where {sizes} were asked for")
    if setting.count is not None:
        _tried("count", lambda: weighed(setting, pieces, sizes, batch))


def _tried(name: str, run: Callable[[], Result]) -> Result:
    try:
        return run()
    except (TypeError, ValueError):
        raise
    except Exception as err:
        raise ValueError(
            f"{name} fails on the first batch ({type(err).__name__}: {err})\n"
            f"hint: {name}= is needed once memory runs out, and must work on a batch and on any rows of it"
        ) from err


def _number(found: Any) -> None:
    """Refuses what is no count of terms: a number, or a tensor of one."""
    if isinstance(found, Tensor):
        if found.numel() != 1 or found.is_complex():
            raise TypeError(
                f"count gave a tensor of shape {tuple(found.shape)}: it must give one number, such as .sum() does"
            )
        return
    try:
        operator.index(found)
    except TypeError:
        raise TypeError(f"count gave {kind(found)}: it must give a whole number or a tensor of one element") from None
