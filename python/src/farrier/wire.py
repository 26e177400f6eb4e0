"""What a job and the agent of its node say to each other: docs/job-socket.md without the socket.

Pure: no socket, no clock, no environment. Words go in and lines come out, bytes go in and decisions come out.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real

#: The newest version that is spoken here.
VERSION = 1

#: Where the agent listens when nothing else is said.
DEFAULT_SOCKET = "/run/farrier/agent.sock"

#: No line is longer.
LINE_BYTES_MAX = 64 << 10

#: Letters of a job's name, and of a phase.
NAME_CHARS_MAX = 128

#: Letters of a message for people: well below a line, however they are escaped.
MESSAGE_CHARS_MAX = 4000

#: Seconds between two attempts to connect.
CONNECT_EVERY_S = 10.0

#: Seconds for which a checkpoint that failed is not asked for again.
RETRY_CHECKPOINT_S = 60.0

#: Findings that are remembered; a node has a handful.
KEYS_MAX = 4096

#: Different words of the agent that are logged: whatever it says, the job's log stays readable.
LOGGED_MAX = 64

#: Lines of one connection that are no messages; what says more of them is no agent. The agent has the same limit.
INVALID_LINES_MAX = 10

#: Errors after which the connection goes on.
_NON_FATAL = ("bad_line", "starting")


def unsigned(value: object, bits: int = 64) -> int | None:
    """A number that the agent takes: whole, 0 or more, below 2 to the `bits`. None: it is none."""
    if isinstance(value, str):
        digits = value.strip()
        value = int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= 20 else None
    if isinstance(value, bool) or not isinstance(value, Integral):
        return None
    number = int(value)
    return number if 0 <= number < 1 << bits else None


def invalid_numbers(step: object, tokens: object = 0) -> dict[str, str]:
    """What is no number that the agent takes, under its name: it is left out."""
    values = {"step": step, "tokens": tokens}
    message = "is no whole number of 0 or more, and is left out"
    return {name: f"{name}={value!r} {message}" for name, value in values.items() if unsigned(value) is None}


def finite_float(value: object) -> float | None:
    """A number that JSON can have. A tensor is none: to read it would wait for the GPU."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    number = float(value)
    return number if math.isfinite(number) else None


def truncate(value: object, chars_max: int) -> str:
    """So many letters of a text, in UTF-8 for sure."""
    return str(value)[:chars_max].encode("utf-8", "replace").decode("utf-8")


#: As the driver writes it, whole or a beginning of it; or without what stands before it, as PyTorch does.
_GPU = re.compile(r"(GPU|MIG)-[0-9A-Za-z/-]{1,120}|[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")


def gpu_uuid(value: object) -> str | None:
    """The UUID of a GPU or of a MIG instance, which the agent takes. None: it is none; a number, say, or `cuda:0`."""
    uuid = str(value).strip()
    return uuid if _GPU.fullmatch(uuid) else None


def may_be_same_gpu(one: str, other: str) -> bool:
    """Whether two UUIDs may be of one GPU: each may have `GPU-` before it, and may be a beginning."""
    uuids = [name.removeprefix("GPU-").lower() for name in (one, other)]
    return uuids[0].startswith(uuids[1]) or uuids[1].startswith(uuids[0])


#: One for all lines: `json.dumps` would make another for each.
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def encode(kind: str, **fields: object) -> bytes:
    """A message. What is None is left out."""
    message = {"type": kind, **{name: value for name, value in fields.items() if value is not None}}
    return _encode(message).encode("ascii") + b"\n"


@dataclass(frozen=True)
class JobIdentity:
    """Which job this is, which rank of it, and on which GPU."""

    job: str
    rank: int | None = None
    world_size: int | None = None
    local_world_size: int | None = None
    gpu: str | None = None

    def hello(self, frameworks: Mapping[str, str] | None = None) -> bytes:
        """What comes first on every connection, with what is computed with: name and version."""
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


#: What the agent knows by name.
FRAMEWORKS = ("jax", "keras", "tensorflow", "torch")


def frameworks(modules: Mapping[str, object]) -> dict[str, str]:
    """Name and version of those that the program has imported."""
    versions = {name: getattr(modules.get(name), "__version__", None) for name in FRAMEWORKS}
    return {name: str(version) for name, version in versions.items() if isinstance(version, str)}


