"""The Keras callback. It starts no thread, and waits for the GPU once every few seconds."""

from __future__ import annotations

import functools
import logging
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import keras

from farrier import agent, oom
from farrier.cadence import Cadence
from farrier.keras.checkpoint_writer import CheckpointWriter, path_writer
from farrier.keras.rank import job_for_backend

log = logging.getLogger("farrier.keras")

#: A function of model and step, or a path with `{step}` and optionally `{rank}`.
Save = Callable[[Any, int], object] | str | os.PathLike[str]


class Callback(keras.callbacks.Callback):  # type: ignore[misc]
    """Reports steps, phases and out-of-memory to the node's agent, and saves on its request.

    It acts when a batch begins, not when a batch ends: a callback with `on_train_batch_end` would
    keep Keras from handling the logs of finished batches (the progress bar) asynchronously.

    Attributes:
        job: the connection to the agent.
        step: number of steps done, including those before this call of `fit`.
        last_saved_step: the step of the last checkpoint that was written, or None.
    """

    def __init__(
        self,
        *,
        tokens: int | None = None,
        save: Save | None = None,
        save_every: int | None = None,
        stop_after_checkpoint: bool = False,
        agree: Callable[[bool], bool] | None = None,
        agree_every: int = 50,
        first_step: int | None = None,
        job: agent.Job | None = None,
    ) -> None:
        """Values that are not given are not reported.

        Args:
            tokens: tokens per step on this rank.
            save: how to save when the agent requests a checkpoint. If it is a path, rank 0 writes
                the file, or every rank its own file if the path contains `{rank}`.
            save_every: number of steps between periodic saves. If the last step of training is not
                saved by then, it is saved too.
            stop_after_checkpoint: ends training after a checkpoint that the agent requested, so
                that a scheduler can restart it elsewhere.
            agree: with several ranks, a function that returns True on all ranks if any rank called
                it with True. Without `agree`, each rank saves when that rank receives the request.
            agree_every: steps between two calls of `agree`, made at the same steps on all ranks.
            first_step: number of steps completed before this call of `fit`; None uses the
                optimizer's count.
            job: None uses the job of this process.

        Raises:
            ValueError: `save_every` is not a number of steps, or `save` is missing.
        """
        super().__init__()
        if save_every is not None and (save_every < 1 or save is None):
            raise ValueError(f"save_every is {save_every}: it must be 1 or more, and needs `save`")
        self.job, self._tokens, self._agree = job, tokens, agree
        self._agree_every, self._first_step = max(1, agree_every), first_step
        self._stop_after_checkpoint = stop_after_checkpoint
        self._writer: CheckpointWriter | None = None
        self._save, self._save_every = save, save_every
        self.last_saved_step: int | None = None
        self._stop_reason: str | None = None
        self._cadence = Cadence()
        self.step = 0
        self._start = self._epoch_start = self._batches_begun = 0
        self._executed = 1
        self._compiled = False
        self._training = False
        self._logs: Any = None

    @property
    def checkpoint_wanted(self) -> str | None:
        """The reason for a requested checkpoint, or None, for code that saves by itself."""
        return None if self.job is None else self.job.checkpoint_wanted

    def request_stop(self, reason: str) -> None:
        """Ends training after the current step, with a checkpoint if `save_every` is set.

        It may be called from a signal handler. If it is called before `fit`, `fit` makes one step.
        """
        self._stop_reason = reason

    def on_train_begin(self, logs: Any = None) -> None:
        """Connects the job, and wraps the training function to detect out-of-memory."""
        model = self.model
        if self.job is None:
            self.job = job_for_backend(keras.backend.backend())
        if isinstance(self._save, str | os.PathLike):
            self._writer = path_writer(os.fspath(self._save), self.job)
        elif self._save is not None:
            self._writer = CheckpointWriter(self._save)
        self._start = _steps_done(model) if self._first_step is None else self._first_step
        self._epoch_start = self._batches_begun = self.step = self._start
        self._executed = max(1, int(getattr(model, "steps_per_execution", 1) or 1))
        self._compiled, self._training = False, True
        self._wrap_train_function(model)
        self.job.phase("compile")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Starts the clock."""
        self._epoch_start = self.step
        self._cadence.start(self.step, time.perf_counter())

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Called after `batch` batches of the epoch were launched."""
        # `before` is the step count when the previous batch began. No batch begins after the last
        # step of an epoch, so a save that falls on that step is found at the first batch of the
        # next epoch.
        before, self._batches_begun = self._batches_begun, self._epoch_start + batch
        self.step = self._batches_begun
        if batch and (not self._compiled or self._cadence.due(self.step)):
            self._report()
        elif self.job is not None:
            self.job.poll()
        if self._should_save_on_request(before):
            self._save_now(requested=True)
        elif self._periodic_save_due(before):
            self._save_now(requested=False)
        if self._stop_reason is not None and not self.model.stop_training:
            log.warning("stopping training after the current step: %s", self._stop_reason)
            self.model.stop_training = True

    def on_test_begin(self, logs: Any = None) -> None:
        """An evaluation begins, during training or separately."""
        self._close_epoch()
        if self.job is None:
            self.job = job_for_backend(keras.backend.backend())
        self.job.phase("evaluate")

    def on_test_end(self, logs: Any = None) -> None:
        """The evaluation ends."""
        if self._training and self.job is not None:
            self.job.phase("train")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """The steps of the epoch are done."""
        self._close_epoch()

    def on_train_end(self, logs: Any = None) -> None:
        """Training is over."""
        if self._save_every is not None and self.step not in (self._start, self.last_saved_step):
            self._save_now(requested=False)
        self._training, self._stop_reason = False, None
        self._unwrap_train_function()
        if self.job is not None:
            self.job.phase("done")

    def _close_epoch(self) -> None:
        """Counts and reports the last steps of an epoch, because no batch begins after them.

        Idempotent.
        """
        if self._logs is None or not self._training:
            return
        steps = (self.params or {}).get("steps")
        done = self.step + self._executed
        self.step = min(done, self._epoch_start + int(steps)) if steps else done
        self._report()
        self._logs = None

    def _report(self) -> None:
        """Waits for the steps launched so far, and reports the last one."""
        if self.job is None:
            return
        with oom.reporting(self.job):  # Work launched earlier may fail only now.
            loss = _loss(self._logs)
        seconds = self._cadence.record_sync(self.step, time.perf_counter())
        if not self._compiled:
            # The first step includes compilation, so its time is not reported.
            self._compiled, seconds = True, None
            self.job.phase("train")
        self.job.step_end(self.step, seconds=seconds, tokens=self._tokens, loss=loss)

    def _should_save_on_request(self, before: int) -> bool:
        """Whether to save now because the agent of some rank requested it.

        All ranks call `agree` at the same steps, whether or not they received the request.
        """
        if self.job is None or self._writer is None or self.step == self._start:
            return False  # Nothing new to save, and the optimizer may have no state yet.
        requested = self.job.checkpoint_wanted is not None
        if self._agree is None:
            return requested
        # The ranks agree at periodic saves too: `checkpoint_done` clears the request on the rank
        # that received it, and the other ranks would never learn of it.
        check_now = self.step // self._agree_every > before // self._agree_every or self._periodic_save_due(before)
        return check_now and self._agree(requested)

    def _periodic_save_due(self, before: int) -> bool:
        """Whether a periodic save is due; the same on all ranks."""
        every = self._save_every
        return every is not None and self.step != self._start and self.step // every > before // every

    def _save_now(self, *, requested: bool) -> None:
        """Saves. With `requested`, the agent asked for the save, and training may end after it."""
        if self.job is None or self._writer is None:
            return
        reason = self.job.checkpoint_wanted or "another rank received a checkpoint request"
        self.job.phase("checkpoint")
        # `self.model`, not `self._model`: on JAX the property copies the trained weights back into
        # the model.
        saved = self._writer(self.model, self.step, self.job)
        self.job.phase("train")
        self._cadence.start(self.step, time.perf_counter())
        if saved:
            self.last_saved_step = self.step
            if requested and self._stop_after_checkpoint:
                self.request_stop(reason)

    def _wrap_train_function(self, model: Any) -> None:
        """Wraps the model's training function, to see its errors and logs.

        Keras looks the function up as an attribute of the model at each call.
        """
        inner = getattr(model, "train_function", None)
        if inner is None:
            return
        inner = getattr(inner, "_farrier_inner", inner)

        @functools.wraps(inner)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with oom.reporting(self.job):
                result = inner(*args, **kwargs)
            # On JAX the function returns the logs and the state.
            self._logs = result[0] if isinstance(result, tuple) else result
            return result

        wrapped._farrier_inner = inner  # type: ignore[attr-defined]
        model.train_function = wrapped

    def _unwrap_train_function(self) -> None:
        model = self._model
        inner = getattr(getattr(model, "train_function", None), "_farrier_inner", None)
        if inner is not None:
            model.train_function = inner


def _loss(logs: Any) -> float | None:
    """The loss, which Keras averages over the epoch so far. Reading it waits for the GPU."""
    if not isinstance(logs, Mapping) or not logs:
        return None
    value = logs.get("loss")
    value_read = float(value if value is not None else next(iter(logs.values())))
    return None if value is None else value_read


def _steps_done(model: Any) -> int:
    """Number of batches that the optimizer has processed."""
    optimizer = getattr(model, "optimizer", None)
    iterations = getattr(optimizer, "iterations", None)
    if iterations is None:
        return 0
    return int(iterations) * int(getattr(optimizer, "gradient_accumulation_steps", None) or 1)
