"""Reported steps have completed on the GPU, and nothing blocks."""

import time

import pytest
import torch
from torch import nn

import farrier.torch
from farrier.torch import reporter

DEVICE = torch.device("cuda", 0)


def made(sleep_cycles, **more):
    model = nn.Linear(64, 64, device=DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def train(batch):
        optimizer.zero_grad(set_to_none=True)
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        torch.cuda._sleep(sleep_cycles)
        return loss

    return farrier.torch.step(train, model=model, optimizer=optimizer, **more)


def ends(rank):
    return [message for message in rank.everything() if message["type"] == "step_end"]


def test_a_completed_step_is_reported_without_blocking(fake, monkeypatch):
    monkeypatch.setattr(reporter, "EVERY_S", 0.0)
    step = made(100_000_000, tokens=64, graph=False)  # Keeps the GPU busy for some 50 ms.
    batch = torch.ones(8, 64, device=DEVICE)
    step(batch)
    torch.cuda.synchronize()
    step(batch)
    torch.cuda.synchronize()
    rank = fake.accept()
    assert rank.receive()["gpu"] == str(torch.cuda.get_device_properties(DEVICE).uuid)
    ends(rank)
    torch.cuda.set_sync_debug_mode("error")
    try:
        began = time.perf_counter()
        for _ in range(10):
            step(batch)
        launched_s = time.perf_counter() - began
    finally:
        torch.cuda.set_sync_debug_mode("default")
    before = ends(rank)
    torch.cuda.synchronize()
    lasted_s = time.perf_counter() - began
    assert launched_s < lasted_s / 3, "the host finished long before the GPU"
    assert all(message["step"] <= 3 for message in before), "a step that is only launched is not reported"
    step.close()
    last = ends(rank)[-1]
    assert last["step"] == 12
    assert "loss" not in last
    assert last["seconds"] == pytest.approx(lasted_s / 10, rel=0.3), "GPU time, not launch time"


def test_graph_steps_are_reported(fake, monkeypatch):
    monkeypatch.setattr(reporter, "EVERY_S", 0.01)
    step = made(1_000_000, policy=farrier.torch.Policy(min_speedup=0.0, profile=False))
    for _ in range(200):
        step(torch.ones(8, 64, device=DEVICE))
    assert step.graphed, step.report
    step.close()  # The GPU is some steps behind; the last step is still reported.
    step_reporter = ends(fake.accept())
    assert step_reporter[-1]["step"] == 200
    assert len(step_reporter) > 3
    assert [message["step"] for message in step_reporter] == sorted({message["step"] for message in step_reporter})


def test_reporting_costs_some_microseconds(fake):
    step = made(0, graph=False)
    batch = torch.ones(8, 64, device=DEVICE)
    step(batch)
    step_reporter = step._reporter
    torch.cuda._sleep(2_000_000_000)  # A pending event is queried at each step.
    step_reporter._due_s = 0.0
    step_reporter.step_launched(None)
    assert step_reporter._pending is not None
    began = time.perf_counter()
    for _ in range(1000):
        step_reporter.step_begin()
        step_reporter.step_launched(None)
    each_s = (time.perf_counter() - began) / 1000
    print(f"a step that waits for its mark: {1e6 * each_s:.2f} µs")
    assert step_reporter._pending is not None, "the GPU was still busy"
    assert each_s < 5e-6
    torch.cuda.synchronize()
