"""Decisions of the step with emulated graphs: training equals eager."""

import copy
import itertools
import random
import sys
import threading
import time

import emulation
import numpy
import pytest
import torch
from emulation import Arena, assert_trained_alike, batches, perceptron, plain, step, weights
from torch import nn
from torch.optim.swa_utils import AveragedModel

from farrier.torch import Lengths, Policy, graph_runner
from farrier.torch.capture_key import CaptureKey
from farrier.torch.comparison import Comparison
from farrier.torch.graph_policy import StepTiming
from farrier.torch.pinned_reuse import PinnedReuseDetector


@pytest.fixture(autouse=True)
def no_gpu():
    with emulation.emulated():
        yield


def adamw(model, **more):
    return torch.optim.AdamW(model.parameters(), **{"lr": 3e-2, **more})


def both(count=40, *, make=plain, optimizer=adamw, each=lambda i, model, optimizer: None, model=None, stream=None, **more):
    """An eager and a graphed run from the same weights; `each` is called before every step."""
    models = [model or perceptron()]
    models.append(copy.deepcopy(models[0]))
    optimizers = [optimizer(each_model) for each_model in models]
    eager = make(models[0], optimizers[0])
    graphed = step(make(models[1], optimizers[1]), model=models[1], optimizer=optimizers[1], **more)
    for i, batch in enumerate(stream or batches(count)):
        for which, run in enumerate((eager, graphed)):
            each(i, models[which], optimizers[which])
            torch.manual_seed(i)
            run(batch)
    return models, optimizers, graphed


def test_plain_training():
    models, optimizers, graphed = both()
    assert_trained_alike(*models)
    assert graphed.report.reason is None
    assert graphed.report.replays == 37
    assert graphed.report.last_comparison.gradients == 4
    assert float(optimizers[1].state[models[1][0].weight]["step"]) == 40


def test_a_rate_assigned_at_every_step():
    def assign(i, _, optimizer):
        for group in optimizer.param_groups:
            group["lr"] = 3e-2 * min(1.0, (i + 1) / 20)

    models, optimizers, graphed = both(each=assign)
    assert_trained_alike(*models)
    assert graphed.report.replays >= 30
    assert optimizers[1].param_groups[0]["lr"] == 3e-2, "the user's own number"


def test_a_scheduler_keeps_its_precision():
    schedulers = {}

    def schedule(i, _, optimizer):
        if id(optimizer) not in schedulers:
            scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10, eta_min=1e-3)
            schedulers[id(optimizer)] = scheduler
        elif i:
            schedulers[id(optimizer)].step()

    models, optimizers, graphed = both(each=schedule)
    assert_trained_alike(*models)
    assert optimizers[1].param_groups[0]["lr"] == optimizers[0].param_groups[0]["lr"]
    assert graphed.report.replays >= 30


def test_a_scheduler_inside_the_step_has_no_graph_and_steps_once():
    def scheduled(model, optimizer):
        inner = plain(model, optimizer)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.98)

        def train(batch):
            loss = inner(batch)
            scheduler.step()
            return loss

        return train

    models, optimizers, graphed = both(make=scheduled)
    assert_trained_alike(*models)
    assert "sets the learning rate itself" in graphed.report.reason.cause
    assert optimizers[1].param_groups[0]["lr"] == pytest.approx(3e-2 * 0.98**40)


def noisy(amplitude, *, graph=None):
    """Scales the gradients alternately up and down, run by run; in a graph also by `graph`."""

    def make(model, optimizer):
        runs = itertools.count()

        def train(batch):
            optimizer.zero_grad(set_to_none=True)
            loss = (model(batch["x"]) - batch["y"]).square().mean()
            loss.backward()
            factor = 1 + amplitude["now"] * (-1) ** next(runs)
            if graph is not None and sys._getframe(1).f_code.co_name == "replay":
                factor *= graph["now"]
            for p in model.parameters():
                p.grad.mul_(factor)
            optimizer.step()
            return loss.detach()

        return train

    return make


def later(values, value, at=20):
    def change(i, *_):
        if i == at:
            values["now"] = value

    return change


