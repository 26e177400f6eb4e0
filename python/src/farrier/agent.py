"""The job's side of the agent's Unix socket: docs/job-socket.md.

    job = farrier.agent.job()
    for step, batch in enumerate(batches):
        train(batch)
        job.step_end(step, tokens=batch.numel())
        if job.checkpoint_wanted:
            save()
            job.checkpoint_done(step)

This module starts no thread, never blocks and raises no error. Without an agent, or if the agent
cannot keep up, messages are dropped and counted.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import socket
import sys
import threading
import time
from types import TracebackType

from farrier import wire

log = logging.getLogger("farrier.agent")

#: Bytes per read, and reads per poll. They are bounded because an agent that never stops sending
#: must not delay a step. A healthy agent sends about a line a week.
_READ_BYTES = 64 << 10
_READS = 4
#: How long `close` waits for another thread's call. Such a call takes microseconds.
_CLOSE_WAIT_S = 1.0

#: Do not block, and do not raise SIGPIPE. A system without these flags has no agent either.
_FLAGS: int = getattr(socket, "MSG_DONTWAIT", 0) | getattr(socket, "MSG_NOSIGNAL", 0)


class Job:
    """One rank of a job, as seen by the agent of its node.

    Each process has one job. After a fork the child opens its own connection. Several threads and
    signal handlers may call its methods; the message of a call that comes while another call is in
    progress is dropped.

    Attributes:
        sent: number of messages that the kernel accepted.
        dropped: number of messages that could not be sent; they are not sent again.
        pauses: number of reported phases and checkpoints. If this number changed during a step, the
            step's duration includes more than compute time.
    """

    def __init__(
        self,
        job: str | None = None,
        rank: int | None = None,
        *,
        world_size: int | None = None,
        local_world_size: int | None = None,
        gpu: str | None = None,
        path: str | None = None,
    ) -> None:
        """Missing values are taken from the environment, as stated for each argument.

        Args:
            job: SLURM_JOB_ID, otherwise the program's name and a process id.
            rank: RANK.
            world_size: WORLD_SIZE.
            local_world_size: LOCAL_WORLD_SIZE.
            gpu: the UUID of the rank's GPU (`torch.cuda.get_device_properties(i).uuid`); without it
                the agent uses the driver's process list. Anything but a UUID (an index, `cuda:0`)
                is ignored with a warning.
            path: FARRIER_SOCKET, otherwise /run/farrier/agent.sock. An empty path disables
                reporting.
        """

        def from_environment(name: str, value: int | None) -> int | None:
            return wire.unsigned(os.environ.get(name) if value is None else value, 32)

        program = sys.argv[0] if sys.argv else ""
        self._identity = wire.JobIdentity(
            job=str(job) if job else wire.job_name(os.environ, program, os.getpid(), os.getppid()),
            rank=from_environment("RANK", rank),
            world_size=from_environment("WORLD_SIZE", world_size),
            local_world_size=from_environment("LOCAL_WORLD_SIZE", local_world_size),
            gpu=_uuid(gpu),
        )
        self._path = wire.socket_path(os.environ) if path is None else path or None
        self._state = wire.ClientState()
        self.sent = 0
        self.dropped = 0
        self.pauses = 0
        self._warned: set[str] = set()
        self._reset_process()
        self.poll()

    def _reset_process(self) -> None:
        """Initialises the state of this process, also in a forked child.

        A connection inherited from the parent stays the parent's: the child closes only its own
        descriptor, which does not end the connection.
        """
        inherited = getattr(self, "_socket", None)
        if inherited is not None:
            inherited.close()
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._state.reconnect.last_attempt_s = None
        self._set_connection(None)

    def _set_connection(self, connection: socket.socket | None) -> None:
        self._socket = connection
        self._lines = wire.LineReader()
        self._unsent = b""
        self._state.reset_connection()

    @property
    def name(self) -> str:
        """The job's name in `farrier status`."""
        return self._identity.job

    @property
    def rank(self) -> int:
        """The rank of this process in the job."""
        return self._identity.rank or 0

    def __repr__(self) -> str:
        world = "" if self._identity.world_size is None else f" of {self._identity.world_size}"
        socket_path = self._path or "reporting disabled"
        agent = f"connected to {socket_path}" if self.connected else f"not connected ({socket_path})"
        gpu = self._identity.gpu or "GPU unknown"
        return f"<Job {self.name!r}, rank {self.rank}{world}, {gpu}, {agent}, {self.sent} sent, {self.dropped} dropped>"

    def update(self, *, rank: int | None = None, world_size: int | None = None, gpu: str | None = None) -> None:
        """Adds values that were unknown at creation, and sends them to the agent in a new hello.

        A value that is already known stays: a process is one rank, so a different value is ignored
        with a warning.
        """
        requested = {"rank": wire.unsigned(rank, 32), "world_size": wire.unsigned(world_size, 32), "gpu": _uuid(gpu)}
        updates: dict[str, object] = {}
        for name, value in requested.items():
            current = getattr(self._identity, name)
            if value is None or current == value:
                continue
            if current is None:
                updates[name] = value
            elif not (name == "gpu" and wire.may_be_same_gpu(str(current), str(value))):
                warning = f"{name} of this job stays {current}; ignoring {value}: a process has one job"
                self._warn_once(
                    {warning: f"{warning}\nhint: replace the job with farrier.agent.set_job(farrier.agent.Job(...))"}
                )
        if updates:
            self._identity = dataclasses.replace(self._identity, **updates)  # type: ignore[arg-type]
            self.close()
            self._state.reconnect.last_attempt_s = None
            self.poll()

    def _warn_once(self, warning: dict[str, str]) -> None:
        """Logs each warning once. An invalid value never stops a training run."""
        for key in warning.keys() - self._warned:
            self._warned.add(key)
            log.warning("%s", warning[key])

    @property
    def connected(self) -> bool:
        """Whether an agent has welcomed this process and the connection is open."""
        return self._socket is not None and self._state.welcomed and self._pid == os.getpid()

    @property
    def checkpoint_wanted(self) -> str | None:
        """The reason for a requested checkpoint, or None if no checkpoint is requested.

        It stays set until a checkpoint is done.

        Usually not every rank receives the request. Let the ranks agree on it, for example with a
        MAX all-reduce.
        """
        return self._state.checkpoint_wanted(time.monotonic())

    def phase(self, name: str) -> None:
        """Reports the job's current phase: `compile`, `train`, `evaluate`, `checkpoint`, ..."""
        self.pauses += 1
        self._send_or_drop(wire.encode("phase", name=wire.truncate(name, wire.NAME_CHARS_MAX)))

    def step_begin(self, step: int) -> None:
        """Reports the start of a step. Not needed if you pass `seconds` to `step_end`."""
        self._warn_once(wire.invalid_numbers(step))
        self._send_or_drop(None if wire.unsigned(step) is None else wire.encode("step_begin", step=wire.unsigned(step)))

    def step_end(
        self, step: int, *, seconds: float | None = None, tokens: int | None = None, loss: float | None = None
    ) -> None:
        """Reports the end of a step, and reads pending messages from the agent.

        Args:
            step: the step number.
            seconds: the step's duration; without it the agent uses the time since `step_begin`.
            tokens: tokens that this rank processed.
            loss: a plain number. Do not read it from the GPU at every step just for this report,
                because reading it waits for the GPU.
        """
        self._warn_once(wire.invalid_numbers(step, 0 if tokens is None else tokens))
        self._send_or_drop(wire.step_end(step, seconds, tokens, loss))

    def oom(self, bytes_wanted: int | None = None) -> None:
        """Reports that the GPU ran out of memory. This may be the last message of the process."""
        self._send_or_drop(wire.encode("oom", bytes_wanted=wire.unsigned(bytes_wanted)))

    def checkpoint_done(self, step: int | None = None, *, notify: bool = True) -> None:
        """Reports that a checkpoint is on disk, whether or not the agent requested it.

        If the ranks save one checkpoint together, one rank reports it after all have saved; the
        others pass `notify=False`.
        """
        self.pauses += 1
        message = self._state.checkpoint_done(wire.unsigned(step))
        if notify:
            self._send_or_drop(message)

    def checkpoint_failed(self, message: str) -> None:
        """Reports that no checkpoint could be written.

        `checkpoint_wanted` then returns None for a minute, and the reason again after that.
        """
        self._send_or_drop(self._state.checkpoint_failed(message, time.monotonic()))

    def poll(self) -> None:
        """Reads pending messages from the agent without blocking. `step_end` does so too."""
        self._try_exchange(None)

    def close(self) -> None:
        """Closes the connection. The next message opens another."""
        # Another thread holds the lock only for microseconds. The timeout is for a signal handler
        # that interrupted the thread with the lock. Without the timeout, that handler would wait
        # forever.
        if self._pid != os.getpid() or not self._lock.acquire(timeout=_CLOSE_WAIT_S):
            return
        try:
            if self._socket is not None:
                self._flush_unsent()
                self._disconnect()
        finally:
            self._lock.release()

    def __enter__(self) -> Job:
        return self

    def __exit__(self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _send_or_drop(self, message: bytes | None) -> None:
        """Sends a line, or counts it as dropped. `message` is None if a number in it was invalid."""
        if message is None or not self._try_exchange(message):
            self.dropped += 1

    def _try_exchange(self, message: bytes | None) -> bool:
        if self._pid != os.getpid():
            self._reset_process()
        if not self._lock.acquire(blocking=False):
            return False
        try:
            return self._exchange(message)
        finally:
            self._lock.release()

    def _exchange(self, message: bytes | None) -> bool:
        if self._socket is not None:
            self._read()
        if self._socket is None:
            self._connect()
        accepted = message is None or self._send(message)
        self.sent += message is not None and accepted
        return accepted

    def _connect(self) -> None:
        reconnect, now_s = self._state.reconnect, time.monotonic()
        if self._path is None or not reconnect.due(now_s) or not hasattr(socket, "AF_UNIX"):
            return
        reconnect.last_attempt_s = now_s
        try:
            # Python opens sockets so that programs started by this process do not inherit them.
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        except OSError as err:
            log.debug("no socket: %s", err)
            return
        try:
            connection.setblocking(False)
            connection.connect(self._path)
        except (OSError, ValueError) as err:  # ValueError: a path with a NUL byte.
            log.debug("no agent at %s: %s", self._path, err)
            connection.close()
            return
        self._set_connection(connection)
        if not self._send(self._identity.hello(wire.frameworks(sys.modules))):
            self._disconnect()  # The hello must be the first message.
        self._read()

    def _send(self, message: bytes) -> bool:
        """Whether the kernel took all or part of the message.

        The rest is sent before the next message.
        """
        if self._socket is None or not self._flush_unsent():
            return False
        sent_bytes = self._send_some(message)
        if sent_bytes:
            self._unsent = message[sent_bytes:]
        return sent_bytes > 0

    def _flush_unsent(self) -> bool:
        if self._unsent:
            sent_bytes = self._send_some(self._unsent)
            self._unsent = self._unsent[sent_bytes:]
        return not self._unsent and self._socket is not None

    def _send_some(self, data: bytes) -> int:
        """Returns how many bytes the kernel took. The connection may be closed afterwards."""
        if self._socket is None:
            return 0
        try:
            return self._socket.send(data, _FLAGS)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as err:
            log.debug("connection to the agent lost: %s", err)
            self._unsent = b""
            self._read()  # The agent's last message may be an error that forbids a retry.
            self._disconnect()
            return 0

    def _read(self) -> None:
        """Handles the lines that have arrived, then sends the replies."""
        resends: dict[bytes, None] = {}
        for _ in range(_READS):
            data = self._read_some()
            if data is None:
                break
            for raw in self._lines.feed(data):
                outcome = self._state.handle_line(raw)
                if outcome.log_message is not None:
                    log.warning("%s", outcome.log_message)
                if outcome.resend is not None:
                    resends[outcome.resend] = None
                if outcome.close:
                    self._disconnect()
                    return
        for resend in resends:
            self._send(resend)

    def _read_some(self) -> bytes | None:
        """Returns available bytes. None if there are none, or the connection is closed."""
        if self._socket is None:
            return None
        try:
            data = self._socket.recv(_READ_BYTES, _FLAGS)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError as err:
            log.debug("connection to the agent lost: %s", err)
            data = b""
        if not data:
            self._disconnect()
            return None
        return data

    def _disconnect(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._set_connection(None)


def _uuid(gpu: object) -> str | None:
    """Returns the UUID in the form that the agent accepts.

    An invalid value is ignored with a warning; the agent then finds the GPU by the process.
    """
    if gpu is None or not str(gpu).strip():
        return None
    uuid = wire.gpu_uuid(gpu)
    if uuid is None:
        log.warning(
            "ignoring gpu=%r, which is not a GPU UUID: the agent then finds the GPU by the process\n"
            "hint: pass str(torch.cuda.get_device_properties(device).uuid), or `GPU-...` as printed by `nvidia-smi -L`",
            gpu,
        )
    return uuid


_process_job: Job | None = None


def job(*, rank: int | None = None, world_size: int | None = None, gpu: str | None = None) -> Job:
    """Returns the job of this process, which all code in the process shares.

    The first call creates the job from the environment and the arguments. Later calls add values
    that are still unknown. A known value stays: a different `gpu`, for example, is ignored with a
    warning, because a process is one rank.

    Args:
        rank: used if the environment has no RANK.
        world_size: used if the environment has no WORLD_SIZE.
        gpu: the UUID of the rank's GPU, as for `Job`.
    """
    global _process_job
    if _process_job is None:
        _process_job = Job(rank=rank, world_size=world_size, gpu=gpu)
    else:
        _process_job.update(rank=rank, world_size=world_size, gpu=gpu)
    return _process_job


def set_job(replacement: Job | None) -> None:
    """Sets the job that `job()` returns. None makes the next call create one."""
    global _process_job
    _process_job = replacement


def phase(name: str) -> None:
    """Calls `job().phase(name)`, for code that has no `Job` of its own."""
    job().phase(name)


def oom(bytes_wanted: int | None = None, **details: object) -> None:
    """Calls `job().oom(bytes_wanted)`.

    `details` are only logged, because the protocol has no field for them.
    """
    log.info("out of GPU memory: %s", details)
    job().oom(bytes_wanted)
