"""Reports steps to the node's agent without waiting for the GPU.

A step's call returns at launch; only the GPU knows when it has ended. So about once a second an
event is recorded on the GPU's stream and queried at later steps, which never blocks. Reported steps
have therefore completed, and the time between two events is that of the steps between them.
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
#: Due time of the next message after a GPU failure: never.
_FAILED = float("inf")


class DeviceEvent(Protocol):
    """A point in the work of a device."""

    def is_complete(self) -> bool:
        """Whether the device has reached it. Does not block."""

    def seconds_since(self, before: Any) -> float:
        """Seconds from an earlier event to this one, both complete."""


class HostEvent:
    """Without a GPU a called step has already ended."""

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
    """A launched step and what to report once it has ended."""

    step: int
    event: DeviceEvent
    pauses: int
    loss: Tensor | float | None


class StepReporter:
    """Counts steps and reports one about every second.

    A step costs some hundred nanoseconds; while an event is pending, also a query.

    Attributes:
        count: steps launched, including those before this process.
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
        """Marks the start of a step. The first one reports the phase `train`."""
        if self._due_s is None:
            self._due_s = 0.0
            self.job.phase("train")

    def step_launched(self, result: Any) -> None:
        """Marks the launch of a step."""
        self.count += 1
        if self._pending is not None or (self._due_s is not None and time.perf_counter() >= self._due_s):
            self._report_if_completed(result)

    def flush(self) -> None:
        """Waits for the last step and reports it, unless already reported.

        Only for the end of training.
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
        """Reports the pending step, or this one, if the device has completed it.

        `wait` blocks until it has.
        """
        last = self._last
        try:
            launched = self._pending = self._pending or self._launched(result)
            if wait and self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
            if not launched.event.is_complete():
                return
            # The first step compiles, and a checkpoint in between is not step time.
            had_pause = last is None or last.pauses != launched.pauses
            seconds = (
                None
                if last is None or had_pause
                else launched.event.seconds_since(last.event) / (launched.step - last.step)
            )
            loss = None if launched.loss is None else float(launched.loss)
        except RuntimeError as err:  # The GPU has failed; the next operation on it raises to the user.
            log.debug("cannot determine the end of a step: %s", err)
            self._pending, self._due_s = None, _FAILED
            return
        self.job.step_end(launched.step, seconds=seconds, tokens=self._tokens, loss=loss)
        self._pending, self._last = None, launched
        self._due_s = time.perf_counter() + EVERY_S


def _host_loss(result: Any) -> Tensor | float | None:
    """The loss, if reading it needs no sync once the step has ended: a number, or a CPU tensor."""
    if isinstance(result, Tensor):
        return result if result.device.type == "cpu" and result.numel() == 1 else None
    return float(result) if isinstance(result, float | int) and not isinstance(result, bool) else None


def _uuid(device: torch.device) -> str | None:
    if device.type != "cuda":
        return None
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    return None if uuid is None else str(uuid)
