"""Writes Keras checkpoints atomically and reports the outcome to the agent."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

from farrier.agent import Job

log = logging.getLogger("farrier.keras")


class CheckpointWriter:
    """Calls a save function, and reports the outcome to the agent."""

    def __init__(self, save: Callable[[Any, int], object], *, notify: bool = True) -> None:
        self._save, self._notify = save, notify

    def __call__(self, model: Any, step: int, job: Job) -> bool:
        """Returns whether the model was saved.

        An error is reported and logged, and training continues.
        """
        try:
            self._save(model, step)
        except Exception as err:
            log.exception("failed to save checkpoint of step %d", step)
            job.checkpoint_failed(f"{type(err).__name__}: {err}")
            return False
        job.checkpoint_done(step, notify=self._notify)
        return True


def path_writer(template: str, job: Job) -> CheckpointWriter:
    """Saves to a path with `{step}`, and with `{rank}` if every rank writes its own file.

    Raises:
        ValueError: the path has another field, or an extension that Keras does not write.
    """
    try:
        template.format(step=1, rank=0)
    except (KeyError, IndexError, ValueError) as err:
        raise ValueError(f"`{template}` may contain only {{step}} and {{rank}} in braces") from err
    if not template.endswith((".keras", ".weights.h5")):
        raise ValueError(f"`{template}` must end in .keras (all) or .weights.h5 (weights)")
    writes_here = job.rank == 0 or "{rank}" in template

    def save(model: Any, step: int) -> None:
        if writes_here:
            save_atomically(model, template.format(step=step, rank=job.rank))

    return CheckpointWriter(save, notify=writes_here)


def save_atomically(model: Any, path: str) -> None:
    """Writes to a temporary file, syncs it and renames it, so a crash leaves no partial file."""
    folder, name = os.path.split(path)
    os.makedirs(folder or ".", exist_ok=True)
    # Keras chooses the format by extension.
    temporary = os.path.join(folder, f".{os.getpid()}-{name}")
    try:
        if path.endswith(".weights.h5"):
            model.save_weights(temporary)
        else:
            model.save(temporary)
        _fsync(temporary)
        os.replace(temporary, path)
        _fsync(folder or ".")
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)


def _fsync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
