"""The protocol between a job and the agent of its node (docs/job-socket.md), without the socket.

This module is pure: it uses no socket, no clock and no environment. It encodes values as lines, and
decides what to do about the bytes that arrive.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real

#: The newest supported protocol version.
VERSION = 1

#: Default path of the agent's socket.
DEFAULT_SOCKET = "/run/farrier/agent.sock"

#: Maximum length of a line.
LINE_BYTES_MAX = 64 << 10

#: Maximum characters of a job name and of a phase.
NAME_CHARS_MAX = 128

#: Maximum characters of a message. Even if all of them are escaped, it fits into a line.
MESSAGE_CHARS_MAX = 4000

#: Seconds between two connection attempts.
CONNECT_EVERY_S = 10.0

#: Seconds after a failed checkpoint before the request becomes active again.
RETRY_CHECKPOINT_S = 60.0

#: Maximum number of remembered findings. A node usually has only a few.
KEYS_MAX = 4096

#: Maximum number of distinct agent messages that are logged, so that an agent cannot fill the job's
#: log.
LOGGED_MAX = 64

#: After this many invalid lines the connection is closed, because its peer is not an agent. The
#: agent has the same limit for jobs.
INVALID_LINES_MAX = 10

#: Errors that do not end the connection.
_NON_FATAL = ("bad_line", "starting")


def unsigned(value: object, bits: int = 64) -> int | None:
    """Returns the value as an integer that the agent accepts: 0 or more, and below 2 to the `bits`.

    Returns None for any other value.
    """
    if isinstance(value, str):
        digits = value.strip()
        value = int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= 20 else None
    if isinstance(value, bool) or not isinstance(value, Integral):
        return None
    number = int(value)
    return number if 0 <= number < 1 << bits else None


def invalid_numbers(step: object, tokens: object = 0) -> dict[str, str]:
    """Warnings about values that the agent does not accept, by name."""
    values = {"step": (step, "this message is not sent"), "tokens": (tokens, "this field is omitted")}
    return {
        name: f"{name}={value!r} is not an integer of 0 or more; {result}"
        for name, (value, result) in values.items()
        if unsigned(value) is None
    }


def finite_float(value: object) -> float | None:
    """Returns a number that JSON can represent, otherwise None.

    Also None for a tensor, because reading it would wait for the GPU.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    number = float(value)
    return number if math.isfinite(number) else None


def truncate(value: object, chars_max: int) -> str:
    """The first `chars_max` characters, as valid UTF-8."""
    return str(value)[:chars_max].encode("utf-8", "replace").decode("utf-8")


#: A UUID as the driver writes it, complete or a prefix of it; or without `GPU-`, as PyTorch writes
#: it.
_GPU = re.compile(r"(GPU|MIG)-[0-9A-Za-z/-]{1,120}|[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")


def gpu_uuid(value: object) -> str | None:
    """Returns the UUID of a GPU or MIG instance.

    None for anything else, such as a number or `cuda:0`.
    """
    uuid = str(value).strip()
    return uuid if _GPU.fullmatch(uuid) else None


def may_be_same_gpu(one: str, other: str) -> bool:
    """Whether two UUIDs may denote the same GPU. Each may lack `GPU-`, and may be only a prefix."""
    uuids = [name.removeprefix("GPU-").lower() for name in (one, other)]
    return uuids[0].startswith(uuids[1]) or uuids[1].startswith(uuids[0])


#: One encoder for all lines: `json.dumps` would create one per call.
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def encode(kind: str, **fields: object) -> bytes:
    """Encodes a message as one line. Fields that are None are omitted."""
    message = {"type": kind, **{name: value for name, value in fields.items() if value is not None}}
    return _encode(message).encode("ascii") + b"\n"


