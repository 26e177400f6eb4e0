"""Steps as graphs on a real GPU: the same training as eagerly, and a clear word where there can be no graph."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from farrier.bench.model import IGNORED, build
from farrier.torch import Lengths, Policy, step

FAST = Policy(warmups=2, gain=0.0, profile=False, verify_every=50)


def model_of(dtype=torch.float32, **more):
    return build("tiny", device="cuda", dtype=dtype, **more)


def batches(count, rows=2, length=64, seed=1):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        ids = torch.randint(0, 512, (rows, length + 1), generator=generator)
        yield {"ids": ids[:, :-1], "labels": ids[:, 1:].contiguous()}


def optimizer_of(model, kind=torch.optim.AdamW, **more):
    return kind(model.parameters(), lr=1e-3, **more)


def plain_step(model, optimizer):
    def train(batch):
        optimizer.zero_grad(set_to_none=True)
        loss = model(batch["ids"].cuda(), batch["labels"].cuda())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    return train


def losses(run, stream):
    torch.manual_seed(7)
    return torch.stack([run(batch).detach().float() for batch in stream]).tolist()


def both(make_step, stream, *, model=None, policy=FAST, kind=torch.optim.AdamW, options=None, **more):
    """Losses of an eager run and of a graphed one from the same weights, and the graphed step."""
    model = model or model_of()
    twin = copy.deepcopy(model)
    optimizer, twins = optimizer_of(model, kind, **(options or {})), optimizer_of(twin, kind, **(options or {}))
    eager = losses(make_step(model, optimizer), list(stream))
    graphed = step(make_step(twin, twins), model=twin, optimizer=twins, policy=policy, **more)
    found = losses(graphed, list(stream))
    return eager, found, graphed


def same(eager, found, tolerance=2e-3):
    torch.testing.assert_close(torch.tensor(found), torch.tensor(eager), rtol=tolerance, atol=tolerance)


def test_the_losses_are_those_of_the_eager_run():
    eager, found, graphed = both(plain_step, list(batches(60)))
    same(eager, found)
    assert graphed.report.reason is None
    assert graphed.report.replays >= 50
    assert graphed.report.verified >= 5
    assert graphed.report.last.gradients == len(list(model_of().parameters()))


def test_dropout_draws_the_same_numbers():
    eager, found, graphed = both(plain_step, list(batches(40)), model=model_of(dropout=0.2))
    same(eager, found)
    assert graphed.report.replays >= 30


def test_a_scheduler_and_an_assigned_rate_reach_the_graph():
    def scheduled(model, optimizer):
        train = plain_step(model, optimizer)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)
        count = 0

        def outer(batch):
            return train(batch)

        def after():
            nonlocal count
            count += 1
            scheduler.step()
            if count == 20:
                for group in optimizer.param_groups:
                    group["lr"] = 5e-4

        outer.after = after
        return outer

    model = model_of()
    twin = copy.deepcopy(model)
    first, second = optimizer_of(model), optimizer_of(twin)
    eager, inner = scheduled(model, first), scheduled(twin, second)
    graphed = step(inner, model=twin, optimizer=second, policy=FAST)
    for batch in batches(40):
        a, b = eager(batch), graphed(batch)
        eager.after()
        inner.after()
        torch.testing.assert_close(a.detach(), b, rtol=2e-3, atol=2e-3)
    assert graphed.report.replays >= 30


def test_gradient_accumulation_inside_the_step():
    def accumulating(model, optimizer):
        def train(batch):
            optimizer.zero_grad(set_to_none=True)
            total = torch.zeros((), device="cuda")
            for ids, labels in zip(batch["ids"].cuda().split(2), batch["labels"].cuda().split(2), strict=True):
                loss = model(ids, labels) / 4
                loss.backward()
                total = total + loss.detach()
            optimizer.step()
            return total

        return train

    eager, found, graphed = both(accumulating, list(batches(30, rows=8)))
    same(eager, found)
    assert graphed.report.replays >= 20


def test_varying_lengths_are_padded_to_buckets_and_verified_unpadded():
    stream = [batch for i in range(40) for batch in batches(1, length=40 + (i * 13) % 80, seed=i)]
    lengths = Lengths(pad={"ids": 0, "labels": IGNORED}, shortest=64)
    eager, found, graphed = both(plain_step, stream, lengths=lengths)
    same(eager, found)
    assert graphed.report.replays >= 15
    assert 1 < graphed.report.captures <= 8


def test_a_wrong_padding_value_is_found_before_it_trains():
    stream = [batch for i in range(12) for batch in batches(1, length=40 + i, seed=i)]
    lengths = Lengths(pad={"ids": 0, "labels": 3}, shortest=64)
    eager, found, graphed = both(plain_step, stream, lengths=lengths)
    same(eager, found)
    assert "differ" in graphed.report.reason.what


def test_a_number_of_python_that_changes_is_found():
    def schedule(model, optimizer):
        train = {"weight": 1.0}

        def run(batch):
            optimizer.zero_grad(set_to_none=True)
            loss = model(batch["ids"].cuda(), batch["labels"].cuda()) * train["weight"]
            train["weight"] *= 1.5
            loss.backward()
            optimizer.step()
            return loss

        return run

    model = model_of()
    optimizer = optimizer_of(model)
    graphed = step(schedule(model, optimizer), model=model, optimizer=optimizer, policy=FAST)
    losses(graphed, batches(12))
    assert "two eager runs of one batch differ" in graphed.report.reason.what


def test_float16_with_a_scaler():
    scalers = []

    def scaled(model, optimizer):
        scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10)
        scalers.append(scaler)

        def train(batch):
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cuda", torch.float16):
                loss = model(batch["ids"].cuda(), batch["labels"].cuda())
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            return loss

        return train

    model = model_of()
    twin = copy.deepcopy(model)
    first, second = optimizer_of(model), optimizer_of(twin)
    eager = losses(scaled(model, first), batches(30))
    inner = scaled(twin, second)
    graphed = step(inner, model=twin, optimizer=second, scaler=scalers[1], policy=FAST)
    found = losses(graphed, batches(30))
    same(eager, found, 1e-2)
    assert graphed.report.replays >= 20
    assert scalers[0].get_scale() == scalers[1].get_scale()
    assert scalers[0]._growth_tracker.item() == scalers[1]._growth_tracker.item()


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.NAdam, torch.optim.Adam])
def test_other_optimizers(kind):
    eager, found, graphed = both(plain_step, list(batches(20)), kind=kind)
    same(eager, found)
    assert graphed.report.replays >= 10


def test_an_optimizer_that_counts_on_the_host_runs_eagerly():
    eager, found, graphed = both(plain_step, list(batches(4)), kind=torch.optim.Adagrad)
    same(eager, found, 1e-6)
    assert "capturable" in graphed.report.reason.what


def synchronising(model, optimizer):
    inner = plain_step(model, optimizer)

    def train(batch):
        loss = inner(batch)
        if loss.item() > 1e9:
            raise AssertionError
        return loss

    return train


def branching(model, optimizer):
    def train(batch):
        optimizer.zero_grad(set_to_none=True)
        loss = model(batch["ids"].cuda(), batch["labels"].cuda())
        if loss > 0:
            loss = loss * 1.0
        loss.backward()
        optimizer.step()
        return loss

    return train


def on_another_stream(model, optimizer):
    other = torch.cuda.Stream()
    inner = plain_step(model, optimizer)

    def train(batch):
        with torch.cuda.stream(other):
            scratch = torch.ones(1024, device="cuda") * 2
        loss = inner(batch)
        return loss + 0 * scratch.sum()

    return train


@pytest.mark.parametrize(
    ("make", "line"),
    [(synchronising, "if loss.item() > 1e9:"), (branching, "if loss > 0:"), (on_another_stream, None)],
)
def test_what_cannot_be_captured_is_explained_and_runs_eagerly(make, line):
    eager, found, graphed = both(make, list(batches(10)))
    same(eager, found, 1e-4)
    assert graphed.report.reason is not None
    if line:
        assert line in graphed.report.reason.where


def test_shapes_that_never_come_back():
    stream = [batch for i in range(40) for batch in batches(1, length=20 + i, seed=i)]
    eager, found, graphed = both(plain_step, stream)
    same(eager, found, 1e-4)
    assert "none came back" in graphed.report.reason.what


def test_an_interrupt_while_capturing_leaves_a_step_that_can_go_on():
    calls = {"count": 0}

    def interrupted(model, optimizer):
        inner = plain_step(model, optimizer)

        def train(batch):
            loss = inner(batch)
            if torch.cuda.is_current_stream_capturing():
                calls["count"] += 1
                if calls["count"] == 2:  # The first is the rehearsal.
                    raise KeyboardInterrupt
            return loss

        return train

    model = model_of()
    twin = copy.deepcopy(model)
    first, second = optimizer_of(model), optimizer_of(twin)
    eager = losses(plain_step(model, first), batches(20))
    graphed = step(interrupted(twin, second), model=twin, optimizer=second, policy=FAST)
    torch.manual_seed(7)
    found = []
    for batch in batches(20):
        try:
            found.append(graphed(batch).item())
            continue
        except KeyboardInterrupt:
            pass
        found.append(graphed(batch).item())
    assert calls["count"] == 4, graphed.report
    same(eager, found)
    assert graphed.report.replays >= 5


def test_an_error_of_the_step_itself_is_the_users():
    def failing(model, optimizer):
        def train(batch):
            raise KeyError("no such column")

        return train

    model = model_of()
    optimizer = optimizer_of(model)
    graphed = step(failing(model, optimizer), model=model, optimizer=optimizer, policy=FAST)
    with pytest.raises(KeyError, match="no such column"):
        graphed(next(batches(1)))


LOSES_THE_CONTEXT = """
import sys, torch
sys.path[:0] = {path!r}
from test_step import FAST, batches, model_of, optimizer_of, plain_step, step
model = model_of()
optimizer = optimizer_of(model)
train = step(plain_step(model, optimizer), model=model, optimizer=optimizer, policy=FAST)
for batch in batches(20):
    train(batch)
