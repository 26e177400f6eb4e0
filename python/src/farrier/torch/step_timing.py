"""Times a step, and profiles how long the GPU is busy in it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
from torch._C._autograd import DeviceType

from farrier.torch.graph_policy import StepTiming

Result = TypeVar("Result")


def time_step(run: Callable[[], Result]) -> tuple[Result, StepTiming]:
    """Runs a step between two GPU synchronisations."""
    torch.cuda.synchronize()
    start_s = time.perf_counter()
    result = run()
    enqueued_s = time.perf_counter()
    torch.cuda.synchronize()
    end_s = time.perf_counter()
    return result, StepTiming(wall_s=end_s - start_s, enqueue_s=enqueued_s - start_s)


def profile_step(run: Callable[[], Result], wall_s: float, enqueue_s: float) -> tuple[Result, StepTiming]:
    """Runs a step under the profiler. `wall_s` and `enqueue_s` are those of an unprofiled step.

    If another profiler uses the GPU, the step still runs, but its GPU time stays unknown.
    """
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    profiler = torch.profiler.profile(activities=activities, acc_events=True)
    try:
        profiler.start()
    except RuntimeError:
        return run(), StepTiming(wall_s, enqueue_s)
    try:
        result = run()
        torch.cuda.synchronize()
    finally:
        profiler.stop()
    return result, timing_from_profile(profiler.events(), wall_s, enqueue_s)  # type: ignore[no-untyped-call]


def timing_from_profile(events: Iterable[Any] | None, wall_s: float, enqueue_s: float) -> StepTiming:
    """Extracts GPU busy time and kernel launches from a profile."""
    spans: list[tuple[float, float]] = []
    launches, launch_us = 0, 0.0
    for event in events or ():
        if event.device_type == DeviceType.CUDA:
            spans.append((event.time_range.start, event.time_range.end))
        elif event.name.startswith(("cudaLaunch", "cuLaunch", "cudaGraphLaunch")):
            launches += 1
            launch_us += event.time_range.end - event.time_range.start
    if not spans:
        return StepTiming(wall_s, enqueue_s)
    return StepTiming(wall_s, enqueue_s, union_length(spans) / 1e6, launches, launch_us / 1e6)


def union_length(spans: Iterable[tuple[float, float]]) -> float:
    """Total length covered by the spans, counting overlaps once."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        if end > reached:
            total += end - max(start, reached)
            reached = end
    return total
