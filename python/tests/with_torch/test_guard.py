"""The guard gives the same loss and gradients, whatever measures it takes."""

import copy
import functools
import gc
import random
import re

import numpy
import pytest
import torch
from torch import nn

import farrier.torch
from farrier.torch import attempt, memory_guard
from farrier.torch.explain import explain_error
from farrier.torch.memory_meter import UnknownMeter
from farrier.torch.recompute import offloading
from farrier.torch.retry_policy import ActivationMode, Plan

EXACT = {"rtol": 0, "atol": 1e-12}
# A row has 5 x 4 elements. Each of the four blocks keeps three activations of 20 bytes. With
# recomputation, only one block at a time keeps its 60 bytes.
ROW = 240


def squares(model, batch, reduction="mean"):
    errors = ((model(batch["x"]) - batch["y"]) ** 2)[batch["keep"]]
    return errors.mean() if reduction == "mean" else errors.sum()


def terms(batch):
    return batch["keep"].sum()


def whole(model, batch, reduction="mean"):
    """Loss and gradients of one backward of the whole batch, without a memory limit."""
    fresh = copy.deepcopy(model)
    for parameter in fresh.parameters():
        parameter.grad = None
    loss = squares(fresh, batch, reduction)
    loss.backward()
    return loss.detach(), [parameter.grad for parameter in fresh.parameters()]


def guard(model, memory, reduction="mean", **more):
    more = {"count": terms, "meter": memory, **more}
    return farrier.torch.guard(lambda b: squares(model, b, reduction), model=model, reduction=reduction, **more)


def check(model, loss, expected):
    torch.testing.assert_close(loss, expected[0], **EXACT)
    for parameter, gradient in zip(model.parameters(), expected[1], strict=True):
        torch.testing.assert_close(parameter.grad, gradient, **EXACT)


@pytest.fixture
def offload_here(monkeypatch):
    """Makes offloading apply to CPU tensors."""
    monkeypatch.setattr(attempt, "offloading", functools.partial(offloading, large_bytes=1, device_type="cpu"))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("rows", [1, 2, 3, 7, 8])
@pytest.mark.parametrize("ignored", [0.0, 0.5])
@pytest.mark.parametrize("fits", [1, 2, 3, 5])
def test_split_is_exact(net, batch, memory, reduction, rows, ignored, fits):
    model, given = net(), batch(rows=rows, ignored=ignored)
    expected = whole(model, given, reduction)
    memory.limit = fits * ROW
    run = guard(model, memory, reduction)
    check(model, run(given), expected)
    report = run.report
    assert (report.ooms > 0) == (rows > fits)
    assert report.recovered == ({"split": 1} if rows > fits else {})
    assert report.lost == 0


@pytest.mark.parametrize("block", [0, 1, 3])
@pytest.mark.parametrize("fits", [1, 3])
def test_out_of_memory_during_backward_leaves_no_side_effects(net, batch, memory, block, fits):
    model, given = net(refuses=block), batch(rows=7)
    expected = whole(model, given)
    memory.backward_limit = fits * 20
    run = guard(model, memory)
    check(model, run(given), expected)
    assert run.report.ooms >= 1
    assert run.report.recovered == {"split": 1}


def test_recompute_is_exact_and_temporary(net, batch, memory):
    model, given = net(), batch()
    expected = whole(model, given)
    memory.limit = ROW // 2
    run = guard(model, memory)
    check(model, run(given), expected)
    assert run.report.recovered == {"recompute": 1}
    assert all("forward" not in block.__dict__ for block in model.blocks)


def test_offload_is_exact(net, batch, memory, offload_here):
    model, given = net(layers=1), batch()
    expected = whole(model, given)
    memory.limit = 45  # Two of a row's three activations.
    run = guard(model, memory, recompute_modules=[])
    check(model, run(given), expected)
    assert run.report.recovered == {"offload": 1}


