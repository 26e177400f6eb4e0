"""Whom the guard tells. Needs no torch."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any, Protocol


class Events(Protocol):
    """What the guard says. A call never waits and never matters to the step."""

    def oom(self, bytes_wanted: int | None, **more: Any) -> object:
        """An attempt ran out of memory."""

    def phase(self, name: str) -> object:
        """What the job does now."""


class Silence:
    """Nobody to tell."""

    def oom(self, bytes_wanted: int | None, **more: Any) -> None:
        """Says nothing."""

    def phase(self, name: str) -> None:
        """Says nothing."""


def default_events() -> Events:
    """The node's agent, by the functions of `farrier.agent`, where this package has them; otherwise nobody."""
    if importlib.util.find_spec("farrier.agent") is None:
        return Silence()
    agent: Any = importlib.import_module("farrier.agent")
    if callable(getattr(agent, "oom", None)) and callable(getattr(agent, "phase", None)):
        found: Events = agent
        return found
    return Silence()
