"""A step under DistributedDataParallel as a graph. One rank is enough to capture NCCL kernels."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as distributed
from torch.nn.parallel import DistributedDataParallel

from farrier.bench.model import build
from farrier.torch import Policy, step


@pytest.fixture
def one_rank(tmp_path):
    distributed.init_process_group("nccl", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def test_losses_equal_the_eager_run(one_rank):
    model = build("tiny", device="cuda", dtype=torch.float32)
    twin = copy.deepcopy(model)

    def make(wrapped):
        optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-3)

        def train(batch):
            optimizer.zero_grad(set_to_none=True)
            loss = wrapped(batch, batch)
            loss.backward()
            optimizer.step()
            return loss

        return train, optimizer

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        plain, wrapped = DistributedDataParallel(model), DistributedDataParallel(twin)
    torch.cuda.current_stream().wait_stream(side)
    eager, _ = make(plain)
    inner, optimizer = make(wrapped)
    graphed = step(inner, model=wrapped, optimizer=optimizer, policy=Policy(min_speedup=0.0, profile=False))
    generator = torch.Generator().manual_seed(2)
    for _ in range(30):
        batch = torch.randint(0, 512, (2, 64), generator=generator).cuda()
        torch.testing.assert_close(graphed(batch), eager(batch).detach(), rtol=2e-3, atol=2e-3)
    assert graphed.report.reason is None, graphed.report
    assert graphed.report.replays >= 15, graphed.report