def test_growing_noise_is_measured_again_and_passes():
    amplitude = {"now": 1e-4}
    _, _, graphed = both(60, make=noisy(amplitude), each=later(amplitude, 1e-3))
    assert graphed.report.reason is None
    assert graphed.report.noise == pytest.approx(2e-3, rel=0.1), "the current difference of two eager runs"
    assert graphed.report.replays > 50


def test_noise_does_not_hide_a_wrong_graph():
    graph = {"now": 1.0}
    _, _, graphed = both(60, make=noisy({"now": 1e-4}, graph=graph), each=later(graph, 1.01))
    assert "differ after" in graphed.report.reason.cause


def test_another_summation_order_passes_in_a_noisy_step():
    graph = {"now": 1.0}
    _, _, graphed = both(60, make=noisy({"now": 1e-5}, graph=graph), each=later(graph, 1.002))
    assert graphed.report.reason is None, graphed.report
    assert graphed.report.last_comparison.max_distance > 4 * graphed.report.noise, "further apart than eager runs are"


def test_another_summation_order_fails_in_a_step_without_noise():
    graph = {"now": 1.0}
    _, _, graphed = both(60, make=noisy({"now": 0.0}, graph=graph), each=later(graph, 1.002))
    assert "differ after" in graphed.report.reason.cause


def test_growing_noise_does_not_hide_a_wrong_graph():
    amplitude, graph = {"now": 1e-4}, {"now": 1.0}

    def change(i, *_):
        if i == 20:
            amplitude["now"], graph["now"] = 5e-4, 1.01

    _, _, graphed = both(60, make=noisy(amplitude, graph=graph), each=change)
    assert "differ after" in graphed.report.reason.cause
    assert graphed.report.last_comparison.noise == pytest.approx(1e-3, rel=0.1), "judged by the current noise"


@pytest.mark.parametrize("buffers", [1, 3, 20, None])
def test_reused_pinned_memory_is_waited_for(buffers, monkeypatch):
    """Batches use this many pinned buffers in rotation. None: each batch has its own memory."""
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda _: True)
    model = perceptron()
    optimizer = adamw(model)
    graphed = step(plain(model, optimizer), model=model, optimizer=optimizer)
    held = [{"x": torch.empty(6, 4), "y": torch.empty(6, 1)} for _ in range(buffers or 0)]
    for i, batch in enumerate(batches(60)):
        if buffers:
            for name, place in held[i % buffers].items():
                place.copy_(batch[name])
            # Views: a new tensor each time, in the same memory.
            batch = {name: place[:6] for name, place in held[i % buffers].items()}
        graphed(batch)
    assert graphed.report.replays == 57
    waits = [place for place, wait in enumerate(Arena.now.waits) if wait]
    assert bool(waits) == (buffers is not None)
    if buffers:
        # The first batch that reuses a buffer waits. Of the batches before it, three had no graph.
        # Up to five comparisons (at replays 1, 2, 4, 8 and 16) added another replay each.
        assert waits[0] <= max(1, buffers - 3 + 5)
        assert len(waits) >= 57 - buffers


def test_freed_pinned_memory_is_not_reuse(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda _: True)
    seen = PinnedReuseDetector()
    for _ in range(500):
        both_of_one = torch.zeros(8, 5)
        assert not seen.check({"ids": both_of_one[:, :-1], "labels": both_of_one[:, 1:]}), "two views of one batch"
    assert len(seen._storages) <= 65
    assert seen.check({"ids": both_of_one[:, :-1]})


def dirty(model):
    """Leaves non-zero values in freed memory, to catch uses of uninitialised memory."""
    junk = [torch.full_like(p, 1e3) for p in model.parameters() for _ in range(50)]
    del junk


@pytest.mark.parametrize("more", [{}, {"nesterov": True}, {"weight_decay": 0.1}])
def test_sgd_with_momentum(more):
    def sgd(model):
        dirty(model)
        return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, **more)

    models, _, graphed = both(optimizer=sgd)
    assert_trained_alike(*models)
    assert graphed.report.replays >= 30


