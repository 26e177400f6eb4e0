"""The guard on a real GPU: real out-of-memory under a cap, and the same gradients."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import farrier.torch
from farrier.bench.model import IGNORED, build

SOURCE = str(Path(farrier.torch.__file__).parents[2])
GIB = 1 << 30


@pytest.fixture
def cap():
    """Sets a memory cap in bytes and lifts it afterwards."""
    total = torch.cuda.mem_get_info()[1]

    def set_to(size_bytes):
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction(min(1.0, size_bytes / total))

    yield set_to
    torch.cuda.set_per_process_memory_fraction(1.0)
    gc.collect()
    torch.cuda.empty_cache()


@pytest.fixture
def model():
    made = build("191m", device="cuda", dtype=torch.float32)
    yield made
    made.zero_grad(set_to_none=True)


def random_batch(model, rows, length, seed=0):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, model.shape.vocabulary, (rows, length + 1), generator=generator)
    labels = ids[:, 1:].clone()
    labels[torch.rand(labels.shape, generator=generator) < 0.3] = IGNORED
    return {"ids": ids[:, :-1].cuda(), "labels": labels.cuda()}


def guard(model, **more):
    return farrier.torch.guard(
        lambda b: model(b["ids"], b["labels"]), model=model, count=lambda b: (b["labels"] != IGNORED).sum(), **more
    )


def whole(model, batch):
    """Loss, gradients on the host, and bytes that the step took above those already allocated."""
    gc.collect()  # Garbage of other tests must neither count here nor be freed later.
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    base = torch.cuda.memory_allocated()
    loss = model(batch["ids"], batch["labels"])
    loss.backward()
    need = torch.cuda.max_memory_allocated() - base
    gradients = [parameter.grad.cpu() for parameter in model.parameters()]
    model.zero_grad(set_to_none=True)
    return loss.detach(), gradients, base, need


def check(model, loss, expected):
    torch.testing.assert_close(loss, expected[0], rtol=1e-5, atol=1e-6)
    for (name, parameter), gradient in zip(model.named_parameters(), expected[1], strict=True):
        error = (parameter.grad.cpu() - gradient).norm() / gradient.norm().clamp_min(1e-12)
        assert error < 1e-3, f"{name}: {error:.2e}"


@pytest.mark.parametrize(("rows", "share"), [(8, 0.6), (7, 0.4)])
def test_a_capped_step_is_split_and_exact(model, cap, rows, share):
    batch = random_batch(model, rows, 1024)
    expected = whole(model, batch)
    base, need = expected[2:]
    cap(base + int(share * need))
    run = guard(model)
    check(model, run(batch), expected)
    report = run.report
    assert report.ooms >= 1
    assert report.recovered.get("split") == 1
    model.zero_grad(set_to_none=True)
    check(model, run(batch), expected)
    assert run.report.recovered.get("split") == 1, "planned in micro-batches the second time, so not split again"


def test_a_loss_that_is_not_a_mean_over_rows_is_not_split(model, cap):
    batch = random_batch(model, 8, 1024)
    base, need = whole(model, batch)[2:]
    cap(base + int(0.6 * need))
    run = farrier.torch.guard(  # A sum over rows of the mean over tokens, declared as a mean.
        lambda b: model(b["ids"], b["labels"]) * len(b["ids"]),
        model=model,
        count=lambda b: (b["labels"] != IGNORED).sum(),
    )
    with contextlib.suppress(farrier.torch.DoesNotFit):  # It may fit when recomputed.
        run(batch)
    assert any("give different gradients than the whole batch" in note for note in run.report.notes), run.report
    assert run.report.split_calls == 0


def test_a_single_row_is_recomputed(model, cap):
    batch = random_batch(model, 1, 4096)
    expected = whole(model, batch)
    base, need = expected[2:]
    saved = set()
    for share in (0.85, 0.8, 0.75, 0.7, 0.65, 0.6, 0.55, 0.5):
        cap(base + int(share * need))
        run = guard(model)
        try:
            loss = run(batch)
        except farrier.torch.DoesNotFit:
            break
        check(model, loss, expected)
        model.zero_grad(set_to_none=True)
        saved |= set(run.report.recovered)
    assert "recompute" in saved


def test_offload_gives_the_same_gradients(model):
    from farrier.torch.retry_policy import Plan

    batch = random_batch(model, 1, 2048)
    expected = whole(model, batch)
    run = guard(model)
    shape, _ = run._inspect(batch)
    for plan in (Plan(1), Plan(1, recompute=True)):
        run.learned.record_failure(shape, plan, None, fragmented=False)
    check(model, run(batch), expected)
    assert "offload" in {mode.value for _, mode in run.learned.shapes}


def test_a_step_that_does_not_fit_leaves_no_side_effects(model, cap):
    batch = random_batch(model, 2, 2048)
    whole(model, random_batch(model, 1, 64))  # Allocates cuBLAS's workspace.
    random_before = torch.cuda.get_rng_state()
    gc.collect()
    before = torch.cuda.memory_allocated()
    cap(before + 64 * 2**20)
    run = guard(model)
    with pytest.raises(farrier.torch.DoesNotFit) as caught:
        run(batch)
    assert caught.value.requested_bytes is not None
    assert caught.value.capacity_bytes is not None
    gc.collect()
    assert torch.cuda.memory_allocated() - before < 2**20
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.cuda.get_rng_state(), random_before)


def largest_reserve():
    for size in range(8 * GIB, GIB, -(32 << 20)):
        try:
            return farrier.torch.MemoryReserve(size)
        except MemoryError:
            torch.cuda.empty_cache()
    raise AssertionError("not even a small one fits")


def fill_memory(block=32 << 20):
    """Allocates all remaining memory, also inside segments that cannot be released."""
    taken = []
    with contextlib.suppress(torch.OutOfMemoryError):
        while True:
            taken.append(torch.empty(block, dtype=torch.uint8, device="cuda"))
    return taken


def test_the_reserve_recovers_the_last_resort(model, cap):
    batch = random_batch(model, 1, 1024)
    expected = whole(model, batch)
    cap(expected[2] + 8 * GIB)
    asked: list[str] = []
    reserve = largest_reserve()
    others = fill_memory()
    run = guard(model, reserve=reserve, request_checkpoint=asked.append)
    check(model, run(batch), expected)
    assert run.report.recovered == {"reserve": 1}
    assert len(asked) == 1
    assert not reserve.is_held
    del others


def test_half_precision_stays_close(cap):
    model = build("191m", device="cuda", dtype=torch.bfloat16)
    batch = random_batch(model, 8, 1024)
    expected = whole(model, batch)
    cap(expected[2] + int(0.35 * expected[3]))
    run = guard(model)
    loss = run(batch)
    torch.testing.assert_close(loss, expected[0], rtol=2e-3, atol=0)
    assert run.report.split_calls == 1
    assert not any("split" in note for note in run.report.notes), "the check compared gradients"
    errors = [
        ((parameter.grad.cpu().float() - gradient.float()).norm() / gradient.float().norm()).item()
        for parameter, gradient in zip(model.parameters(), expected[1], strict=True)
    ]
    # Each micro-batch rounds to 8 bits. The error is larger where terms cancel, as in norms.
    assert statistics.median(errors) < 0.02, errors
    assert max(errors) < 0.15, errors


def test_a_split_step_gets_no_graph_and_continues():
    model = build("tiny", device="cuda", dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    batch = random_batch(model, 8, 64)

    def narrow(given):
        if given["ids"].shape[0] > 4:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB.")
        return model(given["ids"], given["labels"])

    run = farrier.torch.guard(narrow, model=model, count=lambda given: (given["labels"] != IGNORED).sum())

    def train(given):
        optimizer.zero_grad(set_to_none=True)
        loss = run(given)
        optimizer.step()
        return loss

    policy = farrier.torch.Policy(warmups=2, min_speedup=0.0, profile=False)
    step = farrier.torch.step(train, model=model, optimizer=optimizer, policy=policy)
    losses = [step(batch).item() for _ in range(8)]
    assert losses[-1] < losses[0], "a repeated batch is learned"
    assert step.report.captures == 0
    assert "the guard runs 8 rows" in str(step.report)
    assert run.report.lost == 0
    assert run.report.split_calls == 8


ALLOCATOR = """
import json, farrier.torch
choice = farrier.torch.configure_allocator()
import torch
def kind(tensor):
    at = tensor.data_ptr()
    for segment in torch.cuda.memory_snapshot():
        if segment["address"] <= at < segment["address"] + segment["total_size"]:
            return segment["is_expandable"]
before = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
cached = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
del cached  # classic_pool() must not hand out this cached expandable memory.
with farrier.torch.classic_pool() as pool:
    inside = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    small = torch.empty(1000, dtype=torch.uint8, device="cuda")
after = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
del inside
with farrier.torch.classic_pool():
    again = torch.empty(32 << 20, dtype=torch.uint8, device="cuda")
outside = torch.empty(32 << 20, dtype=torch.uint8, device="cuda")
late = "allowed"
try:
    farrier.torch.configure_allocator()
except RuntimeError as error:
    late = str(error).splitlines()[0]
kinds = [kind(t) for t in (before, small, after, again, outside)]
settings = torch.cuda.memory._snapshot()["allocator_settings"]
print(json.dumps({"expandable": choice.expandable, "kinds": kinds, "late": late, "settings": str(settings)}))
"""


def test_the_classic_pool_is_classic_and_the_rest_expandable():
    environment = {name: value for name, value in os.environ.items() if "ALLOC_CONF" not in name}
    done = subprocess.run(
        [sys.executable, "-c", ALLOCATOR],
        env={**environment, "PYTHONPATH": SOURCE},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["expandable"]
    assert found["kinds"] == [True, False, True, False, True], found
    assert "CUDA has already started" in found["late"]
