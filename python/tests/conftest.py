"""Selects the tests that can run here, by installed frameworks, GPU and FARRIER_BIN.

By default, tests whose framework, GPU or binary is missing are skipped, and the summary lists what
is missing. `FARRIER_NEEDS` lists what must be present, as in "torch,keras": if one of these is
missing, pytest fails at once.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent.parent / "src"), str(Path(__file__).parent)]

from fake_agent import Agent  # noqa: E402

from farrier import agent, wire  # noqa: E402

# Keep test steps away from the agent of the machine that runs the tests.
os.environ["FARRIER_SOCKET"] = ""

FRAMEWORKS = ("torch", "keras", "jax")
KNOWN = (*FRAMEWORKS, "gpu", "binary")


def _has_gpu() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return bool(torch.cuda.is_available())


def _present() -> set[str]:
    found = {name for name in FRAMEWORKS if importlib.util.find_spec(name) is not None}
    if _has_gpu():
        found.add("gpu")
    if os.environ.get("FARRIER_BIN"):
        found.add("binary")
    return found


PRESENT = _present()


def pytest_configure(config: pytest.Config) -> None:
    needed = {name for name in os.environ.get("FARRIER_NEEDS", "").split(",") if name}
    unknown = needed.difference(KNOWN)
    if unknown:
        raise pytest.UsageError(f"FARRIER_NEEDS names {sorted(unknown)}; known: {', '.join(KNOWN)}")
    missing = needed - PRESENT
    if missing:
        raise pytest.UsageError(f"FARRIER_NEEDS requires {sorted(missing)}, which this environment does not have")


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Skips files under tests/with_NAME/ if that framework, GPU or binary is missing."""
    absent = {f"with_{name}" for name in KNOWN if name not in PRESENT}
    return True if absent.intersection(collection_path.parts) else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    absent = [name for name in KNOWN if name not in PRESENT]
    if absent:
        terminalreporter.write_line(f"not available, so their tests did not run: {', '.join(absent)}")


@pytest.fixture
def socket_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Path of the agent's socket for one test. Job variables of the environment are removed."""
    for name in ("SLURM_JOB_ID", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FARRIER_SOCKET", str(tmp_path / "agent.sock"))
    agent.set_job(None)
    yield tmp_path / "agent.sock"
    agent.set_job(None)


@pytest.fixture
def fake(socket_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    """A scripted agent. Clients send it no framework versions, because these vary by environment."""
    monkeypatch.setattr(wire, "FRAMEWORKS", ())
    made = Agent(socket_path)
    yield made
    made.server.close()