def test_sgd_with_dampening_runs_eagerly_with_a_reason():
    def sgd(model):
        dirty(model)
        return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, dampening=0.5)

    models, optimizers, graphed = both(optimizer=sgd)
    assert_trained_alike(*models)
    assert "dampening" in graphed.report.reason.cause
    assert not optimizers[1].param_groups[0]["fused"], "nothing was changed"


def unfreeze(i, model, _):
    if i == 0:
        model[0].requires_grad_(False)
    if i == 15:
        model[0].requires_grad_(True)


def sgd_with_momentum(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


@pytest.mark.parametrize("optimizer", [adamw, sgd_with_momentum])
def test_unfreezing_recaptures_and_passes(optimizer):
    models, _, graphed = both(optimizer=optimizer, each=unfreeze)
    assert_trained_alike(*models)
    assert graphed.report.reason is None
    assert graphed.report.captures == 2
    assert graphed.report.replays >= 25


def test_unfreezing_after_graphs_are_disabled():
    def silent(model, optimizer):
        inner = plain(model, optimizer)

        def train(batch):
            inner(batch)

        return train

    models, _, graphed = both(optimizer=sgd_with_momentum, each=unfreeze, make=silent)
    assert_trained_alike(*models)
    assert "returns no tensor" in graphed.report.reason.cause


def test_a_scaler_skips_overflows_after_graphs_are_disabled():
    def gentle(model):
        return torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)

    scalers = two_scalers(2.0**127)
    make = scaled(scalers, times=64.0, item=True)
    models, optimizers, graphed = both(make=make, scaler=scalers[1], optimizer=gentle)
    torch.testing.assert_close(weights(models[1]), weights(models[0]), rtol=1e-4, atol=1e-6)
    assert weights(models[1]).isfinite().all()
    assert not torch.equal(weights(models[1]), weights(perceptron()))
    assert not optimizers[1].param_groups[0]["fused"]
    assert "waits for the GPU" in graphed.report.reason.cause


def test_alternating_modes_have_a_graph_each():
    def alternate(i, model, _):
        model[0].requires_grad_(i % 2 == 0)
        model[2].train(i % 3 > 0)

    models, _, graphed = both(60, each=alternate, model=perceptron(dropout=0.3))
    assert_trained_alike(*models)
    assert graphed.report.reason is None
    assert graphed.report.captures == 4
    assert graphed.report.replays >= 40


def test_dropout_draws_on_the_device_and_has_a_graph():
    models, _, graphed = both(model=perceptron(dropout=0.3))
    assert_trained_alike(*models)
    assert graphed.report.reason is None, graphed.report
    assert graphed.report.replays == 37


class LayerDrop(nn.Module):
    """Drops a layer by a random number drawn on the host, as some transformers models do."""

    def __init__(self, drawn):
        super().__init__()
        self.inner, self.layer, self.drawn = perceptron(), nn.Linear(4, 4), drawn

    def forward(self, x):
        return self.inner(x if self.drawn() < 0.5 else x + self.layer(x).tanh())


@pytest.mark.parametrize(
    ("drawn", "name"),
    [
        (lambda: torch.rand([]), "torch's generator of the CPU"),
        (lambda: random.random(), "Python's random"),
        (lambda: numpy.random.random(), "numpy.random"),
    ],
)
def test_host_random_decisions_have_no_graph_and_train_alike(drawn, name):
    def seed(i, *_):
        random.seed(i)
        numpy.random.seed(i)

    models, _, graphed = both(model=LayerDrop(drawn), each=seed)
    torch.testing.assert_close(weights(models[1]), weights(models[0]), rtol=1e-4, atol=1e-6)
    assert graphed.report.replays == 0
    assert f"draws random numbers on the host ({name})" in graphed.report.reason.cause
    assert "pass the value in the batch" in graphed.report.reason.remedy


def test_a_thread_that_draws_briefly_does_not_prevent_graphs():
    dry_runs = []

    def make(model, optimizer):
        inner = plain(model, optimizer)

        def train(batch):
            if torch.cuda.is_current_stream_capturing() and len(dry_runs) < 2:
                dry_runs.append(batch)
                loader = threading.Thread(target=lambda: (torch.rand(3), random.random()))
                loader.start()
                loader.join()
            return inner(batch)

        return train

    models, _, graphed = both(make=make)
    assert_trained_alike(*models)
    assert len(dry_runs) == 2
    assert graphed.report.reason is None, graphed.report
    assert graphed.report.replays == 37


