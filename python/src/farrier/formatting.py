"""Formats numbers for messages. Pure."""

from __future__ import annotations


def count_of(number: int, one: str, many: str | None = None) -> str:
    """`1 row`, `2 rows`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def format_percent(share: float) -> str:
    """A share with two significant digits and no exponent: `0.3 %`, `100 %`."""
    per_cent = 100 * share
    return f"{per_cent:.0f} %" if abs(per_cent) >= 9.95 or not per_cent else f"{per_cent:.2g} %"
