"""Recomputation: which blocks, nothing left behind, and compiled models."""

import contextlib
import copy
import gc

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

import farrier.torch
from farrier.torch.recompute import find_blocks, offloading, recomputing


class Block(nn.Module):
    """A custom block: torch does not compile its own containers in place."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 2)

    def forward(self, x):
        return torch.tanh(self.inner(x))


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.small = nn.Sequential(*(nn.Linear(2, 2) for _ in range(9)))
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x):
        x = self.small(x)
        for block in self.blocks:
            x = block(x)
        return x


def test_blocks_are_the_longest_list_of_nested_modules():
    model = Two()
    assert find_blocks([model]) == list(model.blocks)
    assert find_blocks([nn.Linear(2, 2)]) == []
    assert len(find_blocks([model.small])) == 9


def test_nothing_is_left_behind_after_an_error():
    model = Two()
    own = model.blocks[0].forward
    model.blocks[0].forward = own  # The user's own forward is kept.
    with contextlib.suppress(KeyError), recomputing(model.blocks):
        assert all("forward" in block.__dict__ for block in model.blocks)
        raise KeyError
    assert model.blocks[0].__dict__["forward"] == own
    assert "forward" not in model.blocks[1].__dict__


def test_blocks_run_twice_and_hooks_once():
    model, forwards, hooks = Two(), [], []
    model.blocks[1].register_forward_hook(lambda *_: hooks.append(1))
    model.blocks[1].inner.register_forward_hook(lambda *_: forwards.append(1))
    with recomputing(model.blocks):
        model(torch.ones(1, 2)).sum().backward()
    assert len(forwards) == 2
    assert len(hooks) == 1


def test_a_block_that_is_listed_twice_is_wrapped_once():
    model = Two()
    with recomputing([model.blocks[0], model.blocks[0]]):
        model(torch.ones(1, 2)).sum().backward()
    assert "forward" not in model.blocks[0].__dict__


def test_weights_are_not_offloaded():
    layer = nn.Linear(64, 64)
    x = torch.randn(8, 64, requires_grad=True)
    with offloading([layer], large_bytes=1, device_type="cpu"):
        y = torch.tanh(layer(x))
    saved_by_linear = y.grad_fn.next_functions[0][0]
    assert saved_by_linear._raw_saved_mat2.data.untyped_storage().data_ptr() == layer.weight.untyped_storage().data_ptr()
    y.sum().backward()
    assert x.grad is not None


@pytest.mark.parametrize("large_bytes", [1, 1 << 30])
def test_a_graph_without_backward_is_freed(memory, net, batch, large_bytes):
    model = net()
    with offloading([model], large_bytes=large_bytes, device_type="cpu"):
        made = model(batch()["x"])
    assert made.grad_fn is not None
    del made
    gc.collect()
    assert memory.live == 0, "nothing references a failed attempt"


@pytest.mark.parametrize("how", ["in place", "wrapped", "block by block"])
def test_a_compiled_model_recomputes_eagerly(how):
    torch.manual_seed(0)
    model, runs = Two(), []
    plain = copy.deepcopy(model)
    x = torch.randn(4, 2)

    def backend(graph, _inputs):
        def run(*inputs):
            runs.append(1)
            return graph(*inputs)

        return run

    called = model
    if how == "in place":
        model.compile(backend=backend)
    elif how == "wrapped":
        called = torch.compile(model, backend=backend)
    else:
        for block in model.blocks:
            block.compile(backend=backend)
    limit = [4]

    def loss_fn(given):
        if "forward" not in model.blocks[0].__dict__ and given.shape[0] >= limit[0]:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return (called(given) ** 2).mean()

    limit[0] = 5
    run = farrier.torch.guard(loss_fn, model=model)
    run(x)
    assert runs, "compiled as long as it fits"
    runs.clear()
    limit[0] = 1
    model.zero_grad()
    frames = dict(counters["frames"])
    loss = run(x)
    assert dict(counters["frames"]) == frames, "nothing is compiled for an attempt of last resort"
    expected = (plain(x) ** 2).mean()
    expected.backward()
    torch.testing.assert_close(loss, expected)
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)
    assert run.report.recovered == {"recompute": 1}
    assert not runs, "runs eagerly inside the context"
    model.zero_grad()
    limit[0] = 5
    with torch.no_grad():
        called(x)
    assert runs, "compiled again afterwards"
    torch._dynamo.reset()
