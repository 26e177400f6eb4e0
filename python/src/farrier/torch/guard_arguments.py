"""Checks the user's functions on the first batch, so that errors show before memory runs out."""

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
    """Reads the sizes learned by an earlier guard."""
    if not isinstance(value, Mapping):
        raise TypeError(f"learned is {type_name(value)}: pass the return value of learned_sizes() of an earlier guard")
    try:
        return SizeHistory.from_json(value)
    except (AttributeError, KeyError, TypeError) as err:
        error = f"{type(err).__name__}: {err}"
        raise ValueError(f"learned is not the return value of learned_sizes() of an earlier guard ({error})") from err


def checked_row_count(rows: Callable[[Any], Any]) -> Callable[[Any], int]:
    """Wraps the user's `rows`, so that a result that is not a row count raises an error."""

    def checked(batch: Any) -> int:
        result = rows(batch)
        try:
            number = operator.index(result)
        except TypeError:
            raise TypeError(f"rows returned {type_name(result)}: it must return the number of rows as an integer") from None
        if number < 0:
            raise ValueError(f"rows returned {number}: it must return the number of rows")
        return number

    return checked


def check_user_functions(config: GuardConfig, batch: Any, options: RetryOptions, rows: Callable[[Any], int]) -> None:
    """Runs `count` on the batch, and `split`, `count` and `rows` on two halves of it."""
    if config.count is not None:
        _require_count(_call_checked("count", lambda: config.count(batch)))  # type: ignore[misc]
    if not options.split or (config.count is None and config.split is split_rows):
        return
    sizes = [options.rows - options.rows // 2, options.rows // 2]
    micro_batches = _call_checked("split", lambda: split_batch(config, batch, sizes))
    if rows is not row_count:
        result = _call_checked("rows", lambda: [rows(micro_batch) for micro_batch in micro_batches])
        if result != sizes:
            raise ValueError(f"split returned micro-batches of {result} rows according to rows=, expected {sizes}")
    if config.count is not None:
        _call_checked("count", lambda: weighted(config, micro_batches, sizes, batch))


def _call_checked(name: str, run: Callable[[], Result]) -> Result:
    try:
        return run()
    except (TypeError, ValueError):
        raise
    except Exception as err:
        raise ValueError(
            f"{name} fails on the first batch ({type(err).__name__}: {err})\n"
            f"hint: {name}= is needed once memory runs out, and must work on any subset of a batch's rows"
        ) from err


def _require_count(result: Any) -> None:
    """Raises unless the result is a count: an integer, or a tensor of one element."""
    if isinstance(result, Tensor):
        if result.numel() != 1 or result.is_complex():
            raise TypeError(
                f"count returned a tensor of shape {tuple(result.shape)}: it must return one number, such as .sum()"
            )
        return
    try:
        operator.index(result)
    except TypeError:
        raise TypeError(
            f"count returned {type_name(result)}: it must return an integer or a tensor of one element"
        ) from None