def test_recompute_and_offload_together_are_exact(net, batch, memory, offload_here):
    model, given = net(dropout=0.2), batch(rows=1)
    torch.manual_seed(2)
    expected = whole(model, given)
    run = guard(model, memory)
    shape, _ = run._inspect(given)
    for plan in (Plan(1), Plan(1, recompute=True)):
        run.learned.record_failure(shape, plan, None, fragmented=False)
    torch.manual_seed(2)
    check(model, run(given), expected)
    assert [mode.value for _, mode in run.learned.shapes] == ["plain", "recompute", "offload"]


class MemoryReserve:
    """A memory reserve of the simulated memory."""

    size_bytes, is_held = 200, True

    def __init__(self, memory):
        self.memory = memory

    def release(self):
        self.is_held = False
        self.memory.limit += self.size_bytes

    def acquire(self):
        self.is_held = True
        self.memory.limit -= self.size_bytes


class EventRecorder:
    def __init__(self):
        self.ooms, self.phases = [], []

    def oom(self, bytes_wanted, **more):
        self.ooms.append((bytes_wanted, more))

    def phase(self, name):
        self.phases.append(name)


def test_the_reserve_is_the_last_resort_and_requests_a_checkpoint(net, batch, memory):
    model, given, requests, recorder, reserve = net(), batch(rows=2), [], EventRecorder(), MemoryReserve(memory)
    expected = whole(model, given)
    memory.limit = 50
    run = guard(model, memory, reserve=reserve, request_checkpoint=requests.append, events=recorder)
    check(model, run(given), expected)
    assert run.report.recovered == {"reserve": 1}
    assert len(requests) == 1
    assert "reserve" in requests[0]
    assert recorder.phases == ["low-memory"]
    assert not reserve.is_held
    memory.limit = 10**6
    for _ in range(memory_guard.REACQUIRE_AFTER_CALLS):
        model.zero_grad()
        check(model, run(given), expected)
    assert reserve.is_held, "reacquired when there is room"


def test_every_failure_is_reported_and_sink_errors_are_ignored(net, batch, memory):
    model, given, recorder = net(), batch(), EventRecorder()
    memory.limit = 3 * ROW
    run = guard(model, memory, events=recorder)
    run(given)
    assert len(recorder.ooms) == run.report.ooms > 0
    assert recorder.ooms[0][0] == 8 * 20
    assert recorder.ooms[0][1]["rows"] == 8

    class Broken:
        def oom(self, *_, **__):
            raise OSError("no agent")

    memory.limit = 10**9
    expected = whole(model, given)
    memory.limit = 3 * ROW
    model.zero_grad()
    check(model, guard(model, memory, events=Broken())(given), expected)


def test_events_go_to_the_agent_by_default(net, batch, memory, fake):
    memory.limit = 3 * ROW
    run = guard(net(), memory)
    run(batch())
    messages = fake.accept().everything()
    assert [line["type"] for line in messages] == ["hello"] + ["oom"] * run.report.ooms
    assert messages[1]["bytes_wanted"] == 8 * 20


def state_of(model):
    return (
        [None if p.grad is None else (p.grad, p.grad.clone()) for p in model.parameters()],
        [(name, buffer.clone()) for name, buffer in model.named_buffers()],
        torch.get_rng_state(),
        random.getstate(),
        numpy.random.get_state()[1].copy(),
    )


@pytest.mark.parametrize("accumulated", [False, True])
def test_a_step_that_does_not_fit_leaves_no_side_effects(net, batch, memory, accumulated):
    model, given = net(dropout=0.3, batchnorm=True), batch()
    if accumulated:
        squares(model, batch(seed=5)).backward()
    before = state_of(model)
    memory.limit = 19

    def noisy(b):
        random.random(), numpy.random.rand()
        return squares(model, b)

    run = farrier.torch.guard(noisy, model=model, count=terms, meter=memory, split_batchnorm=True)
    with pytest.raises(farrier.torch.DoesNotFit) as caught:
        run(given)
    after = state_of(model)
    for old, new in zip(before[0], after[0], strict=True):
        assert (old is None) == (new is None)
        if old is not None:
            assert new[0] is old[0], "the very same gradient"
            assert torch.equal(old[1], new[1])
    assert all(torch.equal(old[1], new[1]) for old, new in zip(before[1], after[1], strict=True))
    assert torch.equal(before[2], after[2])
    assert before[3] == after[3]
    assert (before[4] == after[4]).all()
    assert caught.value.requested_bytes == 20
    assert caught.value.capacity_bytes == 19
    assert "micro-batches of 1 row, recompute, offload" in str(caught.value)
    assert run.report.lost == 1
    assert memory.live == 0, "nothing references the failed attempts"


