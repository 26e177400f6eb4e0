import logging

import pytest
import torch

from farrier.bench.model import build
from farrier.bench.sizes import SIZES, size
from farrier.torch import step
from farrier.torch.step_timing import union_length


def test_without_a_gpu_the_step_runs_eagerly_with_a_reason(caplog):
    caplog.set_level(logging.INFO, "farrier.torch")
    model = build("tiny", device="cpu", dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters())

    def train(batch):
        optimizer.zero_grad()
        loss = model(batch, batch)
        loss.backward()
        optimizer.step()
        return loss

    run = step(train, model=model, optimizer=optimizer)
    ids = torch.randint(0, 512, (2, 16))
    first, last = run(ids), [run(ids) for _ in range(5)][-1]
    assert not first.requires_grad
    assert last < first
    assert "cpu" in run.report.reason.cause
    assert "eager from here on: the model is on cpu. Remedy: CUDA graphs need the whole model on one CUDA device" in str(
        run.report
    )
    records = [record for record in caplog.records if record.name == "farrier.torch"]
    assert [(record.levelname, record.getMessage()) for record in records] == [
        ("INFO", f"the step runs eagerly: {run.report.reason}")
    ], "once"
    assert run.report.steps == 6


def test_sizes_match_the_models():
    model = build("tiny", device="cpu", dtype=torch.float32)
    assert sum(p.numel() for p in model.parameters()) == size("tiny").parameters
    assert [round(s.parameters / 1e6) for s in SIZES.values()] == [0, 191, 1364, 6747]
    with pytest.raises(ValueError, match="unknown model `13b`"):
        size("13b")


def test_only_low_rank_weights_are_trained():
    from farrier.bench.model import Decoder
    from farrier.bench.sizes import Size

    shape = Size(layers=2, width=64, heads=4, hidden=96, vocabulary=128, lora_rank=4)
    model = Decoder(shape)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert trained == shape.lora_parameters
    assert sum(p.numel() for p in model.parameters()) == shape.parameters


def test_overlapping_spans_count_once():
    assert union_length([(0, 2), (1, 3), (5, 6), (5, 5.5)]) == 4
    assert union_length([]) == 0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"fn": None}, "fn is None: pass a function"),
        ({"model": None}, "model is None: pass the one trained nn.Module"),
        ({"model": []}, "model is a `list`: pass the one trained nn.Module"),
        ({"optimizer": None}, "optimizer is None: pass an optimizer of torch.optim"),
        ({"optimizer": torch.nn.Linear(1, 1).parameters()}, "optimizer contains a `Parameter`"),
        ({"optimizer": torch.optim.SGD(torch.nn.Linear(1, 1).parameters())}, "optimizer has no parameter of model: pass"),
        ({"tokens": "64k"}, "tokens is '64k': pass an integer"),
        ({"tokens": 0}, "tokens is 0: pass 1 or more"),
        ({"tokens": True}, "tokens is True: pass an integer"),
        ({"first_step": -1}, "first_step is -1: pass 0 or more"),
        ({"first_step": 1.5}, "first_step is 1.5: pass an integer"),
        ({"lengths": {"ids": 0}}, "lengths is a `dict`: pass a farrier.torch.Lengths"),
        ({"policy": "careful"}, "policy is a `str`: pass a farrier.torch.Policy"),
    ],
)
def test_wrong_arguments_are_rejected_by_name(wrong, message):
    model = torch.nn.Linear(1, 1)
    given = {"fn": len, "model": model, "optimizer": torch.optim.SGD(model.parameters()), **wrong}
    with pytest.raises((TypeError, ValueError), match=message):
        step(given.pop("fn"), **given)


def test_an_out_of_memory_step_is_not_counted_and_hints_at_the_guard():
    model = torch.nn.Linear(1, 1)

    def train(batch):
        if batch:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return torch.zeros(())

    run = step(train, model=model, optimizer=torch.optim.SGD(model.parameters()))
    run(False)
    for _ in range(2):
        with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 2.00 GiB.\nhint: farrier.torch.guard\("):
            run(True)
    run(False)
    assert run.report.steps == 2
    assert str(run.report).startswith("2 steps, 0 of them")