def test_one_module_in_eval_mode_is_detected():
    def quieten(i, model, _):
        model[2].train(i < 20)

    models, _, graphed = both(each=quieten, model=perceptron(dropout=0.3))
    assert_trained_alike(*models)
    assert graphed.report.captures == 2


@pytest.mark.parametrize("how", ["data", "parameter"])
def test_moved_weights_are_recaptured(how):
    def move(i, model, optimizer):
        if i != 20:
            return
        old = model[0].weight
        if how == "data":
            old.data = old.data.clone()
            return
        model[0].weight = nn.Parameter(old.detach().clone())
        state = optimizer.state.pop(old)
        optimizer.state[model[0].weight] = state
        group = optimizer.param_groups[0]["params"]
        group[next(place for place, p in enumerate(group) if p is old)] = model[0].weight

    models, _, graphed = both(each=move)
    assert_trained_alike(*models)
    assert graphed.report.reason is None
    assert graphed.report.captures == 2


def test_an_added_group_trains_at_its_own_rate():
    extra = {}

    def make(model, optimizer):
        inner = plain(model, optimizer)
        extra[id(optimizer)] = nn.Parameter(torch.ones(1))

        def train(batch):
            batch = {"x": batch["x"] * extra[id(optimizer)], "y": batch["y"]}
            return inner(batch)

        return train

    def add(i, _, optimizer):
        if i == 15:
            optimizer.add_param_group({"params": [extra[id(optimizer)]], "lr": 1e-3})
        if i > 15:
            optimizer.param_groups[1]["lr"] = 1e-3 * (1 + i % 4)

    models, optimizers, graphed = both(make=make, each=add)
    assert_trained_alike(*models)
    torch.testing.assert_close(extra[id(optimizers[0])], extra[id(optimizers[1])])
    assert not torch.equal(extra[id(optimizers[0])], torch.ones(1))
    assert graphed.report.reason is None
    assert graphed.report.captures == 2


def test_an_empty_group_is_skipped():
    def with_empty(model):
        return torch.optim.AdamW([{"params": [], "weight_decay": 0.0}, {"params": list(model.parameters())}], lr=3e-2)

    models, _, graphed = both(optimizer=with_empty)
    assert_trained_alike(*models)
    assert graphed.report.replays >= 30


class Cautious(torch.optim.AdamW):
    """Overrides step() and ignores `found_inf`."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.add_(p.grad.sign(), alpha=-0.01)


class Renamed(torch.optim.AdamW):
    """A subclass with torch's own step."""


def test_an_overridden_step_is_not_gated():
    models, _, graphed = both(optimizer=lambda model: Cautious(model.parameters(), lr=1e-2))
    assert_trained_alike(*models)
    assert "Cautious overrides step()" in graphed.report.reason.cause
    models, _, graphed = both(optimizer=lambda model: Renamed(model.parameters(), lr=3e-2))
    assert_trained_alike(*models)
    assert graphed.report.replays >= 30


def averaging(averages):
    def make(model, optimizer):
        inner = plain(model, optimizer)
        average = copy.deepcopy(model).requires_grad_(False)
        averages.append(average)

        def train(batch):
            loss = inner(batch)
            with torch.no_grad():
                for mine, its in zip(average.parameters(), model.parameters(), strict=True):
                    mine.lerp_(its, 0.05)
            return loss

        return train

    return make


def test_averaged_weights_in_extra_state_are_averaged_once_per_batch():
    averages = []
    model = perceptron()
    twin = copy.deepcopy(model)
    eager_optimizer, optimizer = adamw(model), adamw(twin)
    eager, inner = averaging(averages)(model, eager_optimizer), averaging(averages)(twin, optimizer)
    graphed = step(inner, model=twin, optimizer=optimizer, extra_state=[averages[1]])
    for batch in batches(40):
        eager(batch), graphed(batch)
    assert_trained_alike(model, twin)
    assert_trained_alike(*averages)
    assert graphed.report.replays >= 30