def job_name(environment: Mapping[str, str], program: str, pid: int, parent: int) -> str:
    """The name of a job whom nobody named.

    Slurm's number. Otherwise the program and the process that started the ranks (torchrun sets RANK and is the parent
    of them all): two runs of one program are two jobs.
    """
    slurm = environment.get("SLURM_JOB_ID", "").strip()
    if slurm:
        return slurm
    name = program.rsplit("/", 1)[-1] or "python"
    return f"{name}-{parent if environment.get('RANK') else pid}"


def socket_path(environment: Mapping[str, str]) -> str | None:
    """Where the agent is; None where the job wants none."""
    return environment.get("FARRIER_SOCKET", DEFAULT_SOCKET) or None


def step_end(step: object, seconds: object, tokens: object, loss: object) -> bytes | None:
    """A step ended; None where `step` is no number of a step."""
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
    # A loss that is no number is said to be none, which is not the same as silence about it.
    return message[:-2] + b',"loss":' + json.dumps(finite_float(loss)).encode("ascii") + b"}\n"


class LineReader:
    """Whole lines from pieces. A line that is too long is passed over and counted."""

    def __init__(self) -> None:
        self.too_long = 0
        self._partial = b""
        self._gated_step = False

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that these bytes end."""
        lines: list[bytes] = []
        *ended, rest = data.split(b"\n")
        for part in ended:
            complete_line = self._partial + part
            self._partial = b""
            if self._gated_step or len(complete_line) > LINE_BYTES_MAX:
                self.too_long += 1
                self._gated_step = False
            else:
                lines.append(complete_line)
        self._partial += rest
        if self._gated_step or len(self._partial) > LINE_BYTES_MAX:
            self._partial = b""
            self._gated_step = True
        return lines


@dataclass
class ReconnectPolicy:
    """When one may connect: at most once in ten seconds, and never again once the hello was refused."""

    interval_s: float = CONNECT_EVERY_S
    refused: bool = False
    last_attempt_s: float | None = None

    def due(self, now_s: float) -> bool:
        """Whether to try now."""
        return not self.refused and (self.last_attempt_s is None or now_s - self.last_attempt_s >= self.interval_s)


@dataclass
class LineOutcome:
    """What one line of the agent asks of the client."""

    #: For the job's log.
    log_message: str | None = None
    #: The connection ends.
    close: bool = False
    #: To be said: the checkpoint of that step is on disk, which a new agent does not know.
    resend: bytes | None = None


@dataclass
class ClientState:
    """What was heard and done, for as long as the job lives: longer than any connection and any agent."""

    reconnect: ReconnectPolicy = field(default_factory=ReconnectPolicy)
    welcomed: bool = False
    #: Lines of this connection that were no messages.
    invalid_lines: int = 0
    #: Why a checkpoint is wanted, and the findings behind it and behind earlier ones.
    _seen_findings: dict[str, None] = field(default_factory=dict)
    _logged: set[str] = field(default_factory=set)
    _reason: str | None = None
    _not_before_s: float = float("-inf")
    _last_checkpoint_done: bytes | None = None

    def reset_connection(self) -> None:
        """A connection begins or ends."""
        self.welcomed = False
        self.invalid_lines = 0

    def checkpoint_wanted(self, now_s: float) -> str | None:
        """Why a checkpoint is wanted; None: it is not, or an attempt failed a moment ago."""
        return self._reason if now_s >= self._not_before_s else None

    def checkpoint_done(self, step: int | None) -> bytes:
        """A checkpoint is on disk: the line that says so."""
        self._reason = None
        self._not_before_s = float("-inf")
        self._last_checkpoint_done = encode("checkpoint_done", step=step)
        return self._last_checkpoint_done

    def checkpoint_failed(self, message: object, now_s: float) -> bytes:
        """None could be made: it is still wanted, and asked for again in a minute."""
        self._not_before_s = now_s + RETRY_CHECKPOINT_S
        return encode("checkpoint_failed", message=truncate(message, MESSAGE_CHARS_MAX))

    def handle_line(self, raw: bytes) -> LineOutcome:
        """Takes a line of the agent. What is not known is passed over."""
        try:
            message = json.loads(raw)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            self.invalid_lines += 1
            if self.invalid_lines < INVALID_LINES_MAX:
                return LineOutcome()
            return LineOutcome(
                log_message=self._log_once("what listens there is no agent", f"{INVALID_LINES_MAX} lines were no messages"),
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
        return LineOutcome(log_message=self._log_once("a checkpoint is wanted", self._reason))

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
