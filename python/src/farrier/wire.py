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
RETRY_SAVE_S = 60.0

#: Findings that are remembered; a node has a handful.
KEYS_MAX = 4096

#: Different words of the agent that are logged: whatever it says, the job's log stays readable.
TOLD_MAX = 64

#: Lines of one connection that are no messages; what says more of them is no agent. The agent has the same limit.
NONSENSE_MAX = 10

#: Errors after which the connection goes on.
_GOES_ON = ("bad_line", "starting")


def whole(value: object, bits: int = 64) -> int | None:
    """A number that the agent takes: whole, 0 or more, below 2 to the `bits`. None: it is none."""
    if isinstance(value, str):
        digits = value.strip()
        value = int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= 20 else None
    if isinstance(value, bool) or not isinstance(value, Integral):
        return None
    number = int(value)
    return number if 0 <= number < 1 << bits else None


def no_numbers(step: object, tokens: object = 0) -> dict[str, str]:
    """What is no number that the agent takes, under its name: it is left out."""
    given = {"step": step, "tokens": tokens}
    said = "is no whole number of 0 or more, and is left out"
    return {name: f"{name}={value!r} {said}" for name, value in given.items() if whole(value) is None}


def real(value: object) -> float | None:
    """A number that JSON can have. A tensor is none: to read it would wait for the GPU."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    number = float(value)
    return number if math.isfinite(number) else None


def text(value: object, chars_max: int) -> str:
    """So many letters of a text, in UTF-8 for sure."""
    return str(value)[:chars_max].encode("utf-8", "replace").decode("utf-8")


#: As the driver writes it, whole or a beginning of it; or without what stands before it, as PyTorch does.
_GPU = re.compile(r"(GPU|MIG)-[0-9A-Za-z/-]{1,120}|[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")


def gpu_uuid(value: object) -> str | None:
    """The UUID of a GPU or of a MIG instance, which the agent takes. None: it is none; a number, say, or `cuda:0`."""
    named = str(value).strip()
    return named if _GPU.fullmatch(named) else None


def same_gpu(one: str, other: str) -> bool:
    """Whether two UUIDs may be of one GPU: each may have `GPU-` before it, and may be a beginning."""
    bare = [name.removeprefix("GPU-").lower() for name in (one, other)]
    return bare[0].startswith(bare[1]) or bare[1].startswith(bare[0])


#: One for all lines: `json.dumps` would make another for each.
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def line(kind: str, **fields: object) -> bytes:
    """A message. What is None is left out."""
    said = {"type": kind, **{name: value for name, value in fields.items() if value is not None}}
    return _encode(said).encode("ascii") + b"\n"


@dataclass(frozen=True)
class Who:
    """Which job this is, which rank of it, and on which GPU."""

    job: str
    rank: int | None = None
    world_size: int | None = None
    local_world_size: int | None = None
    gpu: str | None = None

    def hello(self, frameworks: Mapping[str, str] | None = None) -> bytes:
        """What comes first on every connection, with what is computed with: name and version."""
        return line(
            "hello",
            v=VERSION,
            job=text(self.job, NAME_CHARS_MAX),
            rank=whole(self.rank, 32),
            world_size=whole(self.world_size, 32),
            local_world_size=whole(self.local_world_size, 32),
            gpu=None if self.gpu is None else text(self.gpu, NAME_CHARS_MAX),
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
    number = whole(step)
    if number is None:
        return None
    lasted = real(seconds)
    said = line("step_end", step=number, seconds=lasted if lasted is None or lasted >= 0 else None, tokens=whole(tokens))
    if loss is None:
        return said
    # A loss that is no number is said to be none, which is not the same as silence about it.
    return said[:-2] + b',"loss":' + json.dumps(real(loss)).encode("ascii") + b"}\n"


class Lines:
    """Whole lines from pieces. A line that is too long is passed over and counted."""

    def __init__(self) -> None:
        self.too_long = 0
        self._piece = b""
        self._skipping = False

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that these bytes end."""
        lines: list[bytes] = []
        *ended, rest = data.split(b"\n")
        for part in ended:
            whole_line = self._piece + part
            self._piece = b""
            if self._skipping or len(whole_line) > LINE_BYTES_MAX:
                self.too_long += 1
                self._skipping = False
            else:
                lines.append(whole_line)
        self._piece += rest
        if self._skipping or len(self._piece) > LINE_BYTES_MAX:
            self._piece = b""
            self._skipping = True
        return lines