def test_errors_that_the_caller_keeps_reference_no_copies(net, batch, memory):
    model, given = net(batchnorm=True), batch()
    squares(model, batch(seed=5)).backward()
    memory.limit = 19
    run = guard(model, memory, split_batchnorm=True)

    def count_tensors():
        gc.collect()
        return sum(issubclass(type(item), torch.Tensor) for item in gc.get_objects())

    errors, counts = [], []
    for _ in range(4):
        with pytest.raises(farrier.torch.DoesNotFit) as caught:
            run(given)
        errors.append(caught.value)
        counts.append(count_tensors())
    assert counts[1] == counts[3], "an error that is kept references no further tensors"


def test_earlier_gradients_are_accumulated_in_place(net, batch, memory):
    model, first, second = net(), batch(seed=2), batch(seed=3)
    twice = copy.deepcopy(model)
    for given in (first, second):
        squares(twice, given).backward()
    alone = whole(model, second)[1]
    squares(model, first).backward()
    model.head.bias.grad = None  # One parameter has no earlier gradient.
    held = [parameter.grad for parameter in model.parameters()]
    memory.limit = 3 * ROW
    run = guard(model, memory)
    run(second)
    assert run.report.ooms >= 1
    for parameter, other, new, before in zip(model.parameters(), twice.parameters(), alone, held, strict=True):
        if before is None:
            torch.testing.assert_close(parameter.grad, new, **EXACT)
        else:
            assert parameter.grad is before
            torch.testing.assert_close(parameter.grad, other.grad, **EXACT)


def test_micro_batches_without_terms_are_skipped(net, batch, memory):
    model, given = net(), batch(rows=6)
    given["keep"][2:] = False
    expected = whole(model, given)
    memory.limit = ROW
    run = guard(model, memory)
    check(model, run(given), expected)
    assert run.report.split_calls == 1


def test_a_batch_without_terms_returns_the_plain_loss(net, batch, memory):
    model, given = net(), batch(rows=4)
    given["keep"][:] = False
    memory.limit = 2 * ROW
    assert torch.isnan(guard(model, memory)(given))


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (lambda b: 1, "do not add up to the 1 that it returned for the whole batch"),
        (lambda b: 0.123 * b["keep"].sum(), "it must return an integer number of terms"),
        (lambda b: 1.25 * len(b["keep"]), "it must return an integer"),
        (lambda b: float("nan"), "it must return an integer"),
    ],
)
def test_invalid_counts_are_rejected_at_the_first_batch(net, batch, memory, count, words):
    with pytest.raises((TypeError, ValueError), match=re.escape(words)):
        guard(net(), memory, count=count)(batch())


def test_a_count_that_breaks_later_prevents_the_split(net, batch, memory):
    model, given = net(), batch()
    expected = whole(model, given)
    memory.limit = 3 * ROW
    broken = {"by": 1}
    run = guard(model, memory, count=lambda b: terms(b) * broken["by"])
    check(model, run(given), expected)
    assert run.report.split_calls == 1
    model.zero_grad()
    broken["by"] = 0.3
    check(model, run(given), expected)
    assert run.report.split_calls == 1
    assert any("it must return an integer number of terms" in note for note in run.report.notes)


def test_rows_are_counted_by_default(net, batch, memory):
    model, given = net(), batch(rows=7)
    expected = whole(model, given)
    memory.limit = 3 * ROW
    check(model, guard(model, memory, count=None)(given), expected)


