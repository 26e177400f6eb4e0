import dataclasses
from collections import UserDict, namedtuple

import pytest
import torch

from farrier.torch.batch import pad_batch, rebuild, signature, tensors
from farrier.torch.lengths import Lengths

Pair = namedtuple("Pair", "left right")


@dataclasses.dataclass
class Record:
    ids: torch.Tensor
    note: str = "x"


class Encoding(UserDict):
    pass


@pytest.mark.parametrize(
    ("batch", "names"),
    [
        (torch.ones(2), [""]),
        ({"a": torch.ones(2), "b": {"c": torch.ones(1)}}, ["a", "b.c"]),
        ([torch.ones(2), (torch.ones(1),)], ["0", "1.0"]),
        (Pair(torch.ones(2), None), ["left"]),
        (Record(torch.ones(2)), ["ids"]),
        (Encoding(ids=torch.ones(2)), ["ids"]),
    ],
)
def test_every_batch_structure_is_rebuilt(batch, names):
    assert list(tensors(batch)) == names
    doubled = rebuild(batch, lambda _, leaf: leaf * 2 if isinstance(leaf, torch.Tensor) else leaf)
    assert type(doubled) is type(batch)
    for name, tensor in tensors(batch).items():
        assert torch.equal(tensors(doubled)[name], tensor * 2)


def test_signatures_distinguish_shapes_dtypes_and_values():
    def signature_of(**batch):
        return signature(batch)

    assert signature_of(a=torch.ones(2)) == signature_of(a=torch.zeros(2))
    assert signature_of(a=torch.ones(2)) != signature_of(a=torch.ones(3))
    assert signature_of(a=torch.ones(2)) != signature_of(a=torch.ones(2, dtype=torch.int64))
    assert signature_of(a=torch.ones(2), flag=True) != signature_of(a=torch.ones(2), flag=False)
    with pytest.raises(TypeError, match="`odd` of the batch is a object"):
        signature_of(odd=object())


def test_padding_is_on_the_right_with_each_value():
    batch = {"ids": torch.ones(2, 70), "labels": torch.ones(2, 70), "weight": torch.ones(2)}
    made = pad_batch(batch, Lengths(pad={"ids": 0, "labels": -100}))
    assert made["ids"].shape == made["labels"].shape == (2, 72)
    assert made["ids"][:, 70:].eq(0).all()
    assert made["labels"][:, 70:].eq(-100).all()
    assert made["weight"] is batch["weight"]
    full = {"ids": torch.ones(2, 72), "labels": torch.ones(2, 72)}
    assert pad_batch(full, Lengths(pad={"ids": 0, "labels": -100}))["ids"] is full["ids"]


def test_a_tensor_without_a_padding_value_is_rejected():
    batch = {"ids": torch.ones(2, 70), "mask": torch.ones(2, 70)}
    with pytest.raises(ValueError, match=r"\['mask'\] have the length 70"):
        pad_batch(batch, Lengths(pad={"ids": 0}))
    with pytest.raises(ValueError, match="labels"):
        pad_batch(batch, Lengths(pad={"labels": 0}))