@dataclass(frozen=True)
class JobIdentity:
    """Job, rank and GPU of this process."""

    job: str
    rank: int | None = None
    world_size: int | None = None
    local_world_size: int | None = None
    gpu: str | None = None

    def hello(self, frameworks: Mapping[str, str] | None = None) -> bytes:
        """The first message on every connection, with framework names and versions."""
        return encode(
            "hello",
            v=VERSION,
            job=truncate(self.job, NAME_CHARS_MAX),
            rank=unsigned(self.rank, 32),
            world_size=unsigned(self.world_size, 32),
            local_world_size=unsigned(self.local_world_size, 32),
            gpu=None if self.gpu is None else truncate(self.gpu, NAME_CHARS_MAX),
            frameworks=frameworks or None,
        )


#: Frameworks that the agent knows.
FRAMEWORKS = ("jax", "keras", "tensorflow", "torch")


def frameworks(modules: Mapping[str, object]) -> dict[str, str]:
    """Name and version of the frameworks that the program has imported."""
    versions = {name: getattr(modules.get(name), "__version__", None) for name in FRAMEWORKS}
    return {name: str(version) for name, version in versions.items() if isinstance(version, str)}


def job_name(environment: Mapping[str, str], program: str, pid: int, parent: int) -> str:
    """The default name of a job.

    It is Slurm's job id if there is one. Otherwise it consists of the program's name and a process
    id, so that two runs of one program are two jobs. All ranks need the same name: if RANK is set,
    the id is that of the parent process, which is torchrun for all of them.
    """
    slurm = environment.get("SLURM_JOB_ID", "").strip()
    if slurm:
        return slurm
    name = program.rsplit("/", 1)[-1] or "python"
    return f"{name}-{parent if environment.get('RANK') else pid}"


def socket_path(environment: Mapping[str, str]) -> str | None:
    """The agent's socket path. None if the job disables reporting."""
    return environment.get("FARRIER_SOCKET", DEFAULT_SOCKET) or None


def step_end(step: object, seconds: object, tokens: object, loss: object) -> bytes | None:
    """Encodes the end of a step. None if `step` is not a valid step number."""
    number = unsigned(step)
    if number is None:
        return None
    duration_s = finite_float(seconds)
    message = encode(
        "step_end",
        step=number,
        seconds=duration_s if duration_s is None or duration_s >= 0 else None,
        tokens=unsigned(tokens),
    )
    if loss is None:
        return message
    # A NaN or infinite loss is sent as null, which differs from omitting it.
    return message[:-2] + b',"loss":' + json.dumps(finite_float(loss)).encode("ascii") + b"}\n"


class LineReader:
    """Assembles lines from chunks of bytes. Lines that are too long are skipped and counted."""

    def __init__(self) -> None:
        self.too_long = 0
        self._partial = b""
        self._skipping_line = False

    def feed(self, data: bytes) -> list[bytes]:
        """Returns the lines completed by these bytes."""
        lines: list[bytes] = []
        *completed, rest = data.split(b"\n")
        for part in completed:
            complete_line = self._partial + part
            self._partial = b""
            if self._skipping_line or len(complete_line) > LINE_BYTES_MAX:
                self.too_long += 1
                self._skipping_line = False
            else:
                lines.append(complete_line)
        self._partial += rest
        if self._skipping_line or len(self._partial) > LINE_BYTES_MAX:
            self._partial = b""
            self._skipping_line = True
        return lines


@dataclass
class ReconnectPolicy:
    """When to connect: at most once in ten seconds, and never again after a refused hello."""

    interval_s: float = CONNECT_EVERY_S
    refused: bool = False
    last_attempt_s: float | None = None

    def due(self, now_s: float) -> bool:
        """Whether to try to connect now."""
        return not self.refused and (self.last_attempt_s is None or now_s - self.last_attempt_s >= self.interval_s)


@dataclass
class LineOutcome:
    """What the client must do after one line from the agent."""

    #: Message for the job's log.
    log_message: str | None = None
    #: Close the connection.
    close: bool = False
    #: Line to send again: a `checkpoint_done` that a restarted agent does not know about.
    resend: bytes | None = None


