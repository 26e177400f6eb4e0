"""Receiver of the guard's events. Needs no torch."""

from __future__ import annotations

from typing import Any, Protocol


class EventSink(Protocol):
    """Receives the guard's events. Its methods must not block; their errors are ignored.

    The module `farrier.agent` implements it.
    """

    def oom(self, bytes_wanted: int | None, **more: Any) -> object:
        """An attempt ran out of memory."""

    def phase(self, name: str) -> object:
        """The job entered a phase."""
