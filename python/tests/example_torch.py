"""Runs examples/train_torch.py in its own process."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
LINE = re.compile(r"step (\d+) of \d+: loss ([\d.]+)")


def start(folder, *more, steps=24, stderr=subprocess.PIPE):
    """Starts the example with small steps. It logs every step and saves every fifth.

    Arguments in `more` override these defaults.
    """
    words = [sys.executable, str(ROOT / "examples" / "train_torch.py"), "--model", "tiny", "--device", "cpu"]
    words += ["--steps", str(steps), "--rows", "2", "--length", "32", "--log-every", "1", "--save-every", "5"]
    words += ["--checkpoints", str(folder), *more]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python" / "src"), "FARRIER_SOCKET": "", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(words, stderr=stderr, text=True, env=environment)


def losses(run, until=None):
    """Losses by step, as printed, and the exit code.

    `until` kills the run with `kill -9` after that step.
    """
    found = {}
    for line in run.stderr:
        match = LINE.search(line)
        if match:
            found[int(match[1])] = match[2]
            if int(match[1]) == until:
                os.kill(run.pid, signal.SIGKILL)
                break
    return found, run.wait()