@dataclass
class Pacing:
    """When one may connect: at most once in ten seconds, and never again once the hello was refused."""

    every_s: float = CONNECT_EVERY_S
    refused: bool = False
    tried_s: float | None = None

    def due(self, now_s: float) -> bool:
        """Whether to try now."""
        return not self.refused and (self.tried_s is None or now_s - self.tried_s >= self.every_s)


@dataclass
class Heard:
    """What one line of the agent asks of the client."""

    #: For the job's log.
    tell: str | None = None
    #: The connection ends.
    close: bool = False
    #: To be said: the checkpoint of that step is on disk, which a new agent does not know.
    say_again: bytes | None = None


@dataclass
class Memory:
    """What was heard and done, for as long as the job lives: longer than any connection and any agent."""

    pacing: Pacing = field(default_factory=Pacing)
    welcomed: bool = False
    #: Lines of this connection that were no messages.
    nonsense: int = 0
    #: Why a checkpoint is wanted, and the findings behind it and behind earlier ones.
    _keys: dict[str, None] = field(default_factory=dict)
    _told: set[str] = field(default_factory=set)
    _reason: str | None = None
    _not_before_s: float = float("-inf")
    _saved: bytes | None = None

    def connection(self) -> None:
        """A connection begins or ends."""
        self.welcomed = False
        self.nonsense = 0

    def wanted(self, now_s: float) -> str | None:
        """Why a checkpoint is wanted; None: it is not, or an attempt failed a moment ago."""
        return self._reason if now_s >= self._not_before_s else None

    def saved(self, step: int | None) -> bytes:
        """A checkpoint is on disk: the line that says so."""
        self._reason = None
        self._not_before_s = float("-inf")
        self._saved = line("checkpoint_done", step=step)
        return self._saved

    def not_saved(self, message: object, now_s: float) -> bytes:
        """None could be made: it is still wanted, and asked for again in a minute."""
        self._not_before_s = now_s + RETRY_SAVE_S
        return line("checkpoint_failed", message=text(message, MESSAGE_CHARS_MAX))

    def hear(self, raw: bytes) -> Heard:
        """Takes a line of the agent. What is not known is passed over."""
        try:
            said = json.loads(raw)
        except (ValueError, RecursionError):
            said = None
        if not isinstance(said, dict):
            self.nonsense += 1
            if self.nonsense < NONSENSE_MAX:
                return Heard()
            return Heard(
                tell=self._news("what listens there is no agent", f"{NONSENSE_MAX} lines were no messages"), close=True
            )
        kind = said.get("type")
        if kind == "welcome":
            self.welcomed = True
        elif kind == "checkpoint_wanted":
            return self._hear_wanted(said)
        elif kind == "notice":
            return Heard(tell=self._news("the agent of this node", said.get("message")))
        elif kind == "error":
            return self._hear_error(said)
        return Heard()

    def _hear_wanted(self, said: Mapping[str, object]) -> Heard:
        findings = said.get("findings")
        keys = [key for key in findings if isinstance(key, str)] if isinstance(findings, list) else []
        new = [key for key in keys if key not in self._keys]
        if keys and not new:
            return Heard(say_again=self._saved if self._reason is None else None)
        self._remember(new)
        self._reason = text(said.get("reason") or "the agent of this node gave no reason", MESSAGE_CHARS_MAX)
        self._not_before_s = float("-inf")
        return Heard(tell=self._news("a checkpoint is wanted", self._reason))

    def _remember(self, keys: Iterable[str]) -> None:
        self._keys.update(dict.fromkeys(keys))
        while len(self._keys) > KEYS_MAX:
            del self._keys[next(iter(self._keys))]

    def _hear_error(self, said: Mapping[str, object]) -> Heard:
        code = said.get("code")
        if code == "bad_hello":
            self.pacing.refused = True
        told = self._news(f"the agent of this node refuses ({code})", said.get("message"))
        return Heard(tell=told, close=code not in _GOES_ON)

    def _news(self, about: str, message: object) -> str | None:
        told = text(f"{about}: {message}", MESSAGE_CHARS_MAX)
        if told in self._told or len(self._told) >= TOLD_MAX:
            return None
        self._told.add(told)
        return told
