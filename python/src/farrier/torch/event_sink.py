"""Whom the guard tells. Needs no torch."""

from __future__ import annotations

from typing import Any, Protocol


class EventSink(Protocol):
    """What the guard says. A call never waits and never matters to the step. The module `farrier.agent` is one."""

    def oom(self, bytes_wanted: int | None, **more: Any) -> object:
        """An attempt ran out of memory."""

    def phase(self, name: str) -> object:
        """What the job does now."""