def test_user_step_hooks_do_not_see_state_creation():
    calls = {}

    def hooked(model):
        optimizer = adamw(model)
        calls[id(optimizer)] = []
        optimizer.register_step_post_hook(lambda own, *_: calls[id(own)].append(len(own.state)))
        return optimizer

    models, optimizers, graphed = both(4, optimizer=hooked)  # The warm-ups, and the first batch with a graph.
    torch.testing.assert_close(weights(models[1]), weights(models[0]), rtol=1e-4, atol=1e-6)
    eager, found = (calls[id(each)] for each in optimizers)
    assert len(eager) == 4
    # Three eager steps; then one dry run, two runs to measure noise, one eager run and one replay
    # to compare, and the step that trains.
    assert len(found) == 3 + 6
    assert graphed.report.replays == 1


def test_an_average_in_a_hook_and_extra_state_follows_the_steps():
    def run(graph):
        model = perceptron()
        optimizer, average = adamw(model), AveragedModel(model)
        optimizer.register_step_post_hook(lambda *_: average.update_parameters(model))
        train = plain(model, optimizer)
        if graph:
            train = step(train, model=model, optimizer=optimizer, extra_state=[average])
        for batch in batches(20):
            train(batch)
        return average

    eager, found = run(False), run(True)
    assert int(eager.n_averaged) == int(found.n_averaged) == 20
    torch.testing.assert_close(weights(found), weights(eager), rtol=1e-4, atol=1e-6)


def test_extra_state_may_be_tensors():
    seen = [torch.zeros(()), torch.zeros(())]

    def make(model, optimizer):
        inner, mine = plain(model, optimizer), seen[len(made)]
        made.append(model)

        def train(batch):
            mine.add_(1)
            return inner(batch)

        return train

    made = []
    _, _, graphed = both(make=make, extra_state=[seen[1]])
    assert graphed.report.replays >= 30
    assert [float(each) for each in seen] == [40, 40]


class Replacing(nn.Sequential):
    def __init__(self, *inner):
        super().__init__(*inner)
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.mean().detach()
        return super().forward(x)


def test_a_replaced_buffer_is_reported_and_correct():
    models, _, graphed = both(model=Replacing(*perceptron()))
    assert_trained_alike(*models)
    assert "replaces a buffer by another tensor (mean)" in graphed.report.reason.cause
    torch.testing.assert_close(models[1].mean, models[0].mean)
    assert float(models[0].mean) != 0


def scaled(scalers, *, item=False, times=1.0):
    def make(model, optimizer):
        scaler = scalers[len(made)]
        made.append(scaler)

        def train(batch):
            optimizer.zero_grad(set_to_none=True)
            loss = times * (model(batch["x"]) - batch["y"]).square().mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            if item and torch.cuda.is_current_stream_capturing():
                raise RuntimeError("called a synchronizing CUDA operation")
            scaler.step(optimizer)
            scaler.update()
            return loss

        return train

    made = []
    return make


def two_scalers(init_scale):
    return [torch.amp.GradScaler("cpu", init_scale=init_scale, growth_interval=10) for _ in range(2)]


def test_a_failed_dry_run_leaves_the_scaler_unchanged():
    scalers = two_scalers(4.0)
    models, _, graphed = both(make=scaled(scalers, item=True), scaler=scalers[1])
    assert_trained_alike(*models)
    assert "waits for the GPU" in graphed.report.reason.cause


def test_overflowing_steps_are_skipped_alike():
    scalers = two_scalers(2.0**127)  # The gradients are infinite in float32 until the scale was halved a few times.
    models, _, graphed = both(make=scaled(scalers, times=64.0), scaler=scalers[1])
    assert_trained_alike(*models)
    assert graphed.report.reason is None, graphed.report
    assert graphed.report.replays >= 30
    assert scalers[0].get_scale() == scalers[1].get_scale() < 2.0**124


def in_turn(shapes):
    return lambda i: 1 + i % shapes


def test_more_shapes_than_graphs_do_not_thrash():
    policy = Policy(warmups=2, min_speedup=0.0, profile=False, max_graphs=8, break_even_replays=32)
    models, _, graphed = both(policy=policy, stream=list(batches(240, rows=in_turn(12))))
    assert_trained_alike(*models)
    assert graphed.report.captures == 8
    assert graphed.report.replays >= 120