def test_a_retry_draws_the_same_random_numbers(net, batch, memory):
    model, given = net(dropout=0.5), batch()
    memory.limit = 3 * ROW
    run = guard(model, memory)
    torch.manual_seed(11)
    first = run(given)
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    drawn = torch.rand(1)
    failures = run.report.ooms
    assert failures >= 1
    model.zero_grad()
    torch.manual_seed(11)
    second = run(given)
    assert run.report.ooms == failures, "the size is planned, so no attempt fails"
    assert torch.equal(first, second)
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), gradients, strict=True))
    assert torch.equal(torch.rand(1), drawn)


def test_recompute_with_dropout_uses_the_same_masks(net, batch, memory):
    model, given = net(dropout=0.5), batch(rows=1)
    torch.manual_seed(3)
    expected = whole(model, given)
    memory.limit = ROW // 2
    torch.manual_seed(3)
    run = guard(model, memory)
    check(model, run(given), expected)
    assert run.report.recovered == {"recompute": 1}


def test_batchnorm_is_not_split_and_its_statistics_are_updated_once(net, batch, memory):
    model, given = net(batchnorm=True), batch()
    reference = copy.deepcopy(model)
    loss = squares(reference, given)
    loss.backward()
    memory.limit = 4 * ROW
    run = guard(model, memory)
    check(model, run(given), (loss.detach(), [parameter.grad for parameter in reference.parameters()]))
    report = run.report
    assert report.recovered == {"recompute": 1}
    assert any("BatchNorm" in note for note in report.notes)
    for (name, mine), theirs in zip(model.named_buffers(), reference.buffers(), strict=True):
        torch.testing.assert_close(mine, theirs, **EXACT, msg=name)


def test_batchnorm_is_split_on_request_or_in_eval_mode(net, batch, memory):
    model = net(batchnorm=True)
    memory.limit = 4 * ROW
    run = guard(model, memory, split_batchnorm=True)
    run(batch())
    assert run.report.recovered == {"split": 1}
    model.eval()
    given = batch()
    memory.limit = 10**9
    expected = whole(model, given)
    memory.limit = 4 * ROW
    model.zero_grad()
    frozen = guard(model, memory)
    check(model, frozen(given), expected)
    assert frozen.report.recovered == {"split": 1}


def test_buffers_count_every_row_once_despite_retries(net, batch, memory):
    model = net()
    memory.limit = 2 * ROW
    run = guard(model, memory)
    run(batch())
    assert run.report.ooms >= 1
    assert model.seen.item() == 8


class Scaler:
    def scale(self, loss):
        return loss * 1024.0


@pytest.mark.parametrize("make", [Scaler, lambda: torch.amp.GradScaler("cpu", init_scale=1024.0)])
def test_a_scaler_scales_gradients_and_not_the_loss(net, batch, memory, make):
    model, given = net(), batch(rows=7)
    loss, gradients = whole(model, given)
    memory.limit = 3 * ROW
    run = guard(model, memory, scaler=make())
    torch.testing.assert_close(run(given), loss, **EXACT)
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, 1024.0 * gradient, rtol=0, atol=1e-9)
    assert run.report.split_calls == 1


def test_other_errors_are_raised(net, batch, memory):
    model, given, calls = net(), batch(), []
    squares(model, given).backward()
    held = [parameter.grad for parameter in model.parameters()]

    def broken(b):
        calls.append(1)
        squares(model, b).backward()
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with pytest.raises(RuntimeError, match="illegal memory access"):
        farrier.torch.guard(broken, model=model, meter=memory)(given)
    assert len(calls) == 1
    assert all(p.grad is before for p, before in zip(model.parameters(), held, strict=True))


def test_a_loss_of_many_elements_is_rejected(net, batch, memory):
    model = net()
    with pytest.raises(TypeError, match=r"shape \(8, 5\)"):
        farrier.torch.guard(lambda b: model(b["x"]), model=model, meter=memory)(batch())


