"""Runs a step under the rules of a capture, so that an operation that cannot be captured raises.

The error's traceback shows the line of that operation. Other threads are not affected.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

import torch

#: torch's message for a synchronising operation (c10/cuda/CUDAFunctions.cpp), as error and as
#: warning.
SYNC_WARNING = "called a synchronizing CUDA operation"
#: Values of `torch.cuda.set_sync_debug_mode`, which is process-wide.
_WARN, _ERROR = 1, 2

#: A dry run changes process-wide settings. Two dry runs at once would restore each other's values.
_lock = threading.RLock()


@contextmanager
def simulated_capture() -> Iterator[None]:
    """Makes this thread look like it is capturing, and turns a GPU sync into an error.

    Both apply to this thread only, so the backward pass must run in this thread too. Other threads
    (a loader, a checkpoint, a validation) may synchronise meanwhile. Therefore torch is set to warn
    about a sync, not to raise. torch warns in the thread that synchronises, at the call that does
    so, and in this thread the warning is turned into an error. A sync that causes no warning (in a
    C++ extension) makes the following capture fail.
    """
    with _lock, warnings.catch_warnings():
        previous_mode, original = torch.cuda.get_sync_debug_mode(), torch.cuda.is_current_stream_capturing
        thread_id = threading.get_ident()

        def is_capturing() -> bool:
            return threading.get_ident() == thread_id or original()

        is_capturing._dynamo_marked_constant = True  # type: ignore[attr-defined]  # Compiled code may call it, and cannot trace threads.
        warnings.filterwarnings("ignore", message="Synchronization debug mode is a prototype")
        warnings.filterwarnings("always", message=SYNC_WARNING)
        warnings.showwarning = _show_warning(warnings.showwarning, thread_id, show_others=previous_mode == _WARN)
        torch.cuda.is_current_stream_capturing = is_capturing
        if previous_mode != _ERROR:
            torch.cuda.set_sync_debug_mode(_WARN)
        try:
            yield
        finally:
            torch.cuda.is_current_stream_capturing = original
            if previous_mode != _ERROR:
                torch.cuda.set_sync_debug_mode(previous_mode)


def _show_warning(original_show: Any, thread_id: int, *, show_others: bool) -> Any:
    """Returns a function that shows warnings as before, but raises sync warnings of this thread."""

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if SYNC_WARNING not in str(message):
            original_show(message, category, filename, lineno, file, line)
        elif threading.get_ident() == thread_id:
            raise RuntimeError(SYNC_WARNING)
        elif show_others:
            original_show(message, category, filename, lineno, file, line)

    return show
