"""Emulates CUDA graphs on a CPU, to test the decisions of `farrier.torch.step`.

A "graph" here is the step function run again, with everything that a CUDA graph captures restored
during a replay: tensor addresses, frozen parameters, training modes, the objects that the
optimizers read their rates from, and the gate. As on a GPU, the capture itself runs nothing. Host
random numbers are captured too: a replay sees torch's CPU generator and Python's as the capture
did, and does not advance them. Dropout draws from a "device" generator, as on a GPU, which replays
do advance.
"""

from __future__ import annotations

import contextlib
import random
from unittest import mock

import torch
from torch import nn

import farrier.torch
from farrier.torch import Policy, step_sandbox, training_step
from farrier.torch.batch import rebuild

FAST = Policy(warmups=2, min_speedup=0.0, profile=False, verify_every=50)

#: The RNG of the emulated GPU.
DEVICE = torch.Generator()


def dropout(x, p=0.5, training=True, inplace=False):
    """Torch's dropout, drawing from the device generator."""
    return x * (torch.rand(x.shape, generator=DEVICE) >= p) / (1 - p) if training and p else x


class Arena:
    """No stream and no pool. `at_capture` is called where a GPU would record."""

    now: Arena

    def __init__(self, device):
        self.device = device
        self.at_capture = lambda: None
        self.graphs = 0
        self.waits = []
        Arena.now = self

    on_stream_and_pool = on_stream = contextlib.nullcontext


class CapturedStep:
    graph_runner = None  # Set by `step`.

    def __init__(self, arena, batch):
        self.arena, self.replays, self.last_used_call, self.noise_history = arena, 0, 0, None
        arena.graphs += 1

    def record_gradients(self, gradients):
        self._gradients = [(name, gradient.clone()) for name, gradient in gradients]

    def capture(self, fn):
        self.arena.at_capture()
        graph_runner = CapturedStep.graph_runner
        self._fn, self._hooks = fn, graph_runner._sandbox.hooks
        self._groups = [(group, group["lr"]) for each in graph_runner._optimizers for group in each.param_groups]
        self._modules = [(module, module.training) for module in graph_runner._model.modules()]
        self._parameters = [(p, p.data, p.requires_grad) for p in graph_runner._model.parameters()]
        self._host = torch.get_rng_state(), random.getstate()

    def replay(self, batch, *, wait=False):
        self.arena.waits.append(wait)
        rates = [group["lr"] for group, _ in self._groups]
        training = [module.training for module, _ in self._modules]
        parameters = [(p.data, p.requires_grad) for p, *_ in self._parameters]
        host = torch.get_rng_state(), random.getstate()
        self._draw_from(*self._host)
        self._bake((rate for _, rate in self._groups), (t for _, t in self._modules), (p[1:] for p in self._parameters))
        try:
            with self._hooks.observing(self.record_gradients):
                self._result = self._fn(batch)
        finally:
            self._bake(rates, training, parameters)
            self._draw_from(*host)

    @staticmethod
    def _draw_from(torchs, pythons):
        torch.set_rng_state(torchs)
        random.setstate(pythons)

    def _bake(self, rates, training, parameters):
        for (group, _), rate in zip(self._groups, rates, strict=True):
            group["lr"] = rate
        for (module, _), mode in zip(self._modules, training, strict=True):
            module.training = mode
        for (p, *_), (data, trained) in zip(self._parameters, parameters, strict=True):
            p.data, p.requires_grad = data, trained

    def replayed_gradients(self):
        return iter(self._gradients)

    @property
    def result(self):
        return rebuild(self._result, lambda _, leaf: leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf)

    def reset(self):
        self.arena.graphs -= 1


@contextlib.contextmanager
def emulated():
    """Inside the context, `step` treats the CPU as a GPU."""
    cuda = {
        "synchronize": lambda *_: None,
        "empty_cache": lambda: None,
        "get_rng_state": lambda *_: DEVICE.get_state(),
        "set_rng_state": lambda state, *_: DEVICE.set_state(state) and None,
        "manual_seed_all": lambda seed: DEVICE.manual_seed(seed) and None,  # Called by torch.manual_seed.
        "get_sync_debug_mode": lambda: 0,
        "set_sync_debug_mode": lambda _: None,
        "is_current_stream_capturing": lambda: False,
    }
    with (
        mock.patch.multiple(torch.cuda, **cuda),
        mock.patch.object(nn.functional, "dropout", dropout),
        mock.patch.multiple(step_sandbox, Arena=Arena, CapturedStep=CapturedStep),
        mock.patch.object(training_step, "_not_on_one_gpu", return_value=None),
    ):
        yield


def step(fn, **more):
    made = farrier.torch.step(fn, **{"policy": FAST, **more})
    CapturedStep.graph_runner = made._graph_runner
    return made


def perceptron(seed=0, dropout=0.0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 1))


def plain(model, optimizer):
    def train(batch):
        optimizer.zero_grad(set_to_none=True)
        loss = (model(batch["x"]) - batch["y"]).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return train


def batches(count, rows=lambda _: 6, kinds=3, seed=0):
    """That many batches, of which `kinds` are distinct, so that training progress shows."""
    for i in range(count):
        numbers = torch.Generator().manual_seed(1000 * seed + i % kinds)
        x = torch.randn(rows(i), 4, generator=numbers)
        yield {"x": x, "y": x.sum(1, keepdim=True).sin()}


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def assert_trained_alike(eager, graphed, losses=None):
    """Same final weights, and different from the initial ones."""
    torch.testing.assert_close(weights(graphed), weights(eager), rtol=1e-4, atol=1e-6)
    assert not torch.allclose(weights(eager), weights(perceptron()), rtol=1e-2, atol=1e-2)
