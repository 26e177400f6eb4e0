"""A step that is run as if it were captured: what cannot be is named with its line. Other threads notice nothing."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

import torch

#: What torch says of an operation that waits for the GPU (c10/cuda/CUDAFunctions.cpp), as error and as warning.
SYNC_WARNING = "called a synchronizing CUDA operation"
#: `torch.cuda.set_sync_debug_mode`, which is that of the process.
_WARN, _ERROR = 1, 2

#: What is set for a rehearsal is the process's; two at a time would put back what the other has set.
_lock = threading.RLock()


@contextmanager
def simulated_capture() -> Iterator[None]:
    """Who asks whether this is a capture hears yes, and an operation that waits for the GPU is an error with its line.

    Both in this thread only; backward must run in it, too. Another thread may wait for the GPU meanwhile (a loader, a
    checkpoint, a validation), so torch is told to warn and not to fail, and the warning is made an error where it is shown:
    torch shows it in the thread and at the call that gave rise to it. What waits without telling Python (an extension in
    C++) is not found here, but by the capture that follows.
    """
    with _lock, warnings.catch_warnings():
        previous_mode, original = torch.cuda.get_sync_debug_mode(), torch.cuda.is_current_stream_capturing
        thread_id = threading.get_ident()

        def is_capturing() -> bool:
            return threading.get_ident() == thread_id or original()

        is_capturing._dynamo_marked_constant = True  # type: ignore[attr-defined] # Compiled code may ask, and knows no threads.
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
    """Shows warnings as before, but that something waits for the GPU is an error here, and for `show_others` to see or not."""

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
