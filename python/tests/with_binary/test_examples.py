"""`farrier lint` of the scripts that people copy, with the real binary."""

import json
import os
import subprocess
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples"


def lint(path):
    words = [os.environ["FARRIER_BIN"], "lint", str(path), "--output", "json"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, json.loads(done.stdout)


@pytest.mark.parametrize("name", ["train_torch.py", "train_keras.py"])
def test_lint_finds_nothing_in_an_example(name):
    code, found = lint(EXAMPLES / name)
    assert found["findings"] == []
    assert found["unread"] == []
    assert code == 0


def test_lint_would_find_an_error(tmp_path):
    wrong = tmp_path / "train.py"
    wrong.write_text((EXAMPLES / "train_torch.py").read_text() + "\nos.environ['PYTORCH_CUDA_ALLOC_CONF'] = 'no_such:1'\n")
    code, found = lint(wrong)
    assert found["findings"]
    assert code == 1
