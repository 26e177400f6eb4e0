"""examples/train_torch.py: killed at any time it goes on as if it had not been."""

import signal

import pytest
from example_torch import LINE, losses, start


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
