"""Allocator settings, each in its own process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import farrier.torch
from farrier.torch import allocator

SOURCE = str(Path(farrier.torch.__file__).parents[2])


def in_a_process(code, **environment):
    clean = {name: value for name, value in os.environ.items() if "ALLOC_CONF" not in name}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**clean, "PYTHONPATH": SOURCE, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_torch_applies_the_settings():
    code = """
import os, farrier.torch
choice = farrier.torch.configure_allocator()
print(os.environ["PYTORCH_ALLOC_CONF"], choice.expandable)
"""
    assert in_a_process(code) == ["expandable_segments:True", "True"]


def test_user_settings_are_kept():
    code = """
import os, farrier.torch
farrier.torch.configure_allocator()
print(os.environ["PYTORCH_CUDA_ALLOC_CONF"], os.environ.get("PYTORCH_ALLOC_CONF"))
"""
    set_before = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False,max_split_size_mb:64"}
    assert in_a_process(code, **set_before) == ["expandable_segments:False,max_split_size_mb:64", "None"]


@pytest.mark.parametrize("earlier", ["farrier.torch.configure_allocator()", ""])
def test_a_conflict_with_existing_settings_is_warned(earlier):
    code = f"""
import logging, sys, farrier.torch
logging.basicConfig(stream=sys.stdout, format="%(levelname)s")
{earlier}
print(farrier.torch.configure_allocator(ipc=True).expandable)
"""
    before = {} if earlier else {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    assert in_a_process(code, **before) == ["WARNING", "True"]


def test_configuring_after_cuda_started_is_rejected(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
    with pytest.raises(allocator.AllocatorStarted, match="before the first tensor goes to the GPU"):
        farrier.torch.configure_allocator()
    assert "PYTORCH_ALLOC_CONF" not in os.environ


def test_an_unknown_setting_is_rejected_by_torch():
    with pytest.raises(ValueError, match="Unrecognized key"):
        allocator._apply(torch, "no_such_setting:1")


class Fake:
    """The part of torch that the switch uses."""

    def __init__(self, settings):
        self.settings, self.applied = settings, []
        self._C = type("C", (), {"_accelerator_setAllocatorSettings": lambda _, text: self.applied.append(text)})()
        snapshot = lambda: {"allocator_settings": self.settings}  # noqa: E731
        self.cuda = type("Cuda", (), {"memory": type("M", (), {"_snapshot": staticmethod(snapshot)})})


def test_the_switch_keeps_other_settings_and_the_last_user_restores():
    fake = Fake({"expandable_segments": True, "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64,expandable_segments:True"})
    switch = allocator._ExpandableSwitch()
    with switch.off(fake):
        with switch.off(fake):
            pass
        assert fake.applied == ["max_split_size_mb:64,expandable_segments:False"]
    assert fake.applied[1:] == ["max_split_size_mb:64,expandable_segments:True"]
    with pytest.raises(KeyError), switch.off(fake):
        raise KeyError
    assert len(fake.applied) == 4


def test_classic_segments_are_not_switched():
    fake = Fake({"expandable_segments": False, "PYTORCH_CUDA_ALLOC_CONF": ""})
    with allocator._ExpandableSwitch().off(fake):
        pass
    assert fake.applied == []
