"""Reports steps to the node's agent without waiting for the GPU.

The call of a step returns when its work is launched; only the GPU knows when the step has ended. So
about once a second the reporter records an event on the GPU's stream, and queries it at later
steps, which never blocks. It therefore reports only steps that have ended. The time between two
events, divided by the steps between them, is the duration of a step.
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

#: Seconds between two messages. A message costs 25 to 50 microseconds, and nothing needs more than
#: one per second.
EVERY_S = 1.0
#: When the next message is due after a GPU failure: never.
_FAILED = float("inf")


class DeviceEvent(Protocol):
    """A point in the sequence of work on a device."""

    def is_complete(self) -> bool:
        """Whether the device has reached the event. Does not block."""

    def seconds_since(self, before: Any) -> float:
        """Seconds from an earlier event to this one. Both must be complete."""


class HostEvent:
    """An event without a GPU. It is always complete, because a step ends when its call returns."""

    def __init__(self) -> None:
        self._at_s = time.perf_counter()

    def is_complete(self) -> bool:
        """Always true."""
        return True

    def seconds_since(self, before: HostEvent) -> float:
        """Seconds on the host's clock."""
        return self._at_s - before._at_s


class CudaEvent:
    """A CUDA event on the current stream."""

    def __init__(self, device: torch.device) -> None:
        make: Any = torch.cuda.Event
        self._event = make(enable_timing=True)
        self._event.record(torch.cuda.current_stream(device))

    def is_complete(self) -> bool:
        """Whether the event has completed."""
        return bool(self._event.query())

    def seconds_since(self, before: CudaEvent) -> float:
        """Seconds on the GPU's clock."""
        return float(before._event.elapsed_time(self._event)) / 1e3


@dataclass(frozen=True)
class LaunchedStep:
    """A launched step, and what to report when it has ended."""

    step: int
    event: DeviceEvent
    pauses: int
    loss: Tensor | float | None


class StepReporter:
    """Counts steps, and reports one step about every second.

    It adds some hundred nanoseconds to each step, and a query while an event is pending.

    Attributes:
        count: number of steps launched, including those of earlier processes (`first_step`).
    """

    def __init__(self, job: agent.Job | None, *, device: torch.device, tokens: int | None, first_step: int) -> None:
        self.count = first_step
        self._job, self._device, self._tokens = job, device, tokens
        self._due_s: float | None = None
        self._last: LaunchedStep | None = None
        self._pending: LaunchedStep | None = None

    @property
    def job(self) -> agent.Job:
        """The job to report through: the given one, or this process's job with this GPU."""
        if self._job is None:
            self._job = agent.job(gpu=_uuid(self._device))
        return self._job

    def step_begin(self) -> None:
        """Marks the start of a step. The first call reports the phase `train`."""
        if self._due_s is None:
            self._due_s = 0.0
            self.job.phase("train")

    def step_launched(self, result: Any) -> None:
        """Marks the launch of a step."""
        self.count += 1
        if self._pending is not None or (self._due_s is not None and time.perf_counter() >= self._due_s):
            self._report_if_completed(result)

    def flush(self) -> None:
        """Waits for the last step, and reports it if it was not reported yet.

        Only for the end of training, because it waits for the GPU.
        """
        if self._due_s in (None, _FAILED) or (self._last is not None and self._last.step == self.count):
            return
        if self._pending is not None and self._pending.step != self.count:
            self._pending = None
        self._report_if_completed(None, wait=True)

    def _launched(self, result: Any) -> LaunchedStep:
        event: DeviceEvent = CudaEvent(self._device) if self._device.type == "cuda" else HostEvent()
        return LaunchedStep(self.count, event, self.job.pauses, _host_loss(result))

    def _report_if_completed(self, result: Any, *, wait: bool = False) -> None:
        """Reports the pending step, or this one if none is pending, if the device has completed it.

        With `wait`, it blocks until the device has completed the step.
        """
        last = self._last
        try:
            launched = self._pending = self._pending or self._launched(result)
            if wait and self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
            if not launched.event.is_complete():
                return
            # No time is reported for the first step, which includes compilation, or if a phase or
            # a checkpoint was reported in between.
            had_pause = last is None or last.pauses != launched.pauses
            seconds = (
                None
                if last is None or had_pause
                else launched.event.seconds_since(last.event) / (launched.step - last.step)
            )
            loss = None if launched.loss is None else float(launched.loss)
        except RuntimeError as err:  # The GPU has failed; the user's next operation on it raises.
            log.debug("cannot determine the end of a step: %s", err)
            self._pending, self._due_s = None, _FAILED
            return
        self.job.step_end(launched.step, seconds=seconds, tokens=self._tokens, loss=loss)
        self._pending, self._last = None, launched
        self._due_s = time.perf_counter() + EVERY_S


def _host_loss(result: Any) -> Tensor | float | None:
    """The loss if it is a number or a CPU tensor, which can be read without waiting for the GPU."""
    if isinstance(result, Tensor):
        return result if result.device.type == "cpu" and result.numel() == 1 else None
    return float(result) if isinstance(result, float | int) and not isinstance(result, bool) else None


def _uuid(device: torch.device) -> str | None:
    if device.type != "cuda":
        return None
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    return None if uuid is None else str(uuid)
