"""Batches of every structure are split along their rows, in order, without copies."""

from collections import UserDict, namedtuple
from dataclasses import dataclass, field

import numpy
import pytest
import torch
from torch import nn

from farrier.torch import guard
from farrier.torch.split import NotSplittable, batch_shape, gradient_leaves, row_count, split_rows
from farrier.torch.split_check import _has_ignored_labels

Pair = namedtuple("Pair", "x y")


@dataclass
class Sample:
    x: torch.Tensor
    scale: float
    parts: dict
    made: int = field(init=False, default=3)


class Encoding(UserDict):
    """Like Hugging Face's BatchEncoding: a mapping created from a dict."""


def rows(first, last):
    return torch.arange(first, last).repeat_interleave(3).view(-1, 3)


@pytest.mark.parametrize(
    ("batch", "read"),
    [
        (rows(0, 7), lambda b: b),
        ((rows(0, 7), torch.ones(7)), lambda b: b[0]),
        ([rows(0, 7), torch.ones(7)], lambda b: b[0]),
        ({"a": {"b": [rows(0, 7)]}, "mask": torch.ones(5, 5), "m": torch.ones(7)}, lambda b: b["a"]["b"][0]),
        (Pair(rows(0, 7), torch.ones(7)), lambda b: b.x),
        (Sample(rows(0, 7), 0.5, {"y": torch.ones(7)}), lambda b: b.x),
        (Encoding(ids=rows(0, 7)), lambda b: b["ids"]),
        ({"x": rows(0, 7), "n": numpy.ones((7, 2))}, lambda b: b["x"]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_batch_structure_is_split(batch, read):
    assert row_count(batch) == 7
    split_batch = split_rows(batch, [3, 2, 2])
    assert all(type(micro_batch) is type(batch) for micro_batch in split_batch)
    assert torch.equal(torch.cat([read(micro_batch) for micro_batch in split_batch]), read(batch))
    assert [row_count(micro_batch) for micro_batch in split_batch] == [3, 2, 2]
    assert read(split_batch[0]).data_ptr() == read(batch).data_ptr(), "a view"


def test_values_without_rows_are_passed_whole():
    batch = {
        "x": rows(0, 4),
        "y": torch.ones(4),
        "weights": torch.ones(9),
        "n": None,
        "mode": "train",
        "k": torch.tensor(2),
    }
    for micro_batch in split_rows(batch, [2, 2]):
        assert micro_batch["weights"] is batch["weights"]
        assert micro_batch["k"] is batch["k"]
        assert (micro_batch["n"], micro_batch["mode"]) == (None, "train")


def test_a_list_with_one_value_per_row_is_split():
    batch = {"x": rows(0, 3), "texts": ["a", "b", "c"], "sizes": (1, 2, 3), "names": ["one", "two"]}
    first, second = split_rows(batch, [2, 1])
    assert (first["texts"], second["texts"]) == (["a", "b"], ["c"])
    assert (first["sizes"], second["sizes"]) == ((1, 2), (3,))
    assert first["names"] == second["names"] == ["one", "two"]


def test_numpy_rows_are_split():
    first, second = split_rows({"x": rows(0, 3), "n": numpy.arange(3)}, [1, 2])
    assert first["n"].tolist() == [0]
    assert second["n"].tolist() == [1, 2]


@pytest.mark.parametrize(
    "batch",
    [
        {"x": torch.ones(8, 3), "weights": torch.ones(5)},
        [{"image": torch.ones(3, 4, 4)}, {"image": torch.ones(3, 5, 5)}],
        {"n": 3},
        torch.tensor(1.0),
    ],
    ids=["tie", "samples", "nothing", "scalar"],
)
def test_ambiguous_rows_are_rejected(batch):
    with pytest.raises(NotSplittable, match="pass `split=` and `rows=`"):
        row_count(batch)


def test_the_key_is_everything_but_the_rows():
    small = {"x": torch.ones(2, 5), "y": torch.ones(2, dtype=torch.int32), "w": torch.ones(9)}
    large = {"x": torch.ones(6, 5), "y": torch.ones(6, dtype=torch.int32), "w": torch.ones(9)}
    assert batch_shape(small, 2).key == batch_shape(large, 6).key == "float32[*,5] int32[*] float32[9]"
    assert batch_shape(large, 6).elements_per_row == 6
    longer = {**large, "x": torch.ones(6, 7)}
    assert batch_shape(longer, 6).key != batch_shape(large, 6).key


def test_gradient_leaves_are_found():
    leaf = torch.ones(3, requires_grad=True)
    assert gradient_leaves({"a": [leaf, leaf * 2], "b": torch.ones(3)}) == [leaf]


def nested(layout, rows):
    return torch.nested.nested_tensor(rows, layout=layout)


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
@pytest.mark.parametrize("more", [{}, {"rows": lambda batch: len(batch["y"])}])
def test_a_nested_tensor_is_not_split_and_the_step_runs(layout, more):
    model, failures = nn.Linear(3, 1), []
    given = {"x": nested(layout, [torch.ones(2, 3), torch.ones(4, 3)]), "y": torch.ones(2, 1)}

    def loss_fn(batch):
        if not failures:
            failures.append("once")
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return sum((model(row) - batch["y"].mean()).square().mean() for row in batch["x"].unbind())

    run = guard(loss_fn, model=model, **more)
    torch.testing.assert_close(run(given), loss_fn(given).detach())
    assert run.report.ooms == 1
    assert run.report.split_calls == 0
    assert any("nested tensor, which cannot be split automatically" in note for note in run.report.notes)
    assert "float32[nested]" in batch_shape(given, 1).key


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_ignored_labels_in_a_nested_tensor_are_found(layout):
    assert _has_ignored_labels(nested(layout, [torch.tensor([1, -100]), torch.tensor([2])]))
    assert not _has_ignored_labels(nested(layout, [torch.tensor([1, 2]), torch.tensor([2])]))
