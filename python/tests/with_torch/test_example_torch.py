"""examples/train_torch.py: killed at any time it goes on as if it had not been."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
LINE = re.compile(r"step (\d+) of \d+: loss ([\d.]+)")


def start(folder, *more, steps=24):
    words = [sys.executable, str(ROOT / "examples" / "train_torch.py"), "--model", "tiny", "--device", "cpu"]
    words += ["--steps", str(steps), "--rows", "2", "--length", "32", "--log-every", "1", "--save-every", "5"]
    words += ["--checkpoints", str(folder), *more]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python" / "src"), "FARRIER_SOCKET": "", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=environment)


def losses(run, until=None):
    found = {}
    for line in run.stderr:
        match = LINE.search(line)
        if match:
            found[int(match[1])] = match[2]
            if int(match[1]) == until:
                os.kill(run.pid, signal.SIGKILL)
                break
    return found, run.wait()


def test_a_killed_run_goes_on_to_the_same_losses(tmp_path):
    whole, code = losses(start(tmp_path / "whole"))
    assert code == 0
    assert sorted(whole) == list(range(1, 25))
    first, code = losses(start(tmp_path / "cut"), until=13)
    assert code == -signal.SIGKILL
    second, code = losses(start(tmp_path / "cut"))
    assert code == 0
    assert min(second) == 11, "the checkpoint of step 10 is the last whole one"
    assert {**first, **second} == whole


def test_asked_to_stop_it_saves_first(tmp_path):
    run = start(tmp_path, steps=100_000)
    for line in run.stderr:
        if LINE.search(line):
            run.terminate()
            break
    rest = run.stderr.read()
    assert run.wait() == 0
    assert "saved" in rest
    assert list(tmp_path.glob("step-*.pt"))


def test_checkpoints_of_another_run_are_refused(tmp_path):
    losses(start(tmp_path, steps=5))
    run = start(tmp_path, "--seed", "9", steps=5)
    said = run.stderr.read()
    assert run.wait() == 1
    assert "give --checkpoints" in said


@pytest.mark.parametrize("word", ["191m", "7b-lora"])
def test_a_large_model_on_the_cpu_is_refused_in_words(tmp_path, word):
    run = start(tmp_path, "--model", word)
    said = run.stderr.read()
    assert run.wait() == 1
    assert "needs a GPU" in said
