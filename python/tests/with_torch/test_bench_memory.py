"""What counts as a lost step, with steps that run out of memory on request."""

from __future__ import annotations

import pytest
import torch

import farrier.bench.memory
from farrier.bench.memory import Shard, run_stream, shapes
from farrier.bench.model import Decoder, build
from farrier.torch.guard_report import DoesNotFit


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Decoder:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 3 << 30)
    monkeypatch.setattr(farrier.bench.memory, "random_batch", lambda _, rows, length, seed: (rows, length))
    return build("tiny", device="cpu", dtype=torch.float32)


def test_steps_out_of_memory_are_lost_without_their_tokens(model: Decoder) -> None:
    shard = Shard("tiny", "default", 1.0, seed=3, steps=20)
    stream = shapes(20, 3)
    refused = {stream[0]: torch.OutOfMemoryError("CUDA out of memory."), stream[5]: DoesNotFit(["all"], **UNKNOWN)}
    seen = []

    def step(batch: tuple[int, int]) -> torch.Tensor:
        seen.append(batch)
        if batch in refused:
            raise refused[batch]
        return torch.tensor(1.0)

    found = run_stream(shard, model, step)
    assert seen == stream
    assert found["lost"] == [shape for shape in stream if shape in refused]
    assert found["tokens"] == sum(rows * length for rows, length in stream if (rows, length) not in refused)
    assert found["finite"]
    assert found["reserved_gib"] == 3


def test_a_non_finite_loss_shows(model: Decoder) -> None:
    found = run_stream(Shard("tiny", "default", 1.0, steps=2), model, lambda _: torch.tensor(float("nan")))
    assert not found["finite"]


def test_any_other_error_ends_the_shard(model: Decoder) -> None:
    def step(_: object) -> torch.Tensor:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with pytest.raises(RuntimeError, match="illegal memory access"):
        run_stream(Shard("tiny", "default", 1.0, steps=2), model, step)


UNKNOWN = {"shape": "x", "requested_bytes": None, "allocated_bytes": None, "capacity_bytes": None}