def test_a_paid_off_graph_is_evicted_for_another_shape():
    policy = Policy(warmups=2, min_speedup=0.0, profile=False, max_graphs=2, break_even_replays=4)
    models, _, graphed = both(policy=policy, stream=list(batches(120, rows=in_turn(5))))
    assert_trained_alike(*models)
    assert graphed.report.evicted > 0
    assert graphed.report.captures <= 2 + graphed.report.replays / 4
    assert Arena.now.graphs == 2


def test_an_idle_graph_is_evicted_before_it_paid_off():
    policy = Policy(warmups=2, min_speedup=0.0, profile=False, max_graphs=1, break_even_replays=8)
    models, _, graphed = both(policy=policy, stream=list(batches(60, rows=lambda i: 3 if i < 6 else 5)))
    assert_trained_alike(*models)
    assert graphed.report.evicted == 1
    assert graphed.report.replays >= 40


def test_a_batch_beyond_longest_runs_eagerly_and_graphs_stay():
    def rows(i):
        return 40 if i == 20 else 5 + i % 3

    lengths = Lengths(pad={"x": 0, "y": 0}, dim=0, shortest=8, longest=32)

    def summed(model, optimizer):
        def train(batch):
            optimizer.zero_grad(set_to_none=True)
            real = batch["x"].abs().sum(1, keepdim=True) > 0
            loss = ((model(batch["x"]) - batch["y"]).square() * real).sum() / real.sum()
            loss.backward()
            optimizer.step()
            return loss

        return train

    models, _, graphed = both(make=summed, stream=list(batches(40, rows=rows)), lengths=lengths)
    assert_trained_alike(*models)
    assert graphed.report.reason is None, graphed.report
    assert graphed.report.replays == 36


def test_the_padded_batch_is_dry_run():
    seen = []

    def make(model, optimizer):
        inner = plain(model, optimizer)

        def train(batch):
            if torch.cuda.is_current_stream_capturing():
                seen.append(len(batch["x"]))
            return inner(batch)

        return train

    lengths = Lengths(pad={"x": 0, "y": 0}, dim=0, shortest=8)
    _, _, graphed = both(6, make=make, lengths=lengths)
    assert seen == [8]
    assert "differ" in graphed.report.reason.cause, "a mean over padded rows differs"


def test_padding_under_autocast_gets_a_graph_and_a_wrong_value_does_not():
    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(64, 64)
            self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(6))

        def forward(self, ids):
            x = self.words(ids)
            for layer in self.layers:
                x = x + torch.tanh(layer(x))
            return x @ self.words.weight.T

    def make(model, optimizer):
        def train(batch):
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cpu", torch.bfloat16):
                logits = model(batch["ids"])
            loss = nn.functional.cross_entropy(logits.float().flatten(0, 1), batch["labels"].flatten())
            loss.backward()
            optimizer.step()
            return loss

        return train

    def stream():
        for i in range(24):
            ids = torch.randint(0, 64, (2, 41 + (i * 7) % 23), generator=torch.Generator().manual_seed(i))
            yield {"ids": ids, "labels": ids.roll(-1, 1)}

    torch.manual_seed(0)
    model = Words()
    for value, words in ((-100, None), (3, "differ")):
        lengths = Lengths(pad={"ids": 0, "labels": value})
        _, _, graphed = both(make=make, model=copy.deepcopy(model), stream=list(stream()), lengths=lengths)
        if words is None:
            assert graphed.report.reason is None, graphed.report
            assert graphed.report.replays >= 18
        else:
            assert words in graphed.report.reason.cause


def ragged(kind):
    """A nested tensor of three rows of different lengths, or a sparse tensor."""
    if kind == "sparse":
        return torch.eye(4).to_sparse()
    rows = [torch.ones(2, 4), torch.ones(5, 4), torch.ones(1, 4)]
    return torch.nested.nested_tensor(rows, layout=torch.jagged if kind == "jagged" else torch.strided)


