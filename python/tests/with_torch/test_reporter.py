"""The step reports itself to the agent: correctly, without blocking, and cheaply."""

import time

import emulation
import pytest
import torch
from torch import nn

import farrier.torch
from farrier import agent
from farrier.agent import Job
from farrier.torch import reporter
from farrier.torch.reporter import StepReporter

UUID = "5f2a1c7e-0000-0000-0000-000000000000"


def of_type(messages, kind):
    return [message for message in messages if message["type"] == kind]


def trained(**more):
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(batch):
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return farrier.torch.step(train, model=model, optimizer=optimizer, **more)


def test_the_first_one_per_second_and_the_last_step_are_reported(fake, monkeypatch):
    monkeypatch.setattr(reporter, "EVERY_S", 0.05)
    step = trained(tokens=64, first_step=100, job=Job("4711"))
    rank = fake.accept()
    began = time.perf_counter()
    losses = []
    for _ in range(3):
        time.sleep(0.03)
        losses.append(float(step(torch.ones(2, 3))))
    lasted = time.perf_counter() - began
    step.close()
    step.close()
    messages = rank.everything()
    assert [message["name"] for message in of_type(messages, "phase")] == ["train"]
    first, second, *more = of_type(messages, "step_end")
    assert (first["step"], first["loss"], first["tokens"]) == (101, losses[0], 64)
    assert "seconds" not in first, "the first step's time is not step time"
    assert second["step"] == 103
    assert 0.03 <= second["seconds"] <= lasted / 2
    assert not more, "no step twice"


def test_a_short_run_is_reported_to_its_end(fake):
    step = trained(job=Job("4711"))
    for _ in range(5):
        step(torch.ones(2, 3))
    step.close()
    assert [message["step"] for message in of_type(fake.accept().everything(), "step_end")] == [1, 5]


def test_a_checkpoint_is_not_step_time(fake, monkeypatch):
    monkeypatch.setattr(reporter, "EVERY_S", 0.0)
    step = trained()
    for pause in (None, None, "saves", None):
        if pause:
            time.sleep(0.05)
            step.job.checkpoint_done(2)
        step(torch.ones(2, 3))
    step_reporter = of_type(fake.accept().everything(), "step_end")
    assert ["seconds" in message for message in step_reporter] == [False, True, False, True]


def test_a_checkpoint_request_is_received(fake, monkeypatch):
    monkeypatch.setattr(reporter, "EVERY_S", 0.0)
    step = trained()
    assert step.job is agent.job()
    fake.accept().send(type="checkpoint_wanted", findings=["17-1"], reason="gpu.xid Xid 95")
    step(torch.ones(2, 3))
    assert step.job.checkpoint_wanted == "gpu.xid Xid 95"


class Device:
    """A GPU that completes its events when a test says so, or on a sync."""

    def __init__(self, monkeypatch):
        self.done_s, self.broken, self.marks = -1.0, False, 0
        monkeypatch.setattr(torch.cuda, "synchronize", self.synchronize)
        monkeypatch.setattr(reporter, "CudaEvent", self.event)
        monkeypatch.setattr(reporter, "_uuid", lambda device: UUID)

    def event(self, device):
        assert device.type == "cuda"
        self.marks += 1
        made = type("Mark", (), {})()
        made.at_s, made.is_complete, made.seconds_since = (
            float(self.marks),
            lambda: self.is_complete(made),
            lambda before: made.at_s - before.at_s,
        )
        return made

    def synchronize(self, device):
        self.done_s = float(self.marks)

    def is_complete(self, event):
        if self.broken:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return event.at_s <= self.done_s


@pytest.fixture
def gpu(monkeypatch):
    return Device(monkeypatch)


def on_a_gpu(**more):
    step_reporter = StepReporter(None, device=torch.device("cuda", 0), **{"tokens": None, "first_step": 0, **more})
    step_reporter.step_begin()
    return step_reporter


