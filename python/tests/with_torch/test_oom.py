"""Which errors are out-of-memory, and that they keep no memory alive."""

import gc
import weakref

import pytest
import torch

import farrier.torch
from farrier import oom
from farrier.torch.memory_meter import CudaMemoryMeter
from farrier.torch.memory_reserve import MemoryReserve
from farrier.torch.oom import clear_frames, parse_oom

# torch 2.11's message under a memory fraction.
REAL = (
    "CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of 139.80 GiB of which 109.01 GiB is free. "
    "Process 1 has 30.79 GiB memory in use. 30.00 GiB allowed; Of the allocated memory 27.25 GiB is allocated by PyTorch, "
    "and 512.00 MiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting ..."
)


def test_torch_errors_state_the_amount():
    failure = parse_oom(torch.OutOfMemoryError(REAL))
    assert failure.requested_bytes == 3 * 2**29
    assert failure.allocated_bytes == int(27.25 * 2**30)


@pytest.mark.parametrize(
    "message",
    [
        "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "CUDA driver error: CUDA_ERROR_OUT_OF_MEMORY",
        "HIP out of memory. Tried to allocate 2.00 GiB.",
        "[enforce fail at alloc_cpu.cpp:118] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 8",
    ],
)
def test_other_out_of_memory_messages(message):
    failure = parse_oom(RuntimeError(message))
    assert failure is not None
    assert "\n" not in failure.message
    detected = oom.detect(RuntimeError(message))
    assert (detected is None) == ("DefaultCPUAllocator" in message), "only GPU memory is reported to the agent"


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("CUDA error: device-side assert triggered"),
        RuntimeError("NCCL error: unhandled cuda error, Cuda failure 2 'out of memory': CUDA error: out of memory"),
        RuntimeError("out of resource: shared memory, Required: 262144, Hardware limit: 232448"),
        RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
        ValueError("CUDA out of memory"),
        KeyboardInterrupt(),
        RuntimeError(""),
    ],
    ids=lambda error: str(error)[:20],
)
def test_other_errors_are_not_out_of_memory(error):
    assert parse_oom(error) is None


class Held:
    pass


def test_frames_of_errors_and_causes_are_cleared():
    watched = []

    def inner():
        held = Held()
        watched.append(weakref.ref(held))
        raise ValueError("first")

    def outer():
        held = Held()
        watched.append(weakref.ref(held))
        try:
            inner()
        except ValueError as first:
            raise torch.OutOfMemoryError("CUDA out of memory.") from first

    gc.disable()
    try:
        try:
            outer()
        except torch.OutOfMemoryError as error:
            kept = error
        assert all(reference() is not None for reference in watched), "the traceback references them"
        clear_frames(kept)
        assert all(reference() is None for reference in watched)
    finally:
        gc.enable()


def test_a_failed_attempt_is_freed_before_the_next(net, batch):
    """Also if the error itself is kept, as a logger may do."""
    model, watched, kept = net(), [], []

    def attempt(given):
        held = Held()
        watched.append(weakref.ref(held))
        out = model(given["x"])
        if given["x"].shape[0] > 2:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return (out**2).mean()

    def loss_fn(given):
        assert all(reference() is None for reference in watched), "nothing references the failed attempt"
        try:
            return attempt(given)
        except torch.OutOfMemoryError as error:
            kept.append(error)
            raise

    run = farrier.torch.guard(loss_fn, model=model)
    run(batch())
    assert run.report.ooms >= 2


def test_no_collection_inside_a_step_pool(monkeypatch):
    collected = []

    def refuse():
        raise RuntimeError("captures_underway.empty() INTERNAL ASSERT FAILED")

    monkeypatch.setattr(torch.cuda, "empty_cache", refuse)
    monkeypatch.setattr(gc, "collect", lambda: collected.append(1))
    CudaMemoryMeter(torch.device("cuda")).free()
    assert len(collected) == 1
    gc.disable()
    try:
        CudaMemoryMeter(torch.device("cuda")).free()
    finally:
        gc.enable()
    assert len(collected) == 1


def test_the_reserve_is_acquired_and_released():
    reserve = MemoryReserve(1000, "cpu")
    assert reserve.is_held
    reserve.release()
    assert not reserve.is_held
    assert reserve.acquire()
    assert reserve.acquire(), "acquiring twice is harmless"
    with pytest.raises(ValueError, match="reserves nothing"):
        MemoryReserve(0, "cpu")


def test_a_reserve_that_does_not_fit_raises(monkeypatch):
    def full(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    reserve = MemoryReserve(1000, "cpu")
    reserve.release()
    monkeypatch.setattr(torch, "empty", full)
    assert not reserve.acquire()
    with pytest.raises(MemoryError, match="make it smaller"):
        MemoryReserve(1000, "cpu")
