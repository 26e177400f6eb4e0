"""Two ranks that split differently: one reduction, the same gradients on both."""

import os
import socket
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.multiprocessing as processes
from torch import nn

SOURCE = str(Path(__file__).parents[2] / "src")
# How gradients are reduced, and where rank 0 runs out of memory.
WAYS = [
    ("after", None),
    ("after", "before"),
    ("after", "forward"),
    ("after", "loss"),
    ("after", "backward"),
    ("last", None),
    ("last", "before"),
    ("last", "forward"),
    ("last", "loss"),
]


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def make_model():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 1)).double()
    model.register_buffer("table", torch.arange(4.0))  # DDP broadcasts buffers in forward: once a step, on every rank.
    return model


def make_batch(rank, step):
    numbers = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(8, 3, generator=numbers, dtype=torch.float64)


def expected(world, steps):
    """The gradients, summed over steps and averaged over ranks, computed on one rank."""
    model = make_model()
    for step in range(steps):
        for rank in range(world):
            ((model(make_batch(rank, step)) ** 2).mean() / world).backward()
    return [parameter.grad for parameter in model.parameters()]


def refuse(*_):
    raise torch.OutOfMemoryError("CUDA out of memory.")


class Loss:
    """Runs out of memory above `rows` rows, at the named place."""

    def __init__(self, wrapped, rows, place):
        self.wrapped, self.rows, self.place = wrapped, rows, place

    def __call__(self, batch):
        too_big = batch.shape[0] > self.rows
        hook = None
        if too_big and self.place == "before":  # Before the wrapper is called and broadcasts its buffers.
            refuse()
        if too_big and self.place == "forward":
            hook = self.wrapped.module[1].register_forward_hook(refuse)
        if too_big and self.place == "backward":
            # Half-way: the last layer already has its gradients.
            hook = self.wrapped.module[1].register_forward_hook(lambda _m, _i, out: out.register_hook(refuse) and None)
        try:
            out = self.wrapped(batch)
        finally:
            if hook is not None:
                hook.remove()
        if too_big and self.place == "loss":
            refuse()
        return (out**2).mean()


def run_way(rank, sync, place, accumulated, begins=0):
    """Makes three steps. From step `begins` on, rank 0 runs out of memory.

    DDP rebuilds its buckets in the second step.
    """
    import farrier.torch

    wrapped = nn.parallel.DistributedDataParallel(make_model(), bucket_cap_mb=0.0001)
    loss_fn = Loss(wrapped, 99, place)
    run = farrier.torch.guard(loss_fn, model=wrapped, ddp_sync=sync)
    made = []
    for turn in range(3):  # The first failure finds the size; later turns know it.
        loss_fn.rows = 3 if rank == 0 and turn >= begins else 99
        wrapped.zero_grad()
        if accumulated:
            with wrapped.no_sync():
                run(make_batch(rank, 0))
        run(make_batch(rank, 1 if accumulated else 0))
        made.append([parameter.grad.tolist() for parameter in wrapped.parameters()])
    return run.report.ooms, made


class Centred(nn.Module):
    """A model whose forward pass uses a buffer, and updates it from this rank's data."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(3, 4).double()
        self.register_buffer("centre", torch.zeros(4, dtype=torch.float64))

    def forward(self, x):
        y = self.linear(x)
        with torch.no_grad():
            self.centre.lerp_(y.mean(0), 0.5)
        return y - self.centre


def run_centred(rank, sync, accumulated):
    """The weights after ten steps. If `sync` is None, DDP runs without the guard."""
    import farrier.torch

    wrapped = nn.parallel.DistributedDataParallel(Centred())
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)

    def loss_fn(batch):
        return wrapped(batch).square().mean()

    def by_hand(batch):
        loss_fn(batch).backward()

    run = by_hand if sync is None else farrier.torch.guard(loss_fn, model=wrapped, ddp_sync=sync)
    for step in range(10):
        optimizer.zero_grad()
        if accumulated:
            with wrapped.no_sync():
                run(make_batch(rank, 100 + step) + rank)
        run(make_batch(rank, step) + rank)
        optimizer.step()
        if step % 3 == 2:
            with torch.no_grad():  # An evaluation, after which DDP does not broadcast.
                loss_fn(make_batch(rank, 200))
    return wrapped.module.linear.weight.flatten().tolist(), wrapped.require_forward_param_sync


def run_unused(rank, **more):
    """A model with a layer that no forward pass uses.

    From the second turn on, rank 0 runs out of memory after DDP's forward pass.
    """
    import farrier.torch

    model = make_model()
    unused = nn.Linear(2, 2).double()
    model[0].register_module("unused", unused)
    wrapped = nn.parallel.DistributedDataParallel(model, **more)
    loss_fn = Loss(wrapped, 99, "loss")
    run = farrier.torch.guard(loss_fn, model=wrapped, ddp_sync="last")
    for turn in range(4):
        loss_fn.rows = 3 if rank == 0 and turn > 0 else 99
        wrapped.zero_grad()
        run(make_batch(rank, 0))
    left_out = {id(parameter) for parameter in unused.parameters()}
    return [parameter.grad.tolist() for parameter in wrapped.parameters() if id(parameter) not in left_out]


def run_ignored(rank):
    """A layer that DDP ignores: its gradient stays the rank's own."""
    import farrier.torch

    model = make_model()
    model._ddp_params_and_buffers_to_ignore = ["2.weight"]
    wrapped = nn.parallel.DistributedDataParallel(model)
    farrier.torch.guard(Loss(wrapped, 3 if rank == 0 else 99, "forward"), model=wrapped)(make_batch(rank, 0))
    return [parameter.grad.tolist() for parameter in wrapped.parameters()]


