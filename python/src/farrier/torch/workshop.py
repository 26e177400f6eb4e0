"""Where a step is warmed up, judged, captured, compared and replayed. It ends where the step must run eagerly for good."""

from __future__ import annotations

import functools
import logging
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
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
Look = Callable[[list[tuple[str, Tensor]]], None]


class GiveUp(Exception):
    """There is no graph for this step, and why. Where the batch was `trained` on all the same, `result` came of it."""

    def __init__(self, why: Reason, *, trained: bool = False, result: Any = None) -> None:
        super().__init__(str(why))
        self.why, self.trained, self.result = why, trained, result


class Workshop:
    """One step function with its graphs."""

    def __init__(
        self,
        fn: Callable[[Any], Any],
        model: nn.Module,
        optimizers: list[Optimizer],
        scaler: Any,
        lengths: Lengths | None,
        policy: Policy,
        report: StepReport,
    ) -> None:
        self._fn, self._model, self._optimizers, self._scaler = fn, model, optimizers, scaler
        self._lengths, self._policy, self._report = lengths, policy, report
        self._seen: Counter[Key] = Counter()
        self._refused: set[Key] = set()
        self._warm = 0
        self._changes = 0
        self._graphs: Recent[Key, Captured] = Recent(policy.graphs)
        names = _names(model, optimizers)
        self._device = next(iter(names)).device
        self._arena = Arena(self._device)
        self._prepare()
        self._watch = Watch(optimizers, names)
        self._watch.make_state(optimizers)
        self._hooks = [self._when_loaded(each, "the optimizer's state was loaded") for each in optimizers]
        self._hooks.append(self._when_loaded(model, "the model's weights were loaded"))

    def _when_loaded(self, owner: Any, why: str) -> Any:
        this = weakref.ref(self)

        def forget(*_: object) -> None:
            workshop = this()
            if workshop is not None:
                workshop.forget(why)

        return owner.register_load_state_dict_post_hook(forget)

    def _prepare(self) -> None:
        for optimizer in self._optimizers:
            prepare(optimizer)
        self._rates = Rates(self._optimizers)
        self._constants = constants(self._optimizers)

    def forget(self, why: str) -> None:
        """Gives up every graph; they are made anew."""
        log.info("graphs are made anew: %s", why)
        self._drop_graphs()
        self._prepare()

    def close(self) -> None:
        """Takes the hooks away and gives the pool back, which holds as much memory as a step needs, gradients and all."""
        self._drop_graphs()
        for optimizer in self._optimizers:
            optimizer.zero_grad(set_to_none=True)
        self._watch.remove()
        for hook in self._hooks:
            hook.remove()
        del self._arena
        torch.cuda.synchronize()
        torch.cuda.empty_cache()

    def __len__(self) -> int:
        return len(self._graphs)

    def run(self, batch: Any) -> Any:
        """Trains on the batch, once. Raises `GiveUp` where that is the end of graphs."""
        try:
            ready = padded(batch, self._lengths) if self._lengths else batch
            key = (signature(ready), self._model.training)
        except (TypeError, ValueError) as err:
            raise GiveUp(Reason(f"the batch has no fixed form: {err}", "give tensors of known names")) from err
        self._look_at_constants()
        if key in self._refused:
            return self._eager(batch)
        graph = self._graphs.get(key)
        if graph is None:
            return self._not_yet(key, batch, ready)
        if verification_due(graph.replays + 1, self._policy.verify_every):
            return self._verified(graph, batch, ready)
        return self._replay(graph, ready)

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
            raise GiveUp(Reason(what, "keep it fixed (cycle_momentum=False); only the learning rate may change"))

    def _replay(self, graph: Captured, ready: Any) -> Any:
        self._rates.refresh()
        graph.replay(ready)
        graph.replays += 1
        self._report.replays += 1
        return graph.result

    def _not_yet(self, key: Key, batch: Any, ready: Any) -> Any:
        """A shape without a graph: warm up, look whether a graph pays, and make one when the shape comes back."""
        self._seen[key] += 1
        if self._warm <= self._policy.warmups:
            return self._warm_up(batch)
        if len(self._seen) >= self._policy.shapes and max(self._seen.values()) < self._policy.sights:
            what = f"the last {len(self._seen)} batches had {len(self._seen)} shapes, and none came back"
            raise GiveUp(Reason(what, "pad to buckets with lengths=farrier.torch.Lengths(...)"))
        if self._seen[key] < self._policy.sights:
            result = self._eager(batch)
            torch.cuda.empty_cache()  # What a step needs lies in the pool already, and is not to be held twice.
            return result
        return self._made(key, batch, ready)

    def _warm_up(self, batch: Any) -> Any:
        """An eager step that trains and is timed; the last of them says what a graph would bring."""
        first, last = self._warm == 0, self._warm == self._policy.warmups
        self._warm += 1
        if first:  # What is compiled and looked up in the first step is not to be timed.
            return self._eager(batch)
        run = functools.partial(self._eager, batch)
        before = self._report.eager
        if last and self._policy.profile and before is not None:
            result, found = profiled(run, before.wall_s, before.enqueue_s)
        else:
            result, found = timed(run)
        if before is None or found.busy_s is not None or found.wall_s < before.wall_s:
            self._report.eager = before = found
        if last:
            self._judge(before, result)
        return result

    def _judge(self, found: Boundness, result: Any) -> None:
        log.info("%s", found)
        if found.gain is not None and found.gain < self._policy.gain:
            what = f"the step waits for the GPU and not for launches: {found}"
            raise GiveUp(Reason(what, "larger gains are elsewhere"), trained=True, result=result)

    def _eager(self, batch: Any) -> Any:
        """A step that trains. It must step each optimizer once: a graph can do nothing else.

        Once there is a graph it runs outside the pool: what it makes and somebody keeps (the loss, a table for a longer
        batch) would lie where a graph of before writes.
        """
        before = self._watch.calls
        with self._arena.beside() if self._report.captures else self._arena.inside():
            result = detached(self._fn(batch))
        steps = self._watch.calls - before
        if steps != len(self._optimizers):
            what = f"a call of the step made {steps} optimizer steps, and {len(self._optimizers)} are there to be made"
            remedy = "give all micro-batches of an update to one call, and step once in it"
            raise GiveUp(Reason(what, remedy), trained=True, result=result)
        if not tensors(result):
            why = Reason("the step returns no tensor, so nothing can be compared", "return the loss")
            raise GiveUp(why, trained=True, result=result)
        return result

    def _made(self, key: Key, batch: Any, ready: Any) -> Any:
        """Captures the step for this shape. Whatever fails, this batch is trained on, once."""
        undo = Undo(self._model, self._optimizers, self._scaler, self._device)
        graph = Captured(self._arena, ready)
        try:
            self._shadow(batch, undo, lambda _: None, as_captured=True)
            if not self._report.captures:
                self._report.noise = self._noise(batch, undo)
            with self._watch.looking(graph.note_gradients):
                graph.capture(self._fn)
            undo.all()
        except GiveUp:
            graph.reset()
            raise
        except Exception as err:
            graph.reset()
            undo.all()
            survive(err)
            return self._refuse(key, reason(err), batch)
        except BaseException:
            graph.reset()
            undo.all()
            raise
        self._report.captures += 1
        for gone in self._graphs.put(key, graph):
            self._report.evicted += 1
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
            found = compare(expected, graph.found(), loss, _loss(graph.result), self._report.noise)
        except Exception as err:
            survive(err)
            raise GiveUp(reason(err)) from err
        finally:
            self._watch.close(False)
            undo.all()
        self._report.last = found
        self._report.verified += 1
        if not found.same:
            what = f"graph and eager step differ after {graph.replays} replays: {found}"
            remedy = "the step uses what a graph bakes in: a Python number that changes, state beside model and optimizer"
            raise GiveUp(Reason(what, remedy))
        result, took = timed(functools.partial(self._replay, graph, ready))
        if graph.replays >= 2:  # The first one uploads the graph.
            self._report.graph_s = min(took.wall_s, self._report.graph_s or took.wall_s)
        return result

    def _noise(self, batch: Any, undo: Undo) -> float:
        """How far two eager runs of one batch lie apart: atomic additions come in any order. More is no noise."""
        first, second = Gradients(), Gradients()
        loss = self._shadow(batch, undo, first.take)
        again = self._shadow(batch, undo, second.take)
        pairs = ((name, gradient.to(self._device)) for name, gradient in second.held.items())
        found = compare(first, pairs, loss, again)
        if not found.same:
            what = f"two eager runs of one batch differ: {found}"
            remedy = "the step must depend on nothing but the batch, the model, the optimizer and torch's random numbers"
            raise GiveUp(Reason(what, remedy))
        return found.worst

    def _shadow(self, batch: Any, undo: Undo, look: Look, *, as_captured: bool = False) -> float:
        """The eager step on this batch, which trains nothing. Gives its loss.

        `as_captured` runs it as a capture would: code that asks is told that it is captured, and may not wait for the GPU.
        """
        placed = on_device(batch, self._device)
        self._watch.close(True)
        try:
            with self._arena.inside(), self._watch.looking(look), _as_captured(as_captured):
                result = self._fn(placed)
            return _loss(result)
        finally:
            self._watch.close(False)
            undo.all()

    def _refuse(self, key: Key, why: Reason, batch: Any) -> Any:
        """No graph for this shape; where none ever was, none at all."""
        if not self._report.captures:
            raise GiveUp(why)
        self._refused.add(key)
        self._report.refused.append(why)
        log.warning("eager for batches of one shape: %s", why)
        return self._eager(batch)

    def _drop_graphs(self) -> None:
        for graph in self._graphs.clear():
            graph.reset()


