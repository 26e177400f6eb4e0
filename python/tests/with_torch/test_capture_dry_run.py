"""A dry run affects one thread: others may sync with the GPU, and see no capture."""

import threading
import warnings
from unittest import mock

import pytest
import torch

from farrier.torch.capture_dry_run import SYNC_WARNING, simulated_capture
from farrier.torch.explain import explain_error


@pytest.fixture(autouse=True, params=[0, 1, 2])
def mode(request):
    """The process's sync debug modes so far (0 off, 1 warn, 2 error); the last is in force."""
    was = [request.param]
    cuda = {
        "get_sync_debug_mode": lambda: was[-1],
        "set_sync_debug_mode": was.append,
        "is_current_stream_capturing": lambda: False,
    }
    with mock.patch.multiple(torch.cuda, **cuda):
        yield was
    assert was[-1] == request.param, "restored"


def wait_for_the_gpu(mode):
    """Syncs as torch does: an error or a warning, by the process's mode."""
    if mode[-1] == 2:
        raise RuntimeError(SYNC_WARNING)
    if mode[-1] == 1:
        warnings.warn(f"{SYNC_WARNING} (Triggered internally at CUDAFunctions.cpp:1.)", stacklevel=2)


def in_another_thread(act):
    """The function's result, or the error that it raised."""
    found = []

    def run():
        try:
            found.append(act())
        except Exception as err:
            found.append(err)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0]


def test_a_sync_in_this_thread_is_an_error_with_its_line(mode):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # The user's own filters must not hide the sync.
        with pytest.raises(RuntimeError, match="synchronizing") as caught, simulated_capture():
            wait_for_the_gpu(mode)
    found = explain_error(caught.value)
    assert "waits for the GPU" in found.cause
    assert found.location.startswith("test_capture_dry_run.py:")


def test_every_occurrence_is_reported(mode):
    for _ in range(2):
        with pytest.raises(RuntimeError, match="synchronizing"), simulated_capture():
            wait_for_the_gpu(mode)


def test_another_thread_may_sync(mode):
    before = mode[-1]
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with simulated_capture():
            assert before == 2 or 2 not in mode, "no other thread's work becomes an error"
            found = in_another_thread(lambda: wait_for_the_gpu(mode))
            warnings.warn("something else", stacklevel=1)
    assert isinstance(found, RuntimeError) == (before == 2), "only if the user requested it"
    assert [SYNC_WARNING in str(each.message) for each in seen] == [True] * (before == 1) + [False]


def test_only_this_thread_looks_captured():
    with simulated_capture():
        assert torch.cuda.is_current_stream_capturing()
        assert in_another_thread(torch.cuda.is_current_stream_capturing) is False
    assert not torch.cuda.is_current_stream_capturing()


def test_concurrent_dry_runs_take_turns_and_restore_state(mode):
    shown, asked = warnings.showwarning, torch.cuda.is_current_stream_capturing
    began = threading.Event()

    def dry_run():
        began.set()
        with simulated_capture():
            return torch.cuda.is_current_stream_capturing()

    other = threading.Thread(target=dry_run)
    with simulated_capture():
        other.start()
        assert began.wait(10)
        assert torch.cuda.is_current_stream_capturing()
    other.join(10)
    assert not other.is_alive()
    assert (warnings.showwarning, torch.cuda.is_current_stream_capturing) == (shown, asked)


def test_compiled_code_may_query_capture():
    compiled = torch.compile(lambda x: x + torch.cuda.is_current_stream_capturing(), backend="eager", fullgraph=True)
    with simulated_capture():
        assert float(compiled(torch.zeros(()))) == 1
