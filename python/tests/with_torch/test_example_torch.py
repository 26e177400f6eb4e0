"""examples/train_torch.py: a run that is killed at any time resumes exactly."""

import contextlib
import importlib.util
import os
import pty
import re
import signal
import struct
import sys

import pytest
import torch
from example_torch import LINE, ROOT, losses, start

from farrier import agent


def test_a_killed_run_resumes_to_the_same_losses(tmp_path):
    whole, code = losses(start(tmp_path / "whole"))
    assert code == 0
    assert sorted(whole) == list(range(1, 25))
    first, code = losses(start(tmp_path / "cut"), until=13)
    assert code == -signal.SIGKILL
    second, code = losses(start(tmp_path / "cut"))
    assert code == 0
    assert min(second) == 11, "the checkpoint of step 10 is the last whole one"
    assert {**first, **second} == whole


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_stop_signal_saves_first(tmp_path, number, code):
    run = start(tmp_path, "--save-every", "100000", steps=100_000)
    for line in run.stderr:
        if LINE.search(line):
            run.send_signal(number)
            break
    rest = run.stderr.read()
    assert run.wait() == code
    ended = re.search(r"asked to stop: ended after step (\d+) of 100000", rest)
    assert ended, rest
    assert [path.name for path in tmp_path.glob("step-*.pt")] == [f"step-{int(ended[1]):08d}.pt"]
    assert "Traceback" not in rest


def test_other_data_is_rejected_but_moved_data_is_not(tmp_path):
    data, moved = tmp_path / "tokens.bin", tmp_path / "elsewhere.bin"
    data.write_bytes(struct.pack("<200H", *range(200)))
    losses(start(tmp_path / "run", "--data", str(data), steps=5))
    data.rename(moved)
    found, code = losses(start(tmp_path / "run", "--data", str(moved), steps=6))
    assert (sorted(found), code) == ([6], 0)
    moved.write_bytes(struct.pack("<200H", *reversed(range(200))))
    run = start(tmp_path / "run", "--data", str(moved), steps=7)
    output = run.stderr.read()
    assert run.wait() == 1
    assert "is from a run with --data 400 bytes, sha256 of both ends" in output
    assert "pass another --checkpoints" in output


def test_must_check_stops_with_a_message(tmp_path, monkeypatch):
    monkeypatch.setenv("FARRIER_BIN", "/nonexistent/farrier")
    run = start(tmp_path, "--must-check")
    output = run.stderr.read()
    assert run.wait() == 1
    assert "--must-check: UNKNOWN" in output
    assert "Traceback" not in output


def test_checkpoints_of_another_run_are_rejected(tmp_path):
    losses(start(tmp_path, steps=5))
    run = start(tmp_path, "--seed", "9", steps=5)
    output = run.stderr.read()
    assert run.wait() == 1
    assert "is from a run with --seed 1, now 9: pass another --checkpoints" in output
    run = start(tmp_path, steps=6)
    output = run.stderr.read()
    assert run.wait() == 0
    assert "--steps 5, now 6: the remaining schedule differs" in output


def test_an_unreadable_checkpoint_is_skipped(tmp_path):
    losses(start(tmp_path, steps=10))
    first, second = sorted(tmp_path.glob("step-*.pt"))
    second.write_bytes(second.read_bytes()[:1000])
    found, code = losses(start(tmp_path, steps=10))
    assert (min(found), code) == (6, 0), "resumed from the previous checkpoint"
    for path in tmp_path.glob("step-*.pt"):
        path.write_bytes(b"nothing")
    run = start(tmp_path, steps=10)
    output = run.stderr.read()
    assert run.wait() == 1
    assert f"no readable checkpoint in {tmp_path}" in output
    assert first.name in output


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--rows", "0"], "--rows must be 1 or more"),
        (["--save-every", "0"], "--save-every must be 1 or more"),
        (["--warmup", "-5"], "--warmup and --seed must be 0 or more"),
        (["--rate", "-1"], "--rate must be a number above 0"),
        (["--rate", "nan"], "--rate must be a number above 0"),
        (["--data", "/nonexistent"], "no such file: /nonexistent"),
        (["--device", "gpu"], "invalid choice: 'gpu'"),
    ],
)
def test_invalid_arguments_are_rejected(tmp_path, arguments, why):
    run = start(tmp_path, *arguments)
    output = run.stderr.read()
    assert run.wait() == 2
    assert why in output


