"""examples/train_torch.py on a GPU, compiled and as a graph: a killed run resumes exactly."""

import signal

from example_torch import losses, start

WORDS = ("--device", "cuda", "--model", "191m", "--rows", "1", "--length", "512", "--save-every", "20")
STEPS = 60


def apart(one, other):
    """The largest difference between two loss curves, relative to the loss."""
    return max(abs(float(one[step]) - float(other[step])) / float(other[step]) for step in other)


def test_a_killed_run_resumes_to_the_same_losses(tmp_path):
    whole, code = losses(start(tmp_path / "whole", *WORDS, steps=STEPS))
    assert code == 0
    assert sorted(whole) == list(range(1, STEPS + 1))
    again, code = losses(start(tmp_path / "again", *WORDS, steps=STEPS))
    assert code == 0
    first, code = losses(start(tmp_path / "cut", *WORDS, steps=STEPS), until=47)
    assert code == -signal.SIGKILL
    second, code = losses(start(tmp_path / "cut", *WORDS, steps=STEPS))
    assert code == 0
    assert min(second) == 41, "the checkpoint of step 40 is the last whole one"
    resumed = {**first, **second}
    assert sorted(resumed) == sorted(whole)
    noise, found = apart(again, whole), apart(resumed, whole)
    print(f"{STEPS} losses, {whole[1]} to {whole[STEPS]}: two whole runs {noise:.1e} apart, killed and resumed {found:.1e}")
    assert found <= max(2 * noise, 1e-5), f"killed and resumed {found:.1e} apart, two whole runs {noise:.1e}"