@dataclass
class ClientState:
    """State of the client, which it keeps when a connection ends or the agent restarts."""

    reconnect: ReconnectPolicy = field(default_factory=ReconnectPolicy)
    welcomed: bool = False
    #: Invalid lines on this connection.
    invalid_lines: int = 0
    #: The findings that caused the current checkpoint request and earlier ones.
    _seen_findings: dict[str, None] = field(default_factory=dict)
    _logged: set[str] = field(default_factory=set)
    _reason: str | None = None
    _not_before_s: float = float("-inf")
    _last_checkpoint_done: bytes | None = None

    def reset_connection(self) -> None:
        """Resets the state that belongs to one connection."""
        self.welcomed = False
        self.invalid_lines = 0

    def checkpoint_wanted(self, now_s: float) -> str | None:
        """The reason for a requested checkpoint.

        None if no checkpoint is requested, or if one failed less than a minute ago.
        """
        return self._reason if now_s >= self._not_before_s else None

    def checkpoint_done(self, step: int | None) -> bytes:
        """Records that a checkpoint is on disk. Returns the line that reports it."""
        self._reason = None
        self._not_before_s = float("-inf")
        self._last_checkpoint_done = encode("checkpoint_done", step=step)
        return self._last_checkpoint_done

    def checkpoint_failed(self, message: object, now_s: float) -> bytes:
        """Records a failed checkpoint. The request becomes active again after a minute."""
        self._not_before_s = now_s + RETRY_CHECKPOINT_S
        return encode("checkpoint_failed", message=truncate(message, MESSAGE_CHARS_MAX))

    def handle_line(self, raw: bytes) -> LineOutcome:
        """Handles a line from the agent. Unknown messages are ignored."""
        try:
            message = json.loads(raw)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            self.invalid_lines += 1
            if self.invalid_lines < INVALID_LINES_MAX:
                return LineOutcome()
            return LineOutcome(
                log_message=self._log_once(
                    "the socket's peer is not an agent", f"{INVALID_LINES_MAX} lines were not messages"
                ),
                close=True,
            )
        kind = message.get("type")
        if kind == "welcome":
            self.welcomed = True
        elif kind == "checkpoint_wanted":
            return self._handle_checkpoint_wanted(message)
        elif kind == "notice":
            return LineOutcome(log_message=self._log_once("the agent of this node", message.get("message")))
        elif kind == "error":
            return self._handle_error(message)
        return LineOutcome()

    def _handle_checkpoint_wanted(self, message: Mapping[str, object]) -> LineOutcome:
        findings = message.get("findings")
        keys = [key for key in findings if isinstance(key, str)] if isinstance(findings, list) else []
        new = [key for key in keys if key not in self._seen_findings]
        if keys and not new:
            return LineOutcome(resend=self._last_checkpoint_done if self._reason is None else None)
        self._remember_findings(new)
        self._reason = truncate(message.get("reason") or "the agent of this node gave no reason", MESSAGE_CHARS_MAX)
        self._not_before_s = float("-inf")
        return LineOutcome(log_message=self._log_once("checkpoint requested", self._reason))

    def _remember_findings(self, keys: Iterable[str]) -> None:
        self._seen_findings.update(dict.fromkeys(keys))
        while len(self._seen_findings) > KEYS_MAX:
            del self._seen_findings[next(iter(self._seen_findings))]

    def _handle_error(self, message: Mapping[str, object]) -> LineOutcome:
        code = message.get("code")
        if code == "bad_hello":
            self.reconnect.refused = True
        text = self._log_once(f"the agent of this node refuses ({code})", message.get("message"))
        return LineOutcome(log_message=text, close=code not in _NON_FATAL)

    def _log_once(self, about: str, message: object) -> str | None:
        text = truncate(f"{about}: {message}", MESSAGE_CHARS_MAX)
        if text in self._logged or len(self._logged) >= LOGGED_MAX:
            return None
        self._logged.add(text)
        return text
