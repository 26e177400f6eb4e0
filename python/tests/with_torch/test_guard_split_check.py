"""A batch that cannot be split exactly is not split, and the guard gives the reason."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

import farrier.torch
from farrier.torch.memory_meter import UnknownMeter


def refuse():
    raise torch.OutOfMemoryError("CUDA out of memory.")


def numbers(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def guard(loss_fn, model, fits, **more):
    """A guard that runs out of memory above that many rows, and can only split."""

    def limited(batch):
        if batch["x"].shape[0] > fits and torch.is_grad_enabled():
            refuse()
        return loss_fn(model, batch)

    more = {"recompute_modules": [], **more}
    return farrier.torch.guard(limited, model=model, meter=UnknownMeter(), **more)


def squares(model, batch):
    return (model(batch["x"]) - batch["y"]).square().mean()


def perceptron():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 1))


def rows(count=8):
    return {"x": numbers(count, 6), "y": numbers(count, 1)}


def contrastive(model, batch):
    one, other = (functional.normalize(side, dim=-1) for side in (model(batch["x"]), batch["y"]))
    return functional.cross_entropy(one @ other.T / 0.1, torch.arange(len(one)))


def balanced(model, batch):
    """A mean over rows plus the square of a mean over rows, as for load-balanced experts."""
    return squares(model, batch) + 0.5 * model[:2](batch["x"]).mean(0).square().sum()


def masked(model, batch):
    made = model(batch["x"])
    scores = (made @ made.transpose(1, 2)).masked_fill(~batch["mask"], -1e9).softmax(-1)
    return (scores @ made - batch["y"]).square().mean()


def labelled(model, batch):
    return functional.cross_entropy(model(batch["x"]).flatten(0, 1), batch["labels"].flatten())


def kept(model, batch):
    return (model(batch["x"]) - batch["y"]).square()[batch["keep"]].mean()


def labels_of(ignored):
    labels = torch.arange(56).reshape(8, 7) % 5
    labels[ignored, 2:] = -100
    return {"x": numbers(8, 7, 6), "labels": labels}


MASK = {"x": numbers(8, 8, 6), "y": numbers(8, 8, 6), "mask": torch.ones(8, 8, dtype=torch.bool).tril()}
#: Rows of one, two and three terms in turn.
KEEP = {"x": numbers(8, 3, 6), "y": numbers(8, 3, 1), "keep": torch.arange(3) <= torch.arange(8).unsqueeze(1) % 3}
MIXING = nn.BatchNorm1d(6, track_running_stats=False)


@pytest.mark.parametrize("fits", [1, 2, 4])
@pytest.mark.parametrize(
    ("loss_fn", "model", "batch", "why"),
    [
        (contrastive, nn.Linear(6, 5), {"x": numbers(8, 6), "y": numbers(8, 5)}, "give different (gradients|losses)"),
        (balanced, perceptron(), rows(), "give different (gradients|losses) than the whole batch"),
        (kept, perceptron(), KEEP, "give different (gradients|losses) than the whole batch"),
        (masked, nn.Linear(6, 6), MASK, "fails on some rows of a batch"),
        (labelled, nn.Linear(6, 5), labels_of(slice(4)), "pass count="),
        (labelled, nn.Linear(6, 5), labels_of(slice(7, 8)), "pass count="),
        (squares, nn.Sequential(nn.Linear(6, 6), MIXING, nn.Linear(6, 1)).eval(), rows(), "BatchNorm"),
    ],
    ids=["contrastive", "balanced", "terms without count", "square mask", "ignored", "ignored late", "batchnorm"],
)
def test_a_loss_with_dependent_rows_is_not_split(loss_fn, model, batch, why, fits):
    model = copy.deepcopy(model)
    with pytest.raises(farrier.torch.DoesNotFit, match=why):
        guard(loss_fn, model, fits)(batch)
    assert all(parameter.grad is None for parameter in model.parameters())


def whole(loss_fn, model, batch):
    fresh = copy.deepcopy(model)
    loss_fn(fresh, batch).backward()
    return fresh


def check(model, fresh):
    for mine, theirs in zip(model.parameters(), fresh.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-5, atol=1e-6)
    for mine, theirs in zip(model.buffers(), fresh.buffers(), strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("fits", [1, 2, 4])
@pytest.mark.parametrize(
    ("loss_fn", "batch", "more"),
    [
        (squares, rows(), {}),
        (squares, rows(7), {}),
        (kept, KEEP, {"count": lambda batch: batch["keep"].sum()}),
        (lambda model, batch: 8 * squares(model, batch) * len(batch["x"]), rows(), {"reduction": "sum"}),
    ],
    ids=["mean", "ragged", "count", "sum"],
)
def test_a_loss_of_independent_rows_is_split(loss_fn, batch, more, fits):
    model = perceptron()
    fresh = whole(loss_fn, model, batch)
    run = guard(loss_fn, model, fits, **more)
    run(batch)
    check(model, fresh)
    assert run.report.split_calls == 1
    losses_alone = ["split with only the losses checked: no memory for gradients"]
    assert [note for note in run.report.notes if "split" in note] == (losses_alone if fits == 1 else [])


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_half_precision_rounding_neither_fails_nor_hides_errors(autocast, seed):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 5))
    model = model if autocast else model.bfloat16()
    batch = {"x": numbers(8, 6).to(model[0].weight.dtype), "y": numbers(8, 5).to(model[0].weight.dtype)}

    def half(loss_fn):
        def made(model, batch):
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                return loss_fn(model, batch)

        return made

    run = guard(half(squares), model, 4)
    run(batch)
    assert run.report.split_calls == 1
    with pytest.raises(farrier.torch.DoesNotFit, match="give different gradients than the whole batch"):
        guard(half(contrastive), model, 4)(batch)


def test_checks_run_early_and_then_rarely():
    model, seen = perceptron(), []

    def count_of(model, batch):
        seen.append(len(batch["x"]))
        return squares(model, batch)

    run = guard(count_of, model, 4)
    run(rows())
    check_passes = [4, 1, 1, 1, 1]
    assert seen == [*check_passes, 4, 4], "four rows as a whole, the same one by one, and the micro-batches"
    seen.clear()
    for _ in range(2, 9):
        run(rows())
    assert seen == [*check_passes, 4, 4, 4, 4, *check_passes, *[4] * 8, *check_passes, 4, 4], "checks at steps 2, 4 and 8"


def test_no_check_without_a_split():
    seen = []

    def count_of(model, batch):
        seen.append(len(batch["x"]))
        return contrastive(model, batch)

    run = guard(count_of, nn.Linear(6, 5), 8)
    run({"x": numbers(8, 6), "y": numbers(8, 5)})
    assert seen == [8]
    assert not [note for note in run.report.notes if "split" in note]


@pytest.mark.parametrize("loss_fn", [squares, contrastive])
def test_dropout_neither_hides_errors_nor_causes_refusals(loss_fn):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 64), nn.Dropout(0.5), nn.Linear(64, 5))
    run = guard(loss_fn, model, 4)
    batch = {"x": numbers(8, 6), "y": numbers(8, 5)}
    if loss_fn is contrastive:
        with pytest.raises(farrier.torch.DoesNotFit, match="give different gradients than the whole batch"):
            run(batch)
    else:
        run(batch)
        assert run.report.split_calls == 1
        assert not [note for note in run.report.notes if "split" in note]
    assert all(module.training for module in model.modules())


def test_a_random_loss_is_split_unchecked():
    model = perceptron()
    run = guard(lambda m, b: (squares(m, b) * torch.rand(len(b["x"]), 1)).mean(), model, 4)
    run(rows())
    assert run.report.split_calls == 1
    assert any("split unchecked" in note for note in run.report.notes)


def test_only_losses_are_compared_without_memory_for_gradients():
    batch = {"x": numbers(8, 6), "y": numbers(8, 5)}
    with pytest.raises(farrier.torch.DoesNotFit, match="give different losses than the whole batch"):
        guard(contrastive, nn.Linear(6, 5), 1)(batch)
    run = guard(squares, perceptron(), 1)
    run(rows())
    assert run.report.split_calls == 1


def test_rows_without_gradients_are_inconclusive():
    run = guard(contrastive, nn.Linear(6, 5), 4)
    silent = {"x": torch.zeros(8, 6), "y": torch.full((8, 5), torch.nan)}
    assert run(silent).isnan()
    assert run.report.split_calls == 1
    assert any("had no loss or no gradient to compare" in note for note in run.report.notes)
    with pytest.raises(farrier.torch.DoesNotFit, match="give different gradients than the whole batch"):
        run({"x": numbers(8, 6), "y": numbers(8, 5)})


def narrow(loss_fn, model):
    """A guard for which two rows do not fit, not even without gradients."""

    def limited(batch):
        if len(batch["x"]) > 1:
            refuse()
        return loss_fn(model, batch)

    return farrier.torch.guard(limited, model=model, meter=UnknownMeter(), recompute_modules=[])


def test_ambiguous_rows_without_memory_to_check_are_not_split():
    with pytest.raises(farrier.torch.DoesNotFit, match="the row dimension of 8 x 8 is ambiguous"):
        narrow(masked, nn.Linear(6, 6))(MASK)


def test_no_memory_to_check_is_noted():
    run = narrow(squares, perceptron())
    run(rows())
    assert run.report.split_calls == 1
    assert any("split unchecked" in note for note in run.report.notes)


@pytest.mark.parametrize("batchnorm", [nn.BatchNorm1d(6), nn.BatchNorm1d(6, track_running_stats=False)])
def test_requested_batchnorm_splits_are_checked_otherwise(batchnorm):
    model = nn.Sequential(nn.Linear(6, 6), copy.deepcopy(batchnorm), nn.Linear(6, 1))
    run = guard(squares, model, 4, split_batchnorm=True)
    run(rows())
    assert run.report.split_calls == 1


def test_tracked_statistics_of_instance_norm_are_not_split():
    model = nn.InstanceNorm1d(3, track_running_stats=True, affine=True)
    batch = {"x": 3 * numbers(8, 3, 5)}
    with pytest.raises(farrier.torch.DoesNotFit, match="statistics"):
        guard(lambda m, b: m(b["x"]).square().mean(), model, 2)(batch)
    model.eval()
    run = guard(lambda m, b: m(b["x"]).square().mean(), model, 2)
    run(batch)
    assert run.report.split_calls == 1


def test_parameter_hooks_see_whole_batch_gradients_or_none():
    model = perceptron()
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
    with pytest.raises(farrier.torch.DoesNotFit, match="register_hook"):
        guard(squares, model, 4)(rows())
    run = guard(squares, model, 8)
    run(rows())
    made = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    squares(model, rows()).backward()
    assert all(torch.equal(one, parameter.grad) for one, parameter in zip(made, model.parameters(), strict=True))


def optimizer_in_backward(model):
    for parameter in model.parameters():
        optimizer = torch.optim.SGD([parameter], lr=0.5)

        def step(parameter, optimizer=optimizer):
            optimizer.step()
            parameter.grad = None

        parameter.register_post_accumulate_grad_hook(step)


@pytest.mark.parametrize("more", [{}, {"recompute_modules": None}])
def test_an_optimizer_in_backward_is_not_retried(more):
    model, seen = perceptron(), []
    optimizer_in_backward(model)
    before = [parameter.detach().clone() for parameter in model.parameters()]

    def count_of(model, batch):
        seen.append(len(batch["x"]))
        refuse()

    run = guard(count_of, model, 8, **more)
    with pytest.raises(farrier.torch.DoesNotFit, match="optimizer in backward"):
        run(rows())
    assert seen == [8]
    assert all(torch.equal(one, other) for one, other in zip(before, model.parameters(), strict=True))


def test_an_optimizer_in_backward_is_not_split_by_learned_sizes():
    learnt = guard(squares, perceptron(), 4)
    learnt(rows())
    model, seen = perceptron(), []
    optimizer_in_backward(model)

    def count_of(model, batch):
        seen.append(len(batch["x"]))
        return squares(model, batch)

    run = guard(count_of, model, 8, learned=learnt.learned_sizes())
    run(rows())
    assert seen == [8], "unsplit, with activations offloaded"


def test_a_parameter_outside_model_is_named():
    model, temperature = perceptron(), nn.Parameter(torch.ones(3, 1))
    run = farrier.torch.guard(lambda b: squares(model, b) * temperature.sum(), model=model, meter=UnknownMeter())
    with pytest.raises(ValueError, match=r"parameters outside `model`, of shape \(3, 1\)"):
        run(rows())
    assert temperature.grad is None
    assert all(parameter.grad is None for parameter in model.parameters())
    tempered = nn.Module()
    tempered.temperature = temperature
    both = farrier.torch.guard(
        lambda b: squares(model, b) * temperature.sum(), model=[model, tempered], meter=UnknownMeter()
    )
    both(rows())
    assert temperature.grad is not None


def uneven(lengths, fits):
    """A model, a loss that is a masked mean over tokens, and a batch of rows of these lengths.

    At most `fits` rows fit at once.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 50))
    mask = (torch.arange(64)[None] < torch.tensor(lengths)[:, None]).float()
    given = {"ids": torch.randint(0, 50, (16, 64)), "labels": torch.randint(0, 50, (16, 64)), "mask": mask}

    def loss(part):
        if len(part["ids"]) > fits:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        each = nn.functional.cross_entropy(model(part["ids"]).flatten(0, 1), part["labels"].flatten(), reduction="none")
        return (each.view_as(part["mask"]) * part["mask"]).sum() / part["mask"].sum()

    return model, loss, given


@pytest.mark.parametrize("fits", [8, 7, 4])
@pytest.mark.parametrize("lengths", [[64, 64, *range(60, 4, -4)], [64] * 4 + [8] * 12], ids=["sorted", "packed"])
def test_similar_neighbouring_rows_do_not_hide_a_missing_count(lengths, fits):
    model, loss, given = uneven(lengths, fits)
    with pytest.raises(farrier.torch.DoesNotFit, match="pass count="):
        farrier.torch.guard(loss, model=model)(given)
    run = farrier.torch.guard(loss, model=model, count=lambda part: part["mask"].sum())
    run(given)
    assert run.report.split_calls == 1


def test_a_later_check_finds_what_an_earlier_one_missed():
    model, loss, given = uneven([8] * 16, fits=4)
    run = farrier.torch.guard(loss, model=model)
    run(given)
    assert run.report.split_calls == 1, "all rows have the same weight"
    given["mask"] = uneven([64, 64, *range(60, 4, -4)], fits=4)[2]["mask"]
    with pytest.raises(farrier.torch.DoesNotFit, match="pass count="):
        run(given)
