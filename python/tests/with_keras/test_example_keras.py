"""examples/train_keras.py on the backend that KERAS_BACKEND names: a killed run resumes exactly.

All runs use dropout. Each backend has another RNG for it, which a resumed run must restore.
"""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[3]
EXAMPLE = str(ROOT / "examples" / "train_keras.py")
LINE = re.compile(r"step (\d+) of \d+: loss ([\d.]+)")

#: The example with LoRA in its smallest model, as in its largest.
WITH_LOW_RANKS = """
import dataclasses, runpy, sys
from farrier.bench.sizes import SIZES
SIZES["tiny"] = dataclasses.replace(SIZES["tiny"], lora_rank=4)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def start(folder, *more, steps=12, program=(EXAMPLE,)):
    arguments = [sys.executable, *program, "--device", "cpu", "--dropout", "0.1", "--warmup", "4"]
    arguments += ["--steps", str(steps), "--rows", "2", "--length", "16", "--log-every", "1", "--save-every", "5"]
    arguments += ["--checkpoints", str(folder), *more]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python" / "src"), "FARRIER_SOCKET": "", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True, env=environment)


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


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An undisturbed run: its folder and its losses."""
    folder = tmp_path_factory.mktemp("whole")
    found, code = losses(start(folder))
    assert code == 0
    assert sorted(found) == list(range(1, 13))
    assert len(set(found.values())) == 12
    return folder, found


def test_a_killed_run_resumes_to_the_same_losses(whole, tmp_path):
    first, code = losses(start(tmp_path), until=8)
    assert code == -signal.SIGKILL
    second, code = losses(start(tmp_path))
    assert code == 0
    assert min(second) == 6, "the checkpoint of step 5 is the last whole one"
    assert {**first, **second} == whole[1]


def test_lora_resumes_without_the_frozen_weights(tmp_path):
    program = ("-c", WITH_LOW_RANKS, EXAMPLE)
    undisturbed, code = losses(start(tmp_path, steps=7, program=program))
    assert code == 0
    (tmp_path / "step-00000007.npz").unlink()
    with np.load(tmp_path / "step-00000005.npz") as state:
        weights = {name for name in state.files if "kernel" in name or "embedding" in name}
    assert weights
    assert all("lora_kernel" in name for name in weights)
    again, code = losses(start(tmp_path, steps=7, program=program))
    assert code == 0
    assert again == {step: loss for step, loss in undisturbed.items() if step > 5}


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_stop_signal_saves_the_last_step(tmp_path, number, code):
    run = start(tmp_path, steps=100_000)
    found, output = [], ""
    for line in run.stderr:
        output += line
        match = LINE.search(line)
        found += [int(match[1])] if match else []
        if match and found == [1]:
            run.send_signal(number)
    assert run.wait() == code
    assert f"asked to stop: ended after step {found[-1]} of 100000" in output
    assert "Traceback" not in output
    assert len(found) < 1000
    assert (tmp_path / f"step-{found[-1]:08d}.npz").exists()


def test_checkpoints_of_another_run_are_rejected(whole):
    run = start(whole[0], "--seed", "9")
    output = run.stderr.read()
    assert run.wait() == 1
    assert "pass another --checkpoints" in output


def test_other_data_is_rejected_but_moved_data_is_not(tmp_path):
    data, moved = tmp_path / "tokens.bin", tmp_path / "elsewhere.bin"
    data.write_bytes(np.arange(200, dtype=np.uint16).tobytes())
    assert losses(start(tmp_path / "run", "--data", str(data), steps=2))[1] == 0
    data.rename(moved)
    assert losses(start(tmp_path / "run", "--data", str(moved), steps=2)) == ({}, 0)
    moved.write_bytes(np.arange(200, 0, -1, dtype=np.uint16).tobytes())
    run = start(tmp_path / "run", "--data", str(moved), steps=3)
    output = run.stderr.read()
    assert run.wait() == 1
    assert "is from a run with --data 400 bytes, sha256 of both ends" in output
    assert "pass another --checkpoints" in output


def test_a_finished_run_does_nothing(whole):
    found, code = losses(start(whole[0]))
    assert (found, code) == ({}, 0)


def test_failing_to_save_the_last_step_is_an_error(tmp_path):
    (tmp_path / "step-00000002.part").mkdir()  # Occupies the temporary path.
    run = start(tmp_path, steps=2)
    output = run.stderr.read()
    assert run.wait() == 1
    assert "the last step, 2, is not on disk" in output


def test_an_out_of_range_token_is_rejected(tmp_path):
    (tmp_path / "tokens.bin").write_bytes(np.full(100, 512, dtype=np.uint16).tobytes())
    run = start(tmp_path, "--data", str(tmp_path / "tokens.bin"))
    output = run.stderr.read()
    assert run.wait() != 0
    assert "the data contains token 512, but the model has only 512" in output


@pytest.mark.parametrize(
    ("arguments", "code", "refusal"),
    [
        (("--model", "7b-lora"), 1, "7b-lora needs a GPU"),
        (("--steps", "0"), 2, "--steps must be 1 or more"),
        (("--warmup", "-5"), 2, "--warmup and --seed must be 0 or more"),
        (("--rate", "-1"), 2, "--rate must be above 0"),
        (("--data", "/nowhere"), 2, "no such file: /nowhere"),
        (("--backend", "openvino"), 2, "openvino"),
    ],
)
def test_invalid_arguments_are_rejected_with_a_message(tmp_path, arguments, code, refusal):
    run = start(tmp_path, *arguments)
    output = run.stderr.read()
    assert run.wait() == code
    assert refusal in output
    assert "Traceback" not in output
