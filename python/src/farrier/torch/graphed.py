"""A whole training step as one CUDA graph, verified against the eager step it replaces."""

from __future__ import annotations

import functools
import gc
import logging
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from farrier.torch.batch import padded, signature, tensors
from farrier.torch.capture import Arena, Captured, detached, on_device
from farrier.torch.explain import Reason, reason
from farrier.torch.lengths import Lengths, Recent
from farrier.torch.measure import profiled, timed
from farrier.torch.optimizer import Rates, Watch, constants, prepare
from farrier.torch.policy import Boundness, Policy, verification_due
from farrier.torch.report import StepReport
from farrier.torch.undo import Undo
from farrier.torch.verify import Gradients, compare

log = logging.getLogger("farrier.torch")

Key = tuple[object, ...]


class Step:
    """What `farrier.torch.step` returns: call it as the function it wraps."""

    def __init__(
        self,
        fn: Callable[[Any], Any],
        model: nn.Module,
        optimizers: list[Optimizer],
        scaler: Any,
        lengths: Lengths | None,
        policy: Policy,
        reason: Reason | None,
    ) -> None:
        self.report = StepReport(reason=reason)
        self._fn, self._model, self._optimizers, self._scaler = fn, model, optimizers, scaler
        self._lengths, self._policy = lengths, policy
        self._seen: Counter[Key] = Counter()
        self._refused: set[Key] = set()
        self._warm = 0
        self._changes = 0
        self._graphs: Recent[Key, Captured] = Recent(policy.graphs)
        if reason is None:
            self._begin()

    def _begin(self) -> None:
        names: dict[Tensor, str] = {parameter: name for name, parameter in self._model.named_parameters()}
        for optimizer in self._optimizers:
            for place, parameter in enumerate(p for group in optimizer.param_groups for p in group["params"]):
                names.setdefault(parameter, f"parameter {place} of {type(optimizer).__name__}")
        self._device = next(iter(names)).device
        self._arena = Arena(self._device)
        self._prepare()
        self._watch = Watch(self._optimizers, names)
        self._watch.make_state(self._optimizers)
        for optimizer in self._optimizers:
            when_loaded: Any = optimizer.register_load_state_dict_post_hook
            when_loaded(functools.partial(self._loaded, "the optimizer's state was loaded"))
        when_loaded = self._model.register_load_state_dict_post_hook
        when_loaded(functools.partial(self._loaded, "the model's weights were loaded"))

    def _loaded(self, why: str, *_: object) -> None:
        self.forget(why)

    def _prepare(self) -> None:
        for optimizer in self._optimizers:
            prepare(optimizer)
        self._rates = Rates(self._optimizers)
        self._constants = constants(self._optimizers)

    @property
    def graphed(self) -> bool:
        """Whether the last shapes run as a graph."""
        return len(self._graphs) > 0

    def forget(self, why: str) -> None:
        """Gives up every graph; they are made anew. Needed after weights or state were put elsewhere in memory."""
        if self.report.reason is None:
            log.info("graphs are made anew: %s", why)
            self._drop_graphs()
            self._prepare()

    def __call__(self, batch: Any) -> Any:
        """Runs one training step. What `fn` returns is detached, and is the caller's to keep."""
        self.report.steps += 1
        if self.report.reason is not None:
            return detached(self._fn(batch))
        try:
            ready = padded(batch, self._lengths) if self._lengths else batch
            key = (signature(ready), self._model.training)
        except (TypeError, ValueError) as err:
            return self._give_up(Reason(f"the batch has no fixed form: {err}", "give tensors of known names"), batch)
        self._look_at_constants()
        if self.report.reason is not None:
            return detached(self._fn(batch))
        if key in self._refused:
            return self._eager(batch)
        graph = self._graphs.get(key)
        if graph is not None:
            return self._replayed(graph, batch, ready)
        return self._not_yet(key, batch, ready)

    def _look_at_constants(self) -> None:
        """Numbers of the optimizer that graphs bake in: a change makes them stale, and one every time has no graph."""
        now = constants(self._optimizers)
        if now == self._constants:
            return
        changed = sorted(key for key in now.keys() | self._constants.keys() if now.get(key) != self._constants.get(key))
        self._constants = now
        self._changes += 1
        self._drop_graphs()
        if self._changes > self._policy.graphs:
            what = f"{', '.join(changed)} of the optimizer changed {self._changes} times, and a graph bakes it in"
            self._stop(Reason(what, "keep it fixed (cycle_momentum=False); only the learning rate may change"))

    def _replayed(self, graph: Captured, batch: Any, ready: Any) -> Any:
        if verification_due(graph.replays + 1, self._policy.verify_every):
            return self._verified(graph, batch, ready)
        return self._replay(graph, ready)

    def _replay(self, graph: Captured, ready: Any) -> Any:
        self._rates.refresh()
        graph.replay(ready)
        graph.replays += 1
        self.report.replays += 1
        return graph.result

    def _not_yet(self, key: Key, batch: Any, ready: Any) -> Any:
        """A shape without a graph: warm up, look whether a graph pays, and make one when the shape comes back."""
        self._seen[key] += 1
        if self._warm <= self._policy.warmups:
            return self._warm_up(batch)
        if len(self._seen) >= self._policy.shapes and max(self._seen.values()) < self._policy.sights:
            what = f"the last {len(self._seen)} batches had {len(self._seen)} shapes, and none came back"
            return self._give_up(Reason(what, "pad to buckets with lengths=farrier.torch.Lengths(...)"), batch)
        if self._seen[key] < self._policy.sights:
            return self._eager(batch)
        return self._made(key, batch, ready)

    def _warm_up(self, batch: Any) -> Any:
        """An eager step that trains, is timed, and the last of which says what a graph would bring."""
        first, last = self._warm == 0, self._warm == self._policy.warmups
        self._warm += 1
        if first:  # What is compiled and looked up in the first step is not to be timed.
            return self._eager(batch)
        before = self.report.eager
        if last and self._policy.profile and before is not None:
            result, found = profiled(lambda: self._eager(batch), before.wall_s, before.enqueue_s)
        else:
            result, found = timed(lambda: self._eager(batch))
        if before is None or found.busy_s is not None or found.wall_s < before.wall_s:
            self.report.eager = found
        if last and self.report.reason is None:
            self._judge(self.report.eager or found)
        return result

    def _judge(self, found: Boundness) -> None:
        log.info("%s", found)
        if found.gain is not None and found.gain < self._policy.gain:
            self._stop(Reason(f"the step waits for the GPU and not for launches: {found}", "larger gains are elsewhere"))

    def _eager(self, batch: Any) -> Any:
        with self._arena.inside():
            return self._counted(batch)

    def _counted(self, batch: Any) -> Any:
        """Runs the step, and looks whether it steps each optimizer once: a graph can do nothing else."""
        before = self._watch.calls
        result = detached(self._fn(batch))
        steps = self._watch.calls - before
        if steps != len(self._optimizers):
            what = f"a call of the step made {steps} optimizer steps, and {len(self._optimizers)} are there to be made"
            self._stop(Reason(what, "give all micro-batches of an update to one call, and step once in it"))
        if not tensors(result):
            self._stop(Reason("the step returns no tensor, so nothing can be compared", "return the loss"))
        return result

    def _made(self, key: Key, batch: Any, ready: Any) -> Any:
        """Captures the step for this shape. Whatever fails, this batch is trained on, once."""
        undo = Undo(self._model, self._optimizers, self._scaler, self._device)
        graph = Captured(self._arena, ready)
        try:
            if self.report.captures:
                self._shadow(batch, undo, lambda _: None)
            else:
                self.report.noise = self._noise(batch, undo)
            with self._watch.looking(graph.note_gradients), _no_collection():
                graph.capture(self._fn)
            undo.all()
        except Exception as err:
            graph.reset()
            undo.all()
            self._survive(err)
            return self._refuse(key, reason(err), batch)
        except BaseException:
            graph.reset()
            undo.all()
            raise
        self.report.captures += 1
        for gone in self._graphs.put(key, graph):
            self.report.evicted += 1
            gone.reset()
        return self._verified(graph, batch, ready)

    def _verified(self, graph: Captured, batch: Any, ready: Any) -> Any:
        """The step on this batch, compared first: eagerly and as a graph, neither of which trains; then for good."""
        undo = Undo(self._model, self._optimizers, self._scaler, self._device)
        self._rates.refresh()
        expected = Gradients()
        try:
            loss = self._shadow(batch, undo, expected.take)
            self._watch.close(True)
            graph.replay(ready)
            found = compare(expected, graph.found(), loss, _loss(graph.result), self.report.noise)
        except Exception as err:
            self._survive(err)
            return self._give_up(reason(err), batch)
        finally:
            self._watch.close(False)
            undo.all()
        self.report.last = found
        self.report.verified += 1
        if not found.same:
            self._drop_graphs()
            what = f"graph and eager step differ after {graph.replays} replays: {found}"
            remedy = "the step uses what a graph bakes in: a Python number that changes, state beside model and optimizer"
            return self._give_up(Reason(what, remedy), batch)
        result, took = timed(lambda: self._replay(graph, ready))
        self._note_speed(graph, took.wall_s)
        return result

    def _note_speed(self, graph: Captured, wall_s: float) -> None:
        """Replays 2 and later count; the first one uploads the graph."""
        if graph.replays >= 2 and (self.report.graph_s is None or wall_s < self.report.graph_s):
            self.report.graph_s = wall_s

    def _noise(self, batch: Any, undo: Undo) -> float:
        """How far two eager runs of one batch lie apart: atomic additions come in any order."""
        first = Gradients()
        loss = self._shadow(batch, undo, first.take)
        differences: list[float] = []

        def look(gradients: list[tuple[str, Tensor]]) -> None:
            differences.append(compare(first, gradients, loss, loss).worst)

        self._shadow(batch, undo, look)
        return max(differences, default=0.0)

    def _shadow(self, batch: Any, undo: Undo, look: Callable[[list[tuple[str, Tensor]]], None]) -> float:
        """The eager step on this batch, which trains nothing and may not wait for the GPU. Gives its loss."""
        placed = on_device(batch, self._device)

        def show(gradients: list[tuple[str, Tensor]]) -> None:
            with _synchronising("default"):
                look(gradients)

        self._watch.close(True)
        try:
            with self._arena.inside(), self._watch.looking(show), _no_collection(), _synchronising("error"):
                result = self._fn(placed)
            return _loss(result)
        finally:
            self._watch.close(False)
            undo.all()

    def _survive(self, err: BaseException) -> None:
        """After some errors the CUDA context is lost: then nothing can go on, and that is said."""
        try:
            torch.cuda.synchronize()
        except RuntimeError as lost:
            what = f"the CUDA context is lost after an error in the step ({err}): restart from the last checkpoint"
            raise RuntimeError(what) from lost

    def _refuse(self, key: Key, why: Reason, batch: Any) -> Any:
        """No graph for this shape; where none ever was, none at all."""
        if not self.report.captures:
            return self._give_up(why, batch)
        self._refused.add(key)
        self.report.refused.append(why)
        log.warning("eager for batches of one shape: %s", why)
        return self._eager(batch)

    def _give_up(self, why: Reason, batch: Any) -> Any:
        self._stop(why)
        return detached(self._fn(batch))

    def _stop(self, why: Reason) -> None:
        """Eager from here on."""
        if self.report.reason is None:
            log.warning("eager from here on: %s", why)
            self.report.reason = why
            self._drop_graphs()
            self._watch.remove()

    def _drop_graphs(self) -> None:
        for graph in self._graphs.clear():
            graph.reset()