def test_a_step_is_reported_once_the_gpu_completed_it(fake, gpu, monkeypatch):
    monkeypatch.setattr(reporter, "EVERY_S", 0.0)
    step_reporter = on_a_gpu()
    rank = fake.accept()
    loss = torch.empty((), device="meta")
    for _ in range(5):
        step_reporter.step_launched(loss)
    messages = rank.everything()
    assert messages[0]["gpu"] == UUID
    assert not of_type(messages, "step_end"), "launched but not completed"
    assert gpu.marks == 1
    gpu.done_s = 1.0
    step_reporter.step_launched(loss)  # The first event is complete.
    step_reporter.step_launched(loss)  # Records the second, which is not.
    assert of_type(rank.everything(), "step_end") == [{"type": "step_end", "step": 1}], (
        "and no loss: reading it would block"
    )
    gpu.done_s = 2.0
    step_reporter.step_launched(loss)
    assert of_type(rank.everything(), "step_end") == [{"type": "step_end", "step": 7, "seconds": 1.0 / 6}], (
        "the GPU's own time"
    )


def test_the_last_step_is_waited_for_and_reported(fake, gpu, monkeypatch):
    step_reporter = on_a_gpu()
    rank = fake.accept()
    gpu.done_s = 1.0
    step_reporter.step_launched(None)
    monkeypatch.setattr(step_reporter, "_due_s", 0.0)
    for _ in range(9):
        step_reporter.step_launched(None)  # The GPU is behind: the second event is pending.
    assert [message["step"] for message in of_type(rank.everything(), "step_end")] == [1]
    step_reporter.flush()
    assert of_type(rank.everything(), "step_end") == [{"type": "step_end", "step": 10, "seconds": 2.0 / 9}]
    step_reporter.flush()
    assert not of_type(rank.everything(), "step_end"), "no step twice"


def test_steps_are_reported_after_graphs_are_disabled(fake):
    with emulation.emulated():
        model = emulation.perceptron()
        optimizer = torch.optim.AdamW(model.parameters())
        step = emulation.step(emulation.plain(model, optimizer), model=model, optimizer=optimizer)

        def refuse():
            raise torch.OutOfMemoryError("CUDA out of memory")

        emulation.Arena.now.at_capture = refuse
        for batch in emulation.batches(6):
            step(batch)
        rank = fake.accept()
        assert "not enough memory" in step.report.reason.cause
        assert [message["step"] for message in of_type(rank.everything(), "step_end")] == [1], "only one within a second"
        step.close()
        assert [message["step"] for message in of_type(rank.everything(), "step_end")] == [6]


def test_a_host_loss_is_reported_and_a_gpu_loss_is_not_read(socket_path):
    assert reporter._host_loss(torch.empty((), device="meta")) is None
    assert reporter._host_loss((torch.zeros(()), torch.zeros(()))) is None
    assert reporter._host_loss(torch.zeros(2)) is None
    assert reporter._host_loss(True) is None
    assert reporter._host_loss(2) == 2.0


def test_a_failed_gpu_ends_reporting_and_not_the_step(fake, gpu, monkeypatch):
    monkeypatch.setattr(reporter, "EVERY_S", 0.0)
    step_reporter = on_a_gpu()
    gpu.broken = True
    for _ in range(3):
        step_reporter.step_launched(None)
    step_reporter.flush()
    assert not of_type(fake.accept().everything(), "step_end")
    assert gpu.marks <= 2, "events are not recorded at every step"
    assert step_reporter.count == 3


@pytest.mark.parametrize("waits", [False, True])
def test_reporting_a_step_is_cheap(fake, gpu, waits):
    """Below 3 µs per step, with and without a pending event; the best of some rounds."""
    gpu.done_s = 1e9
    step_reporter = on_a_gpu()
    step_reporter.step_launched(None)
    if waits:
        gpu.done_s, step_reporter._due_s = -1.0, 0.0
    best = 1.0
    for _ in range(20):
        began = time.process_time()
        for _ in range(2000):
            step_reporter.step_begin()
            step_reporter.step_launched(None)
        best = min(best, (time.process_time() - began) / 2000)
    assert best < 3e-6
    assert len(of_type(fake.accept().everything(), "step_end")) <= 2


def test_nothing_changes_without_an_agent(socket_path):
    step = trained()
    for _ in range(3):
        step(torch.ones(2, 3))
    assert not step.job.connected
