"""What the user gave to a guard, tried on the first batch: it must not come out wrong only when memory has run out."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from torch import Tensor

from farrier.torch.arguments import type_name
from farrier.torch.attempt import GuardConfig, split_batch, weighted
from farrier.torch.retry_policy import RetryOptions
from farrier.torch.size_history import SizeHistory
from farrier.torch.split import row_count, split_rows

Result = TypeVar("Result")


def parse_size_history(value: Any) -> SizeHistory:
    """What an earlier guard learned."""
    if not isinstance(value, Mapping):
        raise TypeError(f"learned is {type_name(value)}: give what learned_sizes() of an earlier guard gave")
    try:
        return SizeHistory.from_json(value)
    except (AttributeError, KeyError, TypeError) as err:
        error = f"{type(err).__name__}: {err}"
        raise ValueError(f"learned is not what learned_sizes() of an earlier guard gave ({error})") from err


def checked_row_count(rows: Callable[[Any], Any]) -> Callable[[Any], int]:
    """The user's count of rows; what is no number of rows is an error."""

    def checked(batch: Any) -> int:
        found = rows(batch)
        try:
            number = operator.index(found)
        except TypeError:
            raise TypeError(
                f"rows gave {type_name(found)}: it must give how many rows a batch has, a whole number"
            ) from None
        if number < 0:
            raise ValueError(f"rows gave {number}: it must give how many rows a batch has")
        return number

    return checked


def check_user_functions(config: GuardConfig, batch: Any, options: RetryOptions, rows: Callable[[Any], int]) -> None:
    """Runs `count` on the batch, and `split`, `count` and `rows` on two pieces of it, where it has rows to split."""
    if config.count is not None:
        _require_count(_call_checked("count", lambda: config.count(batch)))  # type: ignore[misc]
    if not options.split or (config.count is None and config.split is split_rows):
        return
    sizes = [options.rows - options.rows // 2, options.rows // 2]
    pieces = _call_checked("split", lambda: split_batch(config, batch, sizes))
    if rows is not row_count:
        found = _call_checked("rows", lambda: [rows(piece) for piece in pieces])
        if found != sizes:
            raise ValueError(f"split gave pieces of {found} rows, by rows=, where {sizes} were asked for")
    if config.count is not None:
        _call_checked("count", lambda: weighted(config, pieces, sizes, batch))


def _call_checked(name: str, run: Callable[[], Result]) -> Result:
    try:
        return run()
    except (TypeError, ValueError):
        raise
    except Exception as err:
        raise ValueError(
            f"{name} fails on the first batch ({type(err).__name__}: {err})\n"
            f"hint: {name}= is needed once memory runs out, and must work on a batch and on any rows of it"
        ) from err


def _require_count(found: Any) -> None:
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
        raise TypeError(f"count gave {type_name(found)}: it must give a whole number or a tensor of one element") from None