assert train.graphed
bad = next(batches(1))
bad["ids"] = bad["ids"] + 1_000_000
for batch in (bad, *batches(20)):
    train(batch)
print("trained on")
"""


def test_a_cuda_error_inside_a_graph_ends_the_job_and_says_what_to_do():
    script = LOSES_THE_CONTEXT.format(path=[entry for entry in (str(Path(__file__).parent), *sys.path) if entry])
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert run.returncode == 1, run.stderr
    assert "trained on" not in run.stdout
    assert "the CUDA context is lost" in run.stderr
    assert "restart from the last checkpoint" in run.stderr


def test_loading_a_checkpoint_makes_the_graphs_anew():
    model = model_of()
    twin = copy.deepcopy(model)
    first, second = optimizer_of(model), optimizer_of(twin)
    eager = plain_step(model, first)
    graphed = step(plain_step(twin, second), model=twin, optimizer=second, policy=FAST)
    stream = list(batches(30))
    losses(eager, stream[:10]), losses(graphed, stream[:10])
    kept = copy.deepcopy((twin.state_dict(), second.state_dict()))
    losses(graphed, stream[10:15])
    twin.load_state_dict(kept[0])
    second.load_state_dict(kept[1])
    same(losses(eager, stream[10:]), losses(graphed, stream[10:]))
    assert graphed.report.captures >= 2
    assert graphed.report.reason is None


def test_running_statistics_are_counted_once():
    class Normed(nn.Module):
        def __init__(self):
            super().__init__()
            self.into, self.norm, self.out = nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Linear(32, 1)

        def forward(self, x):
            return self.out(functional.relu(self.norm(self.into(x))))

    def make(model, optimizer):
        def train(batch):
            optimizer.zero_grad(set_to_none=True)
            loss = model(batch["x"].cuda()).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        return train

    torch.manual_seed(0)
    model = Normed().cuda()
    twin = copy.deepcopy(model)
    first, second = optimizer_of(model), optimizer_of(twin)
    stream = [{"x": torch.randn(8, 16, generator=torch.Generator().manual_seed(i))} for i in range(20)]
    eager = losses(make(model, first), stream)
    graphed = step(make(twin, second), model=twin, optimizer=second, policy=FAST)
    same(eager, losses(graphed, stream))
    assert graphed.report.replays >= 10
    assert twin.norm.num_batches_tracked.item() == model.norm.num_batches_tracked.item() == 20
    torch.testing.assert_close(twin.norm.running_var, model.norm.running_var, rtol=1e-3, atol=1e-4)


def test_a_step_that_is_bound_by_the_gpu_stays_eager_and_says_so():
    def heavy(model, optimizer):
        inner = plain_step(model, optimizer)
        square = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)

        def train(batch):
            for _ in range(60):
                square @ square
            return inner(batch)

        return train

    policy = Policy(warmups=4, gain=1.2)
    _, _, graphed = both(heavy, list(batches(8)), policy=policy)
    assert "waits for the GPU" in graphed.report.reason.what


def test_a_step_that_waits_for_launches_is_measured_and_faster():
    policy = Policy(warmups=3)
    _, _, graphed = both(plain_step, list(batches(60)), policy=policy)
    assert graphed.report.reason is None, graphed.report
    assert graphed.report.eager.gain > 1.5
    assert graphed.report.gain > 1.5


def test_a_scheduler_that_moves_momentum_too_has_no_graph_and_says_why():
    model = model_of()
    optimizer = optimizer_of(model)
    graphed = step(plain_step(model, optimizer), model=model, optimizer=optimizer, policy=FAST)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=30)
    for batch in batches(20):
        graphed(batch)
        scheduler.step()
    assert "betas of group 0" in graphed.report.reason.what


def test_no_more_memory_than_the_eager_run():
    def run(graph):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        model = build("191m", device="cuda")
        optimizer = optimizer_of(model, fused=True)
        train = step(plain_step(model, optimizer), model=model, optimizer=optimizer, policy=FAST, graph=graph)
        base = torch.cuda.memory_reserved()
        for batch in batches(12, rows=4, length=1024):
            train(batch)
        torch.cuda.synchronize()
        assert train.graphed == graph
        return torch.cuda.max_memory_reserved(), base

    eager, graphed = run(False)[0], run(True)[0]
    assert graphed < 1.08 * eager, (graphed, eager)