def test_sizes_are_learned_and_resumed(net, batch, memory):
    model = net()
    memory.limit = 4 * ROW
    run = guard(model, memory)
    run(batch())
    failures = run.report.ooms
    for seed in range(5):
        run(batch(seed=seed))
    assert run.report.ooms == failures, "once, then the size is known"
    resumed = guard(model, memory, learned=run.learned_sizes())
    resumed(batch())
    resumed(batch(length=10, rows=6))
    assert resumed.report.ooms == 0, "a larger shape is planned from the others"
    assert resumed.report.split_calls == 2


def test_the_size_that_ran_is_recorded(net, batch, memory):
    """Seven rows with a plan of at most five run as four and three, so four is the size that fit."""
    run = guard(net(), memory)
    shape, _ = run._inspect(batch(rows=7))
    run.learned.record_failure(shape, Plan(11), memory.limit, fragmented=False)  # Half of 11, rounded down, is planned.
    run(batch(rows=7))
    assert run.report.split_calls == 1
    assert run.learned.shapes[shape.key, ActivationMode.PLAIN].safe_rows == 4
    assert run.learned.models[ActivationMode.PLAIN].points == [(4 * shape.elements_per_row, 4 * ROW)]


def test_unknown_memory_is_retried_once_then_split(net, batch, memory):
    model, given = net(), batch()
    expected = whole(model, given)
    memory.limit, memory.says_bytes = 4 * ROW, False
    run = guard(model, memory, meter=UnknownMeter())
    check(model, run(given), expected)
    assert run.report.ooms == 2
    assert run.report.recovered == {"split": 1}


def test_fragmentation_is_cured_by_freeing(net, batch, memory):
    model, given, failures = net(), batch(), [True]
    expected = whole(model, given)

    def fragmented(b):
        if failures:
            failures.pop()
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 8 bytes. 0 bytes is allocated by PyTorch")
        return squares(model, b)

    run = farrier.torch.guard(fragmented, model=model, count=terms, meter=memory)
    check(model, run(given), expected)
    assert run.report.recovered == {"free": 1}


def test_batch_leaves_accumulate_gradients_once(memory, net, batch):
    model, given = net(), batch()
    given["x"].requires_grad_()
    reference = {**given, "x": given["x"].detach().clone().requires_grad_()}
    squares(copy.deepcopy(model), reference).backward()
    memory.limit = 3 * ROW
    run = guard(model, memory)
    run(given)
    assert run.report.ooms >= 1
    torch.testing.assert_close(given["x"].grad, reference["x"].grad, **EXACT)


def test_modules_added_later_are_found(net, batch, memory):
    model, given = net(layers=2), batch()
    run = guard(model, memory)
    run(given)
    model.blocks[0] = net(layers=3).blocks[2]
    model.into.register_parameter("bias", nn.Parameter(torch.ones(4, dtype=torch.float64)))
    model.zero_grad()
    expected = whole(model, given)
    memory.limit = 4 * 120
    check(model, run(given), expected)
    assert run.report.recovered == {"split": 1}


def test_ambiguous_batches_are_not_split_with_a_note(net, memory, batch):
    model, odd = net(), (batch()["x"], torch.ones(3))
    memory.limit = ROW

    def loss_fn(b):
        return (model(b[0]) ** 2).mean() * b[1].mean()

    run = farrier.torch.guard(loss_fn, model=model, meter=memory, recompute_modules=[])
    with pytest.raises(farrier.torch.DoesNotFit, match="pass `split=` and `rows=`"):
        run(odd)

    def split(b, sizes):
        return [(part, b[1]) for part in b[0].split(list(sizes))]

    helped = farrier.torch.guard(loss_fn, model=model, meter=memory, split=split, rows=lambda b: b[0].shape[0])
    helped(odd)
    assert helped.report.recovered == {"split": 1}


@pytest.mark.parametrize(("fits", "how"), [(3, "micro-batches of 3 rows"), (0.5, "micro-batches of 6 rows, recompute")])
def test_a_split_batch_is_not_captured(net, batch, memory, monkeypatch, fits, how):
    model, seen = net(), []

    def count_of(given):
        seen.append(len(given["x"]))
        return squares(model, given)

    run = farrier.torch.guard(count_of, model=model, count=terms, meter=memory)
    memory.limit = int(fits * ROW)
    run(batch(rows=6))
    model.zero_grad()
    seen.clear()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(farrier.torch.NotCapturable, match=f"the guard runs 6 rows of .* in {how}") as caught:
        run(batch(rows=6))
    assert not seen, "rejected before it is tried"
    assert all(parameter.grad is None for parameter in model.parameters())
    assert explain_error(caught.value).cause.startswith("the guard runs 6 rows")
    assert explain_error(caught.value).shape_specific


