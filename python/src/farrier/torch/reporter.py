"""Tells the node's agent of steps, without waiting for the GPU.

A call of a step returns when it is launched; when it has ended, the GPU knows. So a mark is left on the GPU's stream about
once a second, and asked at later steps whether it was passed, which never waits. What is told is then true: the step has
ended, and the time between two marks is that of the steps between them.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from farrier import agent

log = logging.getLogger("farrier.torch")

#: Seconds between two messages. One costs 25 to 50 microseconds, and a person looks less often.
EVERY_S = 1.0
#: When the next message is due on a GPU that has failed.
_FAILED = float("inf")


class DeviceEvent(Protocol):
    """A point in the work of a device."""

    def is_complete(self) -> bool:
        """Whether the device has come to it. Does not wait."""

    def seconds_since(self, before: Any) -> float:
        """Seconds from an earlier mark to this one, both passed."""


class HostEvent:
    """Without a GPU what was called has ended."""

    def __init__(self) -> None:
        self._at_s = time.perf_counter()

    def is_complete(self) -> bool:
        """Always."""
        return True

    def seconds_since(self, before: HostEvent) -> float:
        """Seconds on the host's clock."""
        return self._at_s - before._at_s


class CudaEvent:
    """An event on the current stream."""

    def __init__(self, device: torch.device) -> None:
        make: Any = torch.cuda.Event
        self._event = make(enable_timing=True)
        self._event.record(torch.cuda.current_stream(device))

    def is_complete(self) -> bool:
        """Whether the event has happened."""
        return bool(self._event.query())

    def seconds_since(self, before: CudaEvent) -> float:
        """Seconds on the GPU's clock."""
        return float(before._event.elapsed_time(self._event)) / 1e3


@dataclass(frozen=True)
class LaunchedStep:
    """A step that was launched, and what is told of it once it has ended."""

    step: int
    event: DeviceEvent
    pauses: int
    loss: Tensor | float | None


class StepReporter:
    """Counts steps, and tells of one about every second. Some hundred nanoseconds a step; a mark that waits costs a query.

    Attributes:
        count: steps that were made, those before this process included.
    """

    def __init__(self, job: agent.Job | None, *, device: torch.device, tokens: int | None, first_step: int) -> None:
        self.count = first_step
        self._job, self._device, self._tokens = job, device, tokens
        self._due_s: float | None = None
        self._last: LaunchedStep | None = None
        self._pending: LaunchedStep | None = None

    @property
    def job(self) -> agent.Job:
        """Whom it is told through: what was given, or the job of this process, with this GPU."""
        if self._job is None:
            self._job = agent.job(gpu=_uuid(self._device))
        return self._job

    def step_begin(self) -> None:
        """A step begins. At the first the agent hears that the job trains."""
        if self._due_s is None:
            self._due_s = 0.0
            self.job.phase("train")

    def step_launched(self, result: Any) -> None:
        """A step was launched."""
        self.count += 1
        if self._pending is not None or (self._due_s is not None and time.perf_counter() >= self._due_s):
            self._report_if_completed(result)

    def flush(self) -> None:
        """Waits for the end of the last step, and tells of it, if it was not told. No step waits: this is for the end."""
        if self._due_s in (None, _FAILED) or (self._last is not None and self._last.step == self.count):
            return
        if self._pending is not None and self._pending.step != self.count:
            self._pending = None
        self._report_if_completed(None, wait=True)

    def _launched(self, result: Any) -> LaunchedStep:
        event: DeviceEvent = CudaEvent(self._device) if self._device.type == "cuda" else HostEvent()
        return LaunchedStep(self.count, event, self.job.pauses, _host_loss(result))

    def _report_if_completed(self, result: Any, *, wait: bool = False) -> None:
        """Tells of the step that waits for its end, or of this one, if the device has come to it; or waits until it has."""
        last = self._last
        try:
            launched = self._pending = self._pending or self._launched(result)
            if wait and self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
            if not launched.event.is_complete():
                return
            # The first step compiles, and with a checkpoint in between the time is none of steps.
            had_pause = last is None or last.pauses != launched.pauses
            seconds = (
                None
                if last is None or had_pause
                else launched.event.seconds_since(last.event) / (launched.step - last.step)
            )
            loss = None if launched.loss is None else float(launched.loss)
        except RuntimeError as err:  # The GPU has failed: the next operation on it says so to the user.
            log.debug("the end of a step is not known: %s", err)
            self._pending, self._due_s = None, _FAILED
            return
        self.job.step_end(launched.step, seconds=seconds, tokens=self._tokens, loss=loss)
        self._pending, self._last = None, launched
        self._due_s = time.perf_counter() + EVERY_S


def _host_loss(result: Any) -> Tensor | float | None:
    """The loss, where reading it waits for nothing once the step has ended: a number, or a tensor that is not on a GPU."""
    if isinstance(result, Tensor):
        return result if result.device.type == "cpu" and result.numel() == 1 else None
    return float(result) if isinstance(result, float | int) and not isinstance(result, bool) else None


def _uuid(device: torch.device) -> str | None:
    if device.type != "cuda":
        return None
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    return None if uuid is None else str(uuid)