def test_several_ranks_are_rejected(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    run = start(tmp_path)
    assert "trains on one GPU" in run.stderr.read()
    assert run.wait() == 2


@pytest.mark.parametrize("word", ["191m", "7b-lora"])
def test_a_large_model_on_the_cpu_is_rejected(tmp_path, word):
    run = start(tmp_path, "--model", word)
    output = run.stderr.read()
    assert run.wait() == 1
    assert "needs a GPU" in output


def test_out_of_range_tokens_are_rejected(tmp_path):
    data = tmp_path / "tokens.bin"
    data.write_bytes(struct.pack("<64H", *range(60), 511, 512, 40_000, 7))
    run = start(tmp_path / "run", "--data", str(data))
    output = run.stderr.read()
    assert run.wait() == 1
    assert "the data contains token 40000, but the model has only 512" in output


@pytest.fixture
def example(monkeypatch):
    """The script as a module, with a patched command line."""
    spec = importlib.util.spec_from_file_location("train_torch", ROOT / "examples" / "train_torch.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(signal, "signal", lambda *_: None)

    def arguments(folder, *more):
        small = ["--device", "cpu", "--rows", "2", "--length", "16", "--steps", "3", "--checkpoints", str(folder)]
        monkeypatch.setattr(sys, "argv", ["train_torch.py", *small, *more])
        return module

    return arguments


def test_guard_and_script_share_one_job(example, fake, tmp_path):
    module = example(tmp_path)
    assert module.train(module.arguments(), torch.device("cpu")) == 0
    rank = fake.accept()
    module.Run(module.arguments(), torch.device("cpu")).forward_backward.events.oom(7)
    output = [line["type"] for line in rank.everything()]
    assert output[0] == "hello"
    assert output.count("step_end") == 2, "the first and the last: the step reports about once a second"
    assert output[-1] == "oom", "the guard reports on the same connection"
    assert agent.job().sent == len(output) - 1


def test_a_failed_checkpoint_is_reported_and_training_continues(example, fake, tmp_path, monkeypatch, caplog):
    module = example(tmp_path, "--save-every", "1")
    save = module.Checkpoints.save

    def full(self, step, state):
        if step in failing:
            raise OSError("no space left on device")
        return save(self, step, state)

    monkeypatch.setattr(module.Checkpoints, "save", full)
    failing = {2}
    assert module.train(module.arguments(), torch.device("cpu")) == 0
    output = fake.accept().everything()
    assert [it["message"] for it in output if it["type"] == "checkpoint_failed"] == ["OSError: no space left on device"]
    assert [it["step"] for it in output if it["type"] == "checkpoint_done"] == [1, 3]
    failing = {4}
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--steps", "4"])
    assert module.train(module.arguments(), torch.device("cpu")) == 1
    assert "the last step, 4, is not on disk" in caplog.text


def test_a_stop_signal_after_the_last_step_exits_normally(example, socket_path, tmp_path, monkeypatch, caplog):
    module = example(tmp_path)
    assert module.train(module.arguments(), torch.device("cpu")) == 0
    monkeypatch.setattr(signal, "signal", lambda number, handler: callable(handler) and handler(number, None))
    caplog.set_level("INFO")
    assert module.train(module.arguments(), torch.device("cpu")) == 0
    assert "all 3 steps were already done" in caplog.text
    assert "asked to stop: ended after step 3 of 3" in caplog.text


def test_no_memory_is_pinned_on_the_cpu(example, socket_path, tmp_path, monkeypatch):
    module = example(tmp_path)

    def refuse(_):
        raise RuntimeError("pinned memory takes a CUDA context")

    monkeypatch.setattr(torch.Tensor, "pin_memory", refuse)
    with monkeypatch.context() as with_a_gpu:
        with_a_gpu.setattr(torch.cuda, "is_available", lambda: True)
        batch = module.Tokens(None, 512, 1, pinned=False).batch(0, 2, 8)
    assert batch["ids"].shape == batch["labels"].shape == (2, 8)
    assert module.train(module.arguments(), torch.device("cpu")) == 0


def test_learned_sizes_are_checkpointed(example, socket_path, tmp_path):
    module = example(tmp_path)
    module.train(module.arguments(), torch.device("cpu"))
    resumed = module.Run(module.arguments(), torch.device("cpu"))
    assert resumed.restore() == 3
    assert [seen.safe_rows for seen in resumed.forward_backward.learned.shapes.values()] == [2]


def test_log_lines_overwrite_the_progress_bar(tmp_path):
    """On a terminal every log line first clears the progress bar."""
    leader, follower = pty.openpty()
    run = start(tmp_path, steps=5, stderr=follower)
    os.close(follower)
    output = b""
    with contextlib.suppress(OSError):  # The other end is closed.
        while more := os.read(leader, 4096):
            output += more
    assert run.wait() == 0
    assert b"5/5 loss" in output
    at = output.index(b"saved ")
    line = output[:at].rpartition(b"\r")[2]
    assert line.startswith(b"\x1b[K20"), line