def rank_main(rank, world, port, ways, results):
    sys.path.insert(0, SOURCE)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=world)
    for way in ways:
        try:
            if way == "ignored":
                found = (0, [run_ignored(rank)])
            elif way == "unused":
                found = (0, [run_unused(rank, find_unused_parameters=True)])
            elif way[0] == "centred":
                found = (0, run_centred(rank, *way[1:]))
            else:
                found = run_way(rank, *way)
            results.put((rank, way, *found))
        except RuntimeError as error:
            results.put((rank, way, type(error).__name__, str(error)))
            os._exit(1)  # Like a dying job: without waiting for the others.
    torch.distributed.destroy_process_group()


def run_ranks(ways, world=2):
    context = processes.get_context("spawn")
    results, port = context.SimpleQueue(), free_port()
    ranks = [context.Process(target=rank_main, args=(rank, world, port, ways, results)) for rank in range(world)]
    for process in ranks:
        process.start()
    found, until = [], time.monotonic() + 240
    while any(process.is_alive() for process in ranks) and time.monotonic() < until:
        while not results.empty():  # Read now, because a full pipe would block the ranks.
            found.append(results.get())
        time.sleep(0.05)
    while not results.empty():
        found.append(results.get())
    waiting = [rank for rank, process in enumerate(ranks) if process.is_alive()]
    for process in ranks:
        process.kill()
        process.join()
    return found, waiting


def test_ranks_that_split_differently_have_the_same_gradients():
    turns = {"after": (0, 1), "last": (0, 1, 2)}
    ways = [(*way, accumulated, begins) for way in WAYS for accumulated in (False, True) for begins in turns[way[0]]]
    # The first error comes under the user's no_sync, so the guard knows the size when ranks reduce.
    ways += [("last", "backward", True, begins) for begins in (0, 1, 2)]
    found, waiting = run_ranks(ways)
    assert not waiting, f"ranks {waiting} wait for ever; done last: {[each[:2] for each in found[-2:]]}"
    assert len(found) == 2 * len(ways), found[-1]
    for rank, (sync, place, accumulated, begins), ooms, turns in found:
        name = f"rank {rank}, {sync}, {place}, accumulated: {accumulated}, from turn {begins} on"
        assert isinstance(turns, list), f"{name}: {turns}"
        assert (ooms > 0) == (rank == 0 and place is not None), name
        for made in turns:
            for mine, theirs in zip(made, expected(2, 2 if accumulated else 1), strict=True):
                mine = torch.tensor(mine, dtype=torch.float64)
                torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12, msg=lambda text, name=name: f"{name}: {text}")


def test_buffers_are_broadcast_at_each_step_as_without_the_guard():
    ways = [("centred", sync, accumulated) for sync in (None, "after", "last") for accumulated in (False, True)]
    found, waiting = run_ranks(ways)
    assert not waiting, f"ranks {waiting} wait for ever; done: {found}"
    made = {(way[1], way[2], rank): rest for rank, way, _ooms, rest in found}
    assert len(made) == 2 * len(ways), found
    for (sync, accumulated, rank), (weights, flag) in made.items():
        theirs, their_flag = made[None, accumulated, rank]
        torch.testing.assert_close(weights, theirs, rtol=0, atol=1e-12, msg=f"{sync}, accumulated: {accumulated}")
        assert flag == their_flag


def test_unused_parameters_do_not_block():
    found, waiting = run_ranks(["unused"])
    assert not waiting
    assert len(found) == 2, found
    for _rank, _way, _ooms, (made,) in found:
        for mine, theirs in zip(made, expected(2, 1), strict=True):
            torch.testing.assert_close(torch.tensor(mine, dtype=torch.float64), theirs, rtol=0, atol=1e-12)


def test_parameters_ignored_by_ddp_are_left_alone():
    found, waiting = run_ranks(["ignored"])
    assert not waiting
    made = {rank: turns[0] for rank, _way, _ooms, turns in found}
    assert sorted(made) == [0, 1], found
    averaged = expected(2, 1)
    for rank, gradients in made.items():
        model = make_model()
        (model(make_batch(rank, 0)) ** 2).mean().backward()
        for place, (name, parameter) in enumerate(model.named_parameters()):
            theirs = parameter.grad if name == "2.weight" else averaged[place]
            mine = torch.tensor(gradients[place], dtype=torch.float64)
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)


def test_a_forward_that_communicates_is_rejected(monkeypatch):
    from farrier.torch import guard

    model = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)))
    guard(lambda batch: model(batch).mean(), model=model)  # One rank.
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda group: 2)
    with pytest.raises(TypeError, match="SyncBatchNorm on several ranks"):
        guard(lambda batch: model(batch).mean(), model=model)


def test_a_buffer_hook_is_rejected():
    from farrier.torch.ddp import broadcast_buffers_once

    with (
        pytest.raises(TypeError, match="_register_buffer_comm_hook"),
        broadcast_buffers_once(SimpleNamespace(buffer_hook=print)),
    ):
        pass


def test_a_communication_hook_is_rejected():
    from farrier.torch.ddp import average_gradients

    with pytest.raises(TypeError, match='ddp_sync="last"'):
        average_gradients(SimpleNamespace(_comm_hooks=[print]))


def test_out_of_memory_during_reduction_is_a_clear_error():
    found, _ = run_ranks([("last", "backward", False)])
    ended = {rank: (name, text) for rank, _way, name, text in found}
    assert ended[0][0] == "RanksOutOfSync"
    assert 'ddp_sync="after"' in ended[0][1]