@pytest.mark.parametrize("kind", ["strided", "jagged", "sparse"])
@pytest.mark.parametrize("lengths", [None, Lengths(pad={"y": 0}, dim=0)])
def test_a_batch_without_a_fixed_shape_runs_eagerly_with_a_reason(kind, lengths):
    def make(model, optimizer):
        def train(batch):
            optimizer.zero_grad(set_to_none=True)
            rows = [batch["x"].to_dense()] if kind == "sparse" else batch["x"].unbind()
            loss = sum((model(row) - batch["y"]).square().mean() for row in rows)
            loss.backward()
            optimizer.step()
            return loss

        return train

    stream = [{"x": ragged(kind), "y": torch.ones(1)} for _ in range(40)]
    models, _, graphed = both(make=make, stream=stream, lengths=lengths)
    assert_trained_alike(*models)
    assert "the batch has no fixed structure" in graphed.report.reason.cause


def test_changes_are_reset_once_a_graph_paid_off():
    def seldom(i, _, optimizer):
        optimizer.param_groups[0]["weight_decay"] = 0.01 * (i // 12)

    policy = Policy(warmups=2, min_speedup=0.0, profile=False, max_graphs=2, break_even_replays=8)
    models, _, graphed = both(72, each=seldom, policy=policy)
    assert_trained_alike(*models)
    assert graphed.report.reason is None
    assert graphed.report.captures == 6


def test_a_constant_that_always_changes_has_no_graph():
    def always(i, _, optimizer):
        optimizer.param_groups[0]["weight_decay"] = 0.01 * i

    models, _, graphed = both(each=always)
    assert_trained_alike(*models)
    assert "weight_decay of group 0 of the optimizer changed 9 times" in graphed.report.reason.cause


def test_a_failed_capture_is_reported_and_trains_the_batch_once():
    model = perceptron()
    twin = copy.deepcopy(model)
    first, second = adamw(model), adamw(twin)
    eager, graphed = plain(model, first), step(plain(twin, second), model=twin, optimizer=second)

    def refuse():
        raise torch.OutOfMemoryError("CUDA out of memory")

    Arena.now.at_capture = refuse
    for batch in batches(40):
        eager(batch), graphed(batch)
    assert_trained_alike(model, twin)
    assert "not enough memory" in graphed.report.reason.cause
    assert Arena.now.graphs == 0


def test_reading_the_capture_key_is_fast():
    model = nn.Sequential(*(nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2), nn.Linear(2, 2)) for _ in range(167)))
    capture_key = CaptureKey(model, [])
    assert len(list(model.parameters())) == 1002
    took = []
    for _ in range(200):
        began = time.process_time()
        assert capture_key.read()[0] == capture_key.layout
        took.append(time.process_time() - began)
    assert min(took) < 1e-3


def test_comparison_interval_follows_cost_and_is_reported(monkeypatch):
    took_s = {"compared": 0.080, "replay": 0.0054}

    def time_step(run):
        result = run()
        # A comparison returns a Comparison, a replay the loss.
        kind = "compared" if isinstance(result, Comparison) else "replay"
        return result, StepTiming(wall_s=took_s[kind], enqueue_s=0.0)

    monkeypatch.setattr(graph_runner, "time_step", time_step)
    _, _, graphed = both(1060, policy=Policy(warmups=2, min_speedup=0.0, profile=False))
    report = graphed.report
    assert report.verified == 10, "compared at replays 1, 2, 4 ... 512, not yet at 1,000"
    assert report.verified_s == pytest.approx(0.8)
    assert report.schedule.interval == 4939
    assert report.verified_share > 0
    assert "from here on one in 4,939 replays, 0.3 % of their time" in str(report)

    took_s["compared"] = 0.0054
    _, _, graphed = both(1600, policy=Policy(warmups=2, min_speedup=0.0, profile=False))
    assert graphed.report.verified == 11, "compared again 1,000 replays after the last early comparison"


def test_the_users_interval_is_used_as_given():
    _, _, graphed = both(60, policy=Policy(warmups=2, min_speedup=0.0, profile=False, verify_every=7))
    assert graphed.report.replays == 57
    assert graphed.report.verified == 3 + 57 // 7, "compared at replays 1, 2, 4 and every seventh"
    assert "one in 7 replays" in str(graphed.report)
