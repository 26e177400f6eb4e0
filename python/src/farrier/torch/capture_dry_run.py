"""Runs a step under capture rules and names an operation that cannot be captured, with its line.

Other threads are unaffected.
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

#: The settings below are process-wide; two dry runs at once would restore each other's values.
_lock = threading.RLock()


@contextmanager
def simulated_capture() -> Iterator[None]:
    """Makes this thread look like it is capturing, and turns a GPU sync into an error.

    Both apply to this thread only; backward must run in it too. Another thread may synchronise
    meanwhile (a loader, a checkpoint, a validation), so torch is set to warn instead of raising,
    and the warning is turned into an error in this thread: torch shows it in the thread and at the
    call that caused it. A sync that Python does not see (a C++ extension) is found by the capture
    that follows.
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
    """Shows warnings as before, but raises sync warnings of this thread."""

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
