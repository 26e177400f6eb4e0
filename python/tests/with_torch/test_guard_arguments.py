"""The guard checks its arguments before memory runs out."""

import logging

import pytest
import torch
from torch import nn

import farrier.torch
from farrier.torch.memory_meter import UnknownMeter


def rows(count=8):
    return {"x": torch.randn(count, 6), "y": torch.randn(count, 1)}


def guard(fits=10**9, **more):
    """A guard of a small model that runs out of memory above that many rows."""
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 1))

    def loss_fn(batch):
        if len(batch["x"]) > fits and torch.is_grad_enabled():
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return (model(batch["x"]) - batch["y"]).square().mean()

    return farrier.torch.guard(loss_fn, **{"model": model, "meter": UnknownMeter(), "recompute_modules": [], **more})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"count": 8}, "count is a `int`: pass a function"),
        ({"split": "rows"}, "split is a `str`: pass a function"),
        ({"rows": 8}, "rows is a `int`: pass a function"),
        ({"request_checkpoint": True}, "request_checkpoint is a `bool`: pass a function"),
        ({"floor_rows": 0}, "floor_rows is 0: pass 1 or more"),
        ({"floor_rows": "2"}, "floor_rows is '2': pass an integer"),
        ({"learned": "x"}, "learned is a `str`: pass the return value of learned_sizes"),
        ({"learned": {"version": 1}}, "learned"),
    ],
)
def test_wrong_arguments_are_rejected_at_once(wrong, message):
    with pytest.raises((TypeError, ValueError), match=message):
        guard(**wrong)


def cut_unevenly(batch, sizes):
    return [{name: part[:1] for name, part in batch.items()} for _ in sizes]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"count": lambda batch: batch["labels"].sum()}, r"count fails on the first batch \(KeyError: 'labels'\)"),
        ({"count": lambda batch: None}, "count returned None: it must return an integer"),
        ({"count": lambda batch: batch["y"]}, r"count returned a tensor of shape \(8, 1\)"),
        ({"count": lambda batch: 8}, r"returned \[8, 8\] for the micro-batches, which do not add up to the 8 that"),
        ({"split": lambda batch, sizes: [batch]}, "split returned 1 micro-batches, expected 2"),
        ({"split": lambda batch, sizes: batch["ids"]}, "split fails on the first batch"),
        (
            {"split": cut_unevenly, "rows": lambda batch: len(batch["x"])},
            r"micro-batches of \[1, 1\] rows according to rows=",
        ),
        ({"rows": lambda batch: batch["x"].shape}, "rows returned a `Size`"),
    ],
)
def test_a_broken_function_is_reported_at_the_first_step(wrong, message):
    with pytest.raises((TypeError, ValueError), match=message):
        guard(**wrong)(rows())


def test_working_functions_are_called_once():
    asked = []
    run = guard(count=lambda batch: asked.append(len(batch["x"])) or len(batch["x"]))
    for _ in range(3):
        run(rows(7))
    assert asked == [7, 4, 3, 7], "the batch, two micro-batches and their total, and no more"


def test_an_unsplittable_batch_checks_what_it_can():
    run = guard(count=lambda batch: len(batch["x"]))
    run(rows(1))
    assert run.report.calls == 1


def test_another_error_after_out_of_memory_counts_as_lost():
    model = nn.Linear(6, 1)
    fates = [KeyError("mask"), torch.OutOfMemoryError("CUDA out of memory."), KeyError("mask")]

    def loss_fn(batch):
        if fates:
            raise fates.pop(0)
        return model(batch["x"]).mean()

    run = farrier.torch.guard(loss_fn, model=model, meter=UnknownMeter())
    with pytest.raises(KeyError):
        run(rows())
    assert (run.report.ooms, run.report.lost) == (0, 0), "memory had not run out"
    with pytest.raises(KeyError):
        run(rows())
    assert (run.report.ooms, run.report.lost) == (1, 1)
    run(rows())
    assert repr(run).endswith("3 calls, 1 out-of-memory, 1 lost>"), repr(run)


def test_recovery_is_warned_once_per_shape(caplog):
    caplog.set_level(logging.WARNING, "farrier.torch")
    run = guard(fits=2)
    for _ in range(3):
        run(rows(8))
    assert [record.getMessage() for record in caplog.records] == [
        "out of memory at 8 rows: from here on 4 micro-batches of 2 rows for float32[*,6] float32[*,1]"
    ]


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_sum_declared_as_mean_is_named(reduction):
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 1))

    def loss_fn(batch):
        if len(batch["x"]) > 4:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        errors = (model(batch["x"]) - batch["y"]).square()
        return errors.sum() if reduction == "mean" else errors.mean()

    run = farrier.torch.guard(loss_fn, model=model, reduction=reduction, meter=UnknownMeter(), recompute_modules=[])
    other = "sum" if reduction == "mean" else "mean"
    with pytest.raises(farrier.torch.DoesNotFit, match=f'pass reduction="{other}"'):
        run(rows(8))
