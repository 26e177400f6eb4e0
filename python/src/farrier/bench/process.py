"""The process that runs a shard: its build, its age and its exit. No torch."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

import farrier

#: Source files that a shard runs.
MEASURED = ("*.py", "torch/*.py", "bench/*.py")


def build() -> str:
    """The version, and a digest of the sources that shards run, by which builds differ."""
    folder = Path(farrier.__file__).parent
    files = sorted(path for pattern in MEASURED for path in folder.glob(pattern))
    return f"{farrier.__version__}+{digest((str(path.relative_to(folder)), path.read_bytes()) for path in files)}"


def digest(files: Iterable[tuple[str, bytes]]) -> str:
    """An eight-digit digest of names and contents."""
    hasher = hashlib.sha256()
    for name, content in files:
        hasher.update(f"{name}\0{len(content)}\0".encode() + content)
    return hasher.hexdigest()[:8]


def age_s() -> float:
    """Seconds since this process started, including imports (Linux)."""
    fields = Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()
    start_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")  # starttime, the 22nd field of proc(5)'s stat.
    return time.clock_gettime(time.CLOCK_BOOTTIME) - start_s


def end(code: int) -> NoReturn:
    """Exits at once, without the cleanup of Python and compiler workers, which takes a second."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
