"""Saving a Keras model when it is asked for: whole or not at all, and answered either way."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

from farrier.agent import Job

log = logging.getLogger("farrier.keras")


class CheckpointWriter:
    """A function that saves, and the answer to the agent."""

    def __init__(self, save: Callable[[Any, int], object], *, notify: bool = True) -> None:
        self._save, self._notify = save, notify

    def __call__(self, model: Any, step: int, job: Job) -> bool:
        """Whether it was saved. An error is told and logged, and the training goes on."""
        try:
            self._save(model, step)
        except Exception as err:
            log.exception("no checkpoint of step %d", step)
            job.checkpoint_failed(f"{type(err).__name__}: {err}")
            return False
        job.checkpoint_done(step, notify=self._notify)
        return True


def path_writer(template: str, job: Job) -> CheckpointWriter:
    """Saves to a path with `{step}` in it, and `{rank}` where every rank has its own file.

    Raises:
        ValueError: the path has another field, or is none that Keras writes.
    """
    try:
        template.format(step=1, rank=0)
    except (KeyError, IndexError, ValueError) as err:
        raise ValueError(f"`{template}` may have {{step}} and {{rank}} in it and nothing else in braces") from err
    if not template.endswith((".keras", ".weights.h5")):
        raise ValueError(f"`{template}` must end in .keras (all) or .weights.h5 (weights)")
    writes_here = job.rank == 0 or "{rank}" in template

    def save(model: Any, step: int) -> None:
        if writes_here:
            save_atomically(model, template.format(step=step, rank=job.rank))

    return CheckpointWriter(save, notify=writes_here)


def save_atomically(model: Any, path: str) -> None:
    """Writes beside the path and renames: who finds the file finds it whole, also after a fall of the node."""
    folder, name = os.path.split(path)
    os.makedirs(folder or ".", exist_ok=True)
    # Keras goes by the end of the name.
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