def _loss(result: Any) -> float:
    """The first tensor of what the step returned, as a number."""
    return float(next(iter(tensors(result).values())).detach().float().mean())


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keeps Python from collecting garbage: a graph or pool of old that is destroyed now waits for the GPU, and aborts."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextmanager
def _synchronising(mode: str) -> Iterator[None]:
    """What torch does when an operation waits for the GPU: `error` names the line."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode(mode)
    try:
        yield
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.cuda.set_sync_debug_mode(before)


def step(
    fn: Callable[[Any], Any],
    *,
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    scaler: Any = None,
    compile: bool | Mapping[str, Any] = False,
    graph: bool = True,
    lengths: Lengths | None = None,
    policy: Policy | None = None,
) -> Step:
    """Wraps `fn(batch) -> loss`, a whole training step: forward, backward, clipping, optimizer, zero-grad.

    The first calls run eagerly and are measured. Where the GPU waits for launches the step becomes one CUDA graph for
    each shape of batch, compared with the eager step on the same batch before it counts and again later on. What cannot
    be captured is explained in the log and in `.report`, and runs eagerly.

    Args:
        fn: the step. It must depend on nothing but the batch, the model, the optimizer and torch's random numbers, and
            step the optimizer once. For gradient accumulation give all micro-batches of an update to one call.
        model: whose gradients are compared.
        optimizer: one or several; made capturable in place, the learning rate becomes a tensor on the device.
        scaler: the GradScaler of float16 runs.
        compile: whether the model is compiled in place first, or the keywords of `Module.compile`.
        graph: False runs everything eagerly.
        lengths: pads batches of varying length to buckets.
        policy: when to capture, verify and give up.

    Needs torch 2.5 (`torch.cuda.MemPool`, learning rates as tensors in schedulers).
    """
    optimizers = [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)
    policy = policy or Policy()
    if isinstance(model, nn.parallel.DistributedDataParallel):
        policy = Policy(**{**vars(policy), "warmups": max(11, policy.warmups)})
    if compile:
        model.compile(**(dict(compile) if isinstance(compile, Mapping) else {}))
    why = _hindrance(model, optimizers, graph)
    return Step(fn, model, optimizers, scaler, lengths, policy, why)


def _hindrance(model: nn.Module, optimizers: list[Optimizer], graph: bool) -> Reason | None:
    """What is known beforehand to keep a step from being captured."""
    if not graph:
        return Reason("graph=False was given", "give graph=True")
    if not optimizers or not any(True for _ in model.parameters()):
        return Reason("there is no optimizer, or the model has no parameters", "give both")
    devices = {parameter.device for parameter in model.parameters()}
    if len(devices) != 1 or next(iter(devices)).type != "cuda":
        return Reason(f"the model is on {', '.join(sorted(map(str, devices)))}", "graphs need one CUDA device")
    for optimizer in optimizers:
        if not isinstance(optimizer, (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)) and not all(
            "capturable" in group for group in optimizer.param_groups
        ):
            name = type(optimizer).__name__
            return Reason(f"{name} has no `capturable`", "use an optimizer of torch.optim that has, such as AdamW")
    return None
