"""Errors as the frameworks raise them, without the frameworks."""

import pytest

from farrier import oom


def error(name, text, base=RuntimeError):
    return type(name, (base,), {})(text)


TORCH = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139.80 GiB of which 1.00 GiB is free."
)
TENSORFLOW = (
    "{{function_node __wrapped__MatMul}} OOM when allocating tensor with shape[8,1024,1024] and type float on "
    "/job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc [Op:MatMul]"
)
XLA = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4294967296 bytes."


@pytest.mark.parametrize(
    ("err", "wanted"),
    [
        (error("OutOfMemoryError", TORCH), 2 << 30),
        (error("ResourceExhaustedError", TENSORFLOW, Exception), 8 * 1024 * 1024 * 4),
        (error("ResourceExhaustedError", "Out of memory while trying to allocate 1024 bytes. [Op:__inference]"), 1024),
        (error("ResourceExhaustedError", "failed to allocate memory [Op:AddV2]"), None),
        (error("XlaRuntimeError", XLA), 4 << 30),
        (error("JaxRuntimeError", "RESOURCE_EXHAUSTED: Out of memory allocating 512 bytes."), 512),
        (RuntimeError("CUDA error: out of memory"), None),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), None),
        (error("OutOfMemoryError", ""), None),
    ],
)
def test_gpu_out_of_memory_is_detected(err, wanted):
    found = oom.detect(err)
    assert found is not None
    assert found.bytes_wanted == wanted


@pytest.mark.parametrize(
    "err",
    [
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9"
        ),
        error("ResourceExhaustedError", TENSORFLOW.replace("GPU:0", "CPU:0")),
        error("ResourceExhaustedError", "Received message larger than max (5 vs. 4)"),
        error("XlaRuntimeError", "INTERNAL: ptxas failed"),
        error("XlaRuntimeError", "RESOURCE_EXHAUSTED: too many streams"),
        MemoryError("Unable to allocate 9 GiB"),
        ValueError("CUDA out of memory"),
        KeyboardInterrupt(),
    ],
)
def test_other_errors_are_not_detected(err):
    assert oom.detect(err) is None


def test_causes_are_followed_and_cycles_end():
    outer = RuntimeError("the step failed")
    outer.__cause__ = error("XlaRuntimeError", XLA)
    assert oom.detect(outer).bytes_wanted == 4 << 30
    one, other = RuntimeError("1"), RuntimeError("2")
    one.__cause__, other.__cause__ = other, one
    assert oom.detect(one) is None


@pytest.mark.parametrize("text", ["to allocate . GiB", "to allocate 1.2.3 GiB", "to allocate 5 apples", ""])
def test_unparseable_amounts(text):
    assert oom.bytes_wanted(text) is None


def test_an_error_is_reported_once_and_raised(fake):
    err = error("OutOfMemoryError", TORCH)
    with pytest.raises(RuntimeError, match="CUDA out of memory"), oom.reporting(), oom.reporting():
        raise err
    rank = fake.accept()
    assert [message["type"] for message in rank.everything()] == ["hello", "oom"]
    with pytest.raises(ValueError, match="x"), oom.reporting():
        raise ValueError("x")
    rank.assert_silent()


def test_without_an_agent_the_error_is_the_same(socket_path):
    with pytest.raises(RuntimeError, match="CUDA out of memory"), oom.reporting():
        raise error("OutOfMemoryError", TORCH)
