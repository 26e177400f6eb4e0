"""The client against agents that behave and agents that do not."""

import json
import logging
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from types import ModuleType

import pytest
from fake_agent import PATIENCE_S, Agent

from farrier import agent, wire
from farrier.agent import Job


def ten_seconds_later(job):
    job._state.reconnect.last_attempt_s -= wire.CONNECT_EVERY_S


@contextmanager
def cheap():
    """Asserts that 10,000 calls take less than a second of CPU time and never block.

    Wall time is not measured, because other processes run.
    """
    waited, worked_s = waits(), time.process_time()
    yield
    worked_s, waited = time.process_time() - worked_s, waits() - waited
    assert worked_s < 1.0, f"{worked_s:.3f} s of work for 10,000 steps"
    assert waited < 1000, f"{waited} waits in 10,000 steps"


def waits():
    """Voluntary context switches of this thread: one each time that it blocked."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


def test_identity_comes_from_the_environment(fake, monkeypatch):
    for name, value in {"SLURM_JOB_ID": "4711", "RANK": "3", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}.items():
        monkeypatch.setenv(name, value)
    job = Job(gpu="GPU-5f2a")
    hello = fake.accept().receive()
    assert hello == {
        "type": "hello", "v": 1, "job": "4711", "rank": 3, "world_size": 16, "local_world_size": 8, "gpu": "GPU-5f2a",
    }  # fmt: skip
    assert (job.name, job.rank) == ("4711", 3)


def test_hello_reports_imported_frameworks(fake, monkeypatch):
    torch = ModuleType("torch")
    torch.__version__ = "2.11.0"
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(wire, "FRAMEWORKS", ("torch",))
    Job("j")
    assert fake.accept().receive()["frameworks"] == {"torch": "2.11.0"}


def test_arguments_override_the_environment_and_invalid_values_are_omitted(fake, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    monkeypatch.setenv("RANK", "first")
    monkeypatch.setenv("WORLD_SIZE", "-1")
    Job("mine", world_size=2)
    assert fake.accept().receive() == {"type": "hello", "v": 1, "job": "mine", "world_size": 2}


def test_every_message_type_is_sent(fake):
    job = Job("j")
    rank = fake.accept()
    job.phase("train")
    job.step_begin(1200)
    job.step_end(1200, seconds=1.42, tokens=65536, loss=float("nan"))
    job.oom(2147483648)
    job.oom()
    job.checkpoint_done(1200)
    job.checkpoint_failed("no space left on /ckpt")
    assert [rank.receive() for _ in range(8)] == [
        {"type": "hello", "v": 1, "job": "j"},
        {"type": "phase", "name": "train"},
        {"type": "step_begin", "step": 1200},
        {"type": "step_end", "step": 1200, "seconds": 1.42, "tokens": 65536, "loss": None},
        {"type": "oom", "bytes_wanted": 2147483648},
        {"type": "oom"},
        {"type": "checkpoint_done", "step": 1200},
        {"type": "checkpoint_failed", "message": "no space left on /ckpt"},
    ]
    assert (job.sent, job.dropped) == (7, 0)


def test_invalid_steps_are_dropped_and_counted(fake):
    job = Job("j")
    rank = fake.accept()
    rank.receive()
    job.step_begin(-1)
    job.step_end(2**64)
    job.step_end("x")
    rank.assert_silent()
    assert (job.sent, job.dropped) == (0, 3)


def test_a_missing_agent_is_no_error(socket_path):
    job = Job("j")
    for step in range(100):
        job.step_end(step)
    assert (job.sent, job.dropped, job.connected, job.checkpoint_wanted) == (0, 100, False, None)


def test_invalid_socket_paths_are_no_error(socket_path):
    socket_path.write_text("hello")
    for name in (str(socket_path), "/nowhere/at/all", "x" * 400, "a\0b"):
        job = Job("j", path=name)
        job.step_end(1)
        assert (job.sent, job.dropped) == (0, 1)


def test_a_socket_without_permission_or_listener(socket_path):
    dead = Agent(socket_path)
    dead.server.close()
    job = Job("j")
    job.step_end(1)
    assert job.dropped == 1


def test_an_empty_path_disables_reporting(fake, monkeypatch):
    monkeypatch.setenv("FARRIER_SOCKET", "")
    job = Job("j")
    job.step_end(1)
    fake.assert_no_connection()
    assert job.dropped == 1


def test_welcome_notice_and_checkpoint_request(fake, caplog):
    job = Job("j")
    rank = fake.accept()
    assert not job.connected
    rank.send(type="welcome", v=1)
    rank.send(type="notice", message="`GPU-x` is not on this node")
    rank.send(type="checkpoint_wanted", findings=["17-1"], reason="gpu.xid Xid 95")
    job.poll()
    assert job.connected
    assert job.checkpoint_wanted == "gpu.xid Xid 95"
    assert "is not on this node" in caplog.text
    assert "Xid 95" in caplog.text
    job.checkpoint_done(8)
    assert job.checkpoint_wanted is None


def test_step_end_reads_messages(fake):
    job = Job("j")
    fake.accept().send(type="checkpoint_wanted", findings=["17-1"], reason="r")
    job.step_end(1)
    assert job.checkpoint_wanted == "r"


def test_partial_lines_garbage_and_unknown_types_are_survived(fake):
    job = Job("j")
    rank = fake.accept()
    rank.raw(b'\xff\xfe\n[]\n{"type":"dance"}\n{"type":"checkpoint_wan')
    job.poll()
    assert job.checkpoint_wanted is None
    rank.raw(b'ted","findings":["17-1"],"reason":"r"}\n')
    job.poll()
    assert job.checkpoint_wanted == "r"
    rank.raw(b"x" * 100_000)
    for _ in range(4):
        job.poll()
    rank.raw(b'\n{"type":"welcome","v":1}\n')
    job.poll()
    assert job.connected
    assert job._state.invalid_lines == 2


@pytest.mark.parametrize("line", [b"x\n", b'{"type":"dance"}\n', b"x"])
def test_an_agent_that_never_stops_sending_does_not_delay_a_step(fake, line):
    job = Job("j")
    rank = fake.accept()
    stop = threading.Event()

    def talk():
        rank.connection.settimeout(0.05)
        while not stop.is_set():
            try:
                rank.connection.send(line * 20_000)
            except (TimeoutError, OSError):
                continue

    talker = threading.Thread(target=talk)
    talker.start()
    longest_s = 0.0
    try:
        for _ in range(20):
            # CPU time of this thread; wall time depends on other processes.
            began = time.thread_time()
            job.poll()
            longest_s = max(longest_s, time.thread_time() - began)
            time.sleep(0.01)
    finally:
        stop.set()
        talker.join()
    assert longest_s < 0.5


def test_a_peer_that_sends_garbage_is_disconnected(fake, caplog):
    job = Job("j")
    fake.accept().raw(b"HTTP/1.1 400 Bad Request\r\n" * 10)
    job.poll()
    job.step_end(1)
    assert job.dropped == 1
    assert "not an agent" in caplog.text


def test_an_agent_that_never_reads_does_not_block_and_gets_whole_lines(fake):
    job = Job("j")
    rank = fake.accept()
    with cheap():
        for step in range(10_000):
            job.step_end(step, seconds=1.0, tokens=4096, loss=2.5)
    assert job.dropped > 1000
    assert job.sent + job.dropped == 10_000
    # The agent wakes up and finds whole lines, with a gap where messages were dropped.
    rank.connection.settimeout(0.05)
    raw = b""
    try:
        while True:
            raw += rank.connection.recv(1 << 20)
            job.poll()
    except TimeoutError:
        pass
    job.step_end(20_000)
    rank.connection.settimeout(PATIENCE_S)
    while not raw.endswith(b"\n") or b"20000" not in raw:
        raw += rank.connection.recv(1 << 20)
    steps = [json.loads(line)["step"] for line in raw.splitlines()[1:]]
    assert steps[-1] == 20_000
    assert steps[:-1] == list(range(len(steps) - 1))


def test_the_rest_of_a_line_is_sent_first(fake):
    job = Job("j")
    rank = fake.accept()
    hello = rank.file.readline()
    assert b"hello" in hello
    # At this size the kernel takes whole lines or nothing, so simulate a partial send.
    line = wire.encode("phase", name="train")
    job._socket.send(line[:9])
    job._unsent = line[9:]
    job.step_end(1)
    assert rank.receive() == {"type": "phase", "name": "train"}
    assert rank.receive() == {"type": "step_end", "step": 1}


def test_an_agent_that_dies_mid_line(fake):
    job = Job("j")
    rank = fake.accept()
    rank.raw(b'{"type":"checkpoint_wanted","findings":["17-1"],"rea')
    rank.close()
    for step in range(10):
        job.step_end(step)
    assert job.dropped == 10
    assert job.checkpoint_wanted is None
    ten_seconds_later(job)
    job.step_end(10)
    again = fake.accept()
    assert again.receive()["type"] == "hello"
    assert again.receive() == {"type": "step_end", "step": 10}, "dropped messages are not resent"
    again.send(type="welcome", v=1)
    job.poll()
    assert job.connected


def test_reconnects_are_ten_seconds_apart(fake):
    job = Job("j")
    fake.accept().close()
    for step in range(100):
        job.step_end(step)
        job.poll()
    fake.assert_no_connection()
    ten_seconds_later(job)
    job.poll()
    assert fake.accept().receive()["type"] == "hello"


def test_a_restarted_agent_gets_the_saved_checkpoint(fake, socket_path):
    job = Job("j")
    rank = fake.accept()
    rank.send(type="checkpoint_wanted", findings=["17-1"], reason="r")
    job.poll()
    job.checkpoint_done(8)
    fake.die()
    job.step_end(9)
    restarted = Agent(socket_path)
    ten_seconds_later(job)
    job.step_end(10)
    rank = restarted.accept()
    assert [rank.receive()["type"] for _ in range(2)] == ["hello", "step_end"]
    rank.send(type="checkpoint_wanted", findings=["17-1"], reason="r")
    job.poll()
    assert job.checkpoint_wanted is None, "the finding is known and its checkpoint is on disk"
    assert rank.receive() == {"type": "checkpoint_done", "step": 8}
    rank.send(type="checkpoint_wanted", findings=["17-1", "18-1"], reason="another")
    job.poll()
    assert job.checkpoint_wanted == "another"
    restarted.server.close()


def test_a_refused_hello_is_not_retried(fake, caplog):
    job = Job("j")
    rank = fake.accept()
    rank.send(type="error", code="bad_hello", message="`job` is empty")
    rank.close()
    job.step_end(1)
    assert "`job` is empty" in caplog.text
    job._state.reconnect.last_attempt_s = float("-inf")
    for step in range(10):
        job.step_end(step)
    fake.assert_no_connection()
    assert job.dropped == 11


def test_the_last_message_is_read_after_a_failed_send(fake):
    job = Job("j")
    rank = fake.accept()
    rank.send(type="error", code="bad_hello", message="no")
    rank.connection.shutdown(socket.SHUT_RD)
    # Not through `poll` or `step_end`, which read before they send.
    job._send(b"x\n")
    assert job._state.reconnect.refused


def test_a_full_agent_is_retried_later(fake):
    job = Job("j")
    rank = fake.accept()
    rank.send(type="error", code="full", message="no room")
    rank.close()
    job.step_end(1)
    ten_seconds_later(job)
    job.step_end(2)
    again = fake.accept()
    assert [again.receive()["type"] for _ in range(2)] == ["hello", "step_end"]


def test_a_bad_line_does_not_end_the_connection(fake):
    job = Job("j")
    rank = fake.accept()
    rank.receive()
    rank.send(type="error", code="bad_line", message="expected value")
    job.step_end(1)
    assert rank.receive()["step"] == 1


def test_a_busy_listen_queue_does_not_block(socket_path):
    busy = Agent(socket_path, backlog=0)
    waiting = []
    for _ in range(4):
        other = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        other.setblocking(False)
        try:
            other.connect(str(socket_path))
        except BlockingIOError:
            break
        waiting.append(other)
    # A blocking connect would wait until the listener accepts, which it never does.
    job = Job("j")
    job.step_end(1)
    assert job.dropped == 1
    busy.server.close()


def test_a_child_after_a_fork_has_its_own_connection(fake):
    job = Job("j")
    rank = fake.accept()
    rank.receive()
    child = os.fork()
    if child == 0:
        job.step_end(77)
        os._exit(0 if job.sent == 1 else 1)
    assert os.waitpid(child, 0)[1] == 0
    own = fake.accept()
    assert [own.receive()["type"] for _ in range(2)] == ["hello", "step_end"]
    rank.assert_silent()
    job.step_end(1)
    assert rank.receive() == {"type": "step_end", "step": 1}, "the parent's connection continues"


def test_a_forked_child_does_not_share_buffer_or_lock(fake):
    job = Job("j")
    fake.accept()
    job._unsent = b"half a line\n"
    job._lock.acquire()
    child = os.fork()
    if child == 0:
        job.phase("train")
        os._exit(0 if job.sent == 1 else 1)
    assert os.waitpid(child, 0)[1] == 0
    own = fake.accept()
    assert [own.receive()["type"] for _ in range(2)] == ["hello", "phase"]
    job.phase("train")
    assert job.dropped == 1, "a call during another one is dropped without waiting"
    job._lock.release()


def test_child_programs_do_not_inherit_the_socket(fake):
    job = Job("j")
    assert not os.get_inheritable(job._socket.fileno())
    assert not job._socket.getblocking()


def test_the_last_message_before_exit_arrives(fake):
    source = "from farrier.agent import Job; import os; j = Job('j'); j.oom(5); os._exit(1)"
    folder = os.path.join(os.path.dirname(__file__), "..", "src")
    subprocess.run([sys.executable, "-c", source], env={**os.environ, "PYTHONPATH": folder}, check=False)
    rank = fake.accept()
    assert [rank.receive() for _ in range(2)][1] == {"type": "oom", "bytes_wanted": 5}


def test_a_closed_job_reconnects_with_the_next_message(fake):
    with Job("j") as job:
        rank = fake.accept()
        assert rank.receive()["type"] == "hello"
    assert rank.file.readline() == b""
    ten_seconds_later(job)
    job.phase("train")
    assert [fake.accept().receive()["type"]] == ["hello"]


def test_close_waits_for_a_thread_that_is_sending(fake, monkeypatch):
    job = Job("j")
    closing = threading.Thread(target=job.close)
    with job._lock:  # As during a message.
        closing.start()
        closing.join(0.05)
        assert job._socket is not None, "the other thread is sending"
    closing.join()
    assert job._socket is None
    ten_seconds_later(job)
    job.phase("train")
    monkeypatch.setattr(agent, "_CLOSE_WAIT_S", 0.01)
    with job._lock:
        job.close()  # As from a signal handler: it must not deadlock.
    assert job._socket is not None


def test_a_message_from_a_signal_handler_neither_hangs_nor_interleaves(fake):
    job = Job("j")
    rank = fake.accept()
    signal.signal(signal.SIGALRM, lambda *_: job.oom(1))
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    try:
        for step in range(500):
            job.step_end(step)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
    sent = job.sent
    kinds = [rank.receive()["type"] for _ in range(sent + 1)]
    assert kinds.count("step_end") + kinds.count("oom") == sent


def test_calls_without_an_agent_are_cheap(socket_path):
    job = Job("j")
    with cheap():
        for step in range(10_000):
            job.step_end(step, seconds=1.0)


def test_a_missing_agent_is_not_logged(socket_path, caplog):
    caplog.set_level(logging.INFO)
    Job("j").step_end(1)
    assert caplog.text == ""


def test_the_parts_of_a_process_share_one_job(fake):
    mine = agent.job(rank=3, gpu="GPU-1")
    assert agent.job() is mine
    hello = fake.accept().receive()
    assert (hello["rank"], hello["gpu"]) == (3, "GPU-1")
    fake.assert_no_connection()


def test_module_functions_report_through_the_process_job(fake):
    agent.phase("low-memory")
    agent.oom(5, retry_step="split", rows=3)
    rank = fake.accept()
    assert rank.everything()[1:] == [{"type": "phase", "name": "low-memory"}, {"type": "oom", "bytes_wanted": 5}]


def test_invalid_numbers_are_omitted_with_one_warning_each(fake, caplog):
    job = Job("j")
    rank = fake.accept()
    rank.receive()
    for step in ("x", "y", None):
        job.step_end(step)
    for step in range(3):
        job.step_end(step, tokens="64k")
    job.step_end(3, tokens=None)
    said = [(line["step"], "tokens" in line) for line in rank.everything()]
    assert said == [(0, False), (1, False), (2, False), (3, False)]
    assert job.dropped == 3
    assert [record.getMessage() for record in caplog.records] == [
        "step='x' is not an integer of 0 or more; this message is not sent",
        "tokens='64k' is not an integer of 0 or more; this field is omitted",
    ]