def _names(model: nn.Module, optimizers: list[Optimizer]) -> dict[Tensor, str]:
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    for optimizer in optimizers:
        for place, parameter in enumerate(p for group in optimizer.param_groups for p in group["params"]):
            names.setdefault(parameter, f"parameter {place} of {type(optimizer).__name__}")
    return names


def _loss(result: Any) -> float:
    """The first tensor of what the step returned, as a number."""
    return float(next(iter(tensors(result).values())).detach().float().mean())


def survive(err: BaseException) -> None:
    """After some errors the CUDA context is lost: then nothing can go on, and that is said."""
    try:
        torch.cuda.synchronize()
    except RuntimeError as lost:
        what = f"the CUDA context is lost after an error in the step ({err}): restart from the last checkpoint"
        raise RuntimeError(what) from lost


@contextmanager
def _as_captured(wanted: bool) -> Iterator[None]:
    """Who asks whether this is a capture hears yes, and an operation that waits for the GPU is an error with its line."""
    if not wanted:
        yield
        return
    before, asked = torch.cuda.get_sync_debug_mode(), torch.cuda.is_current_stream_capturing
    torch.cuda.is_current_stream_capturing = lambda: True
    _set_sync_debug("error")
    try:
        yield
    finally:
        torch.cuda.is_current_stream_capturing = asked
        _set_sync_debug(before)


def _set_sync_debug(mode: int | str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # It warns of being a prototype, each time.
        torch.cuda.set_sync_debug_mode(mode)