def test_an_unsplit_batch_is_captured(net, batch, memory, monkeypatch):
    model, given = net(), batch(rows=6)
    expected = whole(model, given)
    memory.limit = 6 * ROW
    run = guard(model, memory)
    run(given)
    model.zero_grad()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    check(model, run(given), expected)
    assert run.report.calls == 1, "a capture is not a step"


def test_invalid_settings_are_rejected(net):
    with pytest.raises(ValueError, match="reduction is 'max'"):
        farrier.torch.guard(lambda b: b, model=net(), reduction="max")
    with pytest.raises(ValueError, match="ddp_sync is 'never'"):
        farrier.torch.guard(lambda b: b, model=net(), ddp_sync="never")

    class FullyShardedDataParallel(nn.Module):
        pass

    with pytest.raises(TypeError, match="FSDP"):
        farrier.torch.guard(lambda b: b, model=FullyShardedDataParallel())


@pytest.mark.parametrize(
    ("model", "found"),
    [
        (None, "model is None"),
        ("model", "model is a `str`"),
        ([], "model is empty"),
        ([nn.Linear(1, 1), None], "model contains None"),
        (nn.Linear(1, 1).parameters(), "model contains a `Parameter`"),
    ],
)
def test_an_invalid_model_is_rejected_by_name(model, found):
    with pytest.raises(TypeError, match=found) as caught:
        farrier.torch.guard(lambda batch: batch, model=model)
    assert "pass the trained nn.Module" in str(caught.value)


def test_a_loss_instead_of_a_function_is_rejected():
    with pytest.raises(TypeError, match="loss_fn is a `Tensor`: pass a function, loss_fn\\(batch\\) -> loss"):
        farrier.torch.guard(torch.zeros(()), model=nn.Linear(1, 1))


@pytest.mark.parametrize("given", ["the loss", "detached"])
def test_a_loss_fn_that_runs_backward_is_rejected(net, batch, memory, given):
    model = net()
    earlier = [torch.ones_like(parameter) for parameter in model.parameters()]
    for parameter, gradient in zip(model.parameters(), earlier, strict=True):
        parameter.grad = gradient

    def loss_fn(b):
        loss = squares(model, b)
        loss.backward(retain_graph=True)
        return loss if given == "the loss" else loss.detach()

    with pytest.raises(ValueError, match=r"loss_fn ran backward: .*\n.*leave backward, optimizer and zero_grad out"):
        farrier.torch.guard(loss_fn, model=model, meter=memory)(batch())
    for parameter, gradient in zip(model.parameters(), earlier, strict=True):
        assert parameter.grad is gradient
        assert bool((gradient == 1).all())


def test_a_detached_loss_is_rejected(net, batch, memory):
    model = net()
    run = farrier.torch.guard(lambda b: squares(model, b).detach(), model=model, meter=memory)
    with pytest.raises(ValueError, match="a loss without gradients: it was detached"):
        run(batch())


@pytest.mark.parametrize(("rows", "fits"), [(8, 3), (32, 5)])
def test_sizes_that_failed_in_the_check_are_not_retried(net, batch, memory, rows, fits):
    model, given = net(), batch(rows=rows)
    expected = whole(model, given)
    memory.limit, tried = fits * ROW, []

    def loss_fn(b):
        tried.append(len(b["x"]))
        return squares(model, b)

    run = farrier.torch.guard(loss_fn, model=model, count=terms, meter=memory)
    check(model, run(given), expected)
    too_many = [size for size in tried if size > fits]
    assert len(too_many) == len(set(too_many)), tried
    assert run.report.ooms == 1
