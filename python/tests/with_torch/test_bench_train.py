"""A shard of the training benchmark without a GPU."""

import json
from types import SimpleNamespace

import emulation
import torch

import farrier.torch
from farrier.bench import process, train
from farrier.torch import Policy
from farrier.torch.graph_policy import StepTiming


def test_the_profiled_step_had_no_comparison(monkeypatch):
    report = SimpleNamespace(verified=6, verified_s=0.5)
    ran = []

    def step(batch):
        ran.append(batch)
        report.verified += len(ran) == 1  # The first one includes a comparison.

    step.report = report
    launches = iter((2500, 1))
    monkeypatch.setattr(train, "profile_step", lambda run, *s: (run(), StepTiming(*s, launches=next(launches))))
    assert train.profile_uncompared_step(step, {}, 0.005).launches == 1
    assert len(ran) == 2


def test_a_step_without_a_report_has_no_comparisons():
    assert train.comparisons(None) == (0, 0.0)


def test_an_eager_step_has_no_further_comparisons():
    schedule = SimpleNamespace(cost_share=0.003)
    assert train.comparisons_share(SimpleNamespace(schedule=schedule, reason=None)) == 0.003
    assert train.comparisons_share(SimpleNamespace(schedule=schedule, reason="it differs")) == 0.0
    assert train.comparisons_share(SimpleNamespace(schedule=SimpleNamespace(cost_share=None), reason=None)) is None
    assert train.comparisons_share(SimpleNamespace(schedule=None, reason="no gain")) is None


def without_a_gpu(monkeypatch):
    """Runs a shard on a CPU: graphs are emulated, and there is nothing to profile."""
    randint, build = torch.randint, train.build
    monkeypatch.setattr(torch, "randint", lambda *a, device, **more: randint(*a, **more))
    monkeypatch.setattr(train, "build", lambda *a, **more: build(*a, device="cpu", dtype=torch.float32, **more))
    for name in ("max_memory_allocated", "max_memory_reserved"):
        monkeypatch.setattr(torch.cuda, name, lambda: 1 << 20)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "none")
    monkeypatch.setattr(train, "profile_step", lambda run, *s: (run(), StepTiming(*s)))


def test_a_shard_of_ours_counts_its_comparisons(monkeypatch):
    without_a_gpu(monkeypatch)

    def emulated_step(_, model, optimizer):
        step = train.train_step(model, optimizer, model)
        policy = Policy(warmups=3, min_speedup=0.0, profile=False)
        return emulation.step(step, model=model, optimizer=optimizer, policy=policy)

    monkeypatch.setattr(train, "variant_step", emulated_step)
    monkeypatch.setattr(farrier.torch, "configure_allocator", lambda: None)
    with emulation.emulated():
        found = train.measure(train.Shard("tiny", "ours", rows=2, length=16, groups=6, steps=8))
    assert found["comparisons"] == 2, "of replays 9 to 56, numbers 16 and 32 are compared"
    assert 0 < found["comparisons_s"] <= sum(found["step_s"]) * 8
    assert 0 < found["comparisons_share"] < 1
    assert "verified 6 times" in found["report"]
    assert found["farrier"] == process.build()
    at = found["at_s"]
    assert 0 < at["imported"] < at["ready"] < at["timed"] < at["profiled"]
    assert found["ready_s"] == at["ready"]
    json.dumps(found)


def test_an_eager_shard_has_no_comparisons(monkeypatch):
    without_a_gpu(monkeypatch)
    with emulation.emulated():
        found = train.measure(train.Shard("tiny", "eager", rows=2, length=16, warmups=2, groups=2, steps=2))
    assert (found["comparisons"], found["comparisons_share"], found["report"]) == (0, None, None)
