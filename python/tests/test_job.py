"""Identity of a job: its GPU, its repr, and one job per process."""

import pytest

from farrier import agent
from farrier.agent import Job

UUID = "5f2a1c7e-0000-0000-0000-000000000000"


def test_repr_shows_identity(fake, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "16")
    job = Job("4711", 3, gpu="GPU-5f2a")
    assert repr(job) == f"<Job '4711', rank 3 of 16, GPU-5f2a, not connected ({fake.path}), 0 sent, 0 dropped>"
    fake.accept().send(type="welcome", v=1)
    job.step_end(1)
    assert f"connected to {fake.path}, 1 sent" in repr(job)
    monkeypatch.delenv("WORLD_SIZE")
    alone = Job("j", path="")
    assert repr(alone) == "<Job 'j', rank 0, GPU unknown, not connected (reporting disabled), 0 sent, 0 dropped>"


@pytest.mark.parametrize("gpu", [0, "0", "cuda:0", "cuda", "GPU-", "GPU-a b", UUID[:8]])
def test_an_invalid_gpu_is_ignored_with_a_warning(fake, caplog, gpu):
    Job("j", gpu=gpu)
    assert fake.accept().receive() == {"type": "hello", "v": 1, "job": "j"}
    assert "is not a GPU UUID" in caplog.text
    assert "get_device_properties(device).uuid" in caplog.text


@pytest.mark.parametrize("gpu", [UUID, UUID.upper(), f"GPU-{UUID}", "GPU-5f2a", f"MIG-{UUID}", "MIG-GPU-5f2a/7/0"])
def test_every_valid_form_of_a_gpu_uuid(fake, caplog, gpu):
    Job("j", gpu=gpu)
    assert fake.accept().receive()["gpu"] == gpu
    assert not caplog.records


def test_the_process_job_adds_values_and_keeps_known_ones(fake, caplog):
    first = agent.job()
    assert "gpu" not in fake.accept().receive()
    assert agent.job(gpu=f"GPU-{UUID}", rank=3) is first
    rank = fake.accept()
    hello = rank.receive()
    assert (hello["gpu"], hello["rank"]) == (f"GPU-{UUID}", 3)
    for same in (UUID, "GPU-5f2a", None):
        agent.job(gpu=same)
    fake.assert_no_connection()
    assert not caplog.records
    for _ in range(3):
        assert agent.job(gpu="GPU-0000") is first
    assert [record.levelname for record in caplog.records] == ["WARNING"], "warned once"
    assert f"gpu of this job stays GPU-{UUID}; ignoring GPU-0000" in caplog.text
    fake.assert_no_connection()
    first.step_end(1)
    assert rank.receive()["type"] == "step_end"
