"""Runs of the step that leave no trace: the rehearsal of a capture, the capture, and comparisons."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from farrier.torch.agreement import Ranks
from farrier.torch.batch import tensors
from farrier.torch.capture import Arena, Captured, on_device, survive
from farrier.torch.comparison import Comparison, settle
from farrier.torch.explain import GiveUp, Reason, eager_runs_differ, reason
from farrier.torch.generators import HostGenerators
from farrier.torch.optimizer import Look, Rates, Watch
from farrier.torch.rehearsal import as_captured
from farrier.torch.undo import Also, Undo
from farrier.torch.verify import PADDED, Gradients, Measured, Measuring

#: Whether the step draws from a generator of the host or a thread beside it does (or the compiler, once) shows when it is
#: run again: the step does so each time, and who loads data ahead stops when there is enough of it.
PAUSES_S = (0.0, 0.05, 0.2, 0.5)


class Trial:
    """A step function, and what it takes to run it without training."""

    def __init__(
        self, fn: Callable[[Any], Any], model: nn.Module, optimizers: list[Optimizer], scaler: Any, also: Also
    ) -> None:
        self._fn, self._model, self._optimizers, self._scaler, self._also = fn, model, optimizers, scaler, also
        self.device = next(model.parameters()).device
        self.ranks, self.arena = Ranks(model), Arena(self.device)
        self.watch, self.rates = Watch(optimizers, names_of(model, optimizers)), Rates(optimizers)

    def renew(self) -> None:
        """Sees the optimizers as they are now. Graphs of before read other rates and another gate."""
        self.watch.remove()
        self.watch = Watch(self._optimizers, names_of(self._model, self._optimizers))
        self.rates = Rates(self._optimizers)

    def undo(self) -> Undo:
        """Takes what a run may change."""
        return Undo(self._model, self._optimizers, self._scaler, self.device, self._also)

    def attempt(self, act: Callable[[Undo], None]) -> Reason | None:
        """Does it, leaves no trace, and says why it failed, if it did."""
        undo = self.undo()
        try:
            act(undo)
        except GiveUp as err:
            return err.why
        except Exception as err:
            survive(err)
            return reason(err)
        finally:
            undo.all()
        return None

    def rehearse(self, ready: Any, undo: Undo) -> bool:
        """Runs the step as a capture would. Gives whether an optimizer made state for it."""
        replaced, made_state, moved = self._rehearsed(ready, undo)
        for pause_s in PAUSES_S if moved else ():
            time.sleep(pause_s)
            again = self._rehearsed(ready, undo)[2]
            moved = [each for each in moved if each in again]
        if moved:
            undo.host.restore()
            what = f"the step draws random numbers on the host ({', '.join(moved)}), and a graph repeats what came of them"
            remedy = "draw on the GPU, or before the step and put it in the batch; threads: from a generator of their own"
            raise GiveUp(Reason(what, remedy))
        if replaced:
            what = f"the step puts another tensor in the place of a buffer ({', '.join(replaced[:3])})"
            raise GiveUp(Reason(what, "write to the buffer in place: buffer.copy_(...), buffer.lerp_(...)"))
        return made_state

    def _rehearsed(self, ready: Any, undo: Undo) -> tuple[list[str], bool, list[str]]:
        """Buffers that were replaced, whether state was made, and generators of the host that were drawn from.

        No comparison sees the last: each begins with all generators as they were, so that the same comes of them.
        """
        before = HostGenerators()
        seen: list[tuple[list[str], bool, list[str]]] = []
        look = lambda: seen.append((undo.replaced_buffers(), undo.made_state(), before.moved()))  # noqa: E731
        self._run(ready, undo, None, alone=True, rehearsed=True, afterwards=look)
        return seen[0]

    def noise(self, ready: Any, undo: Undo) -> float:
        """How far two eager runs of one batch lie apart: atomic additions come in any order. More is no noise."""
        reference = Gradients()
        loss = self._run(ready, undo, reference.take, alone=True)
        found = self._measured(ready, undo, reference, alone=True).repeats(loss)
        if not found.same:
            raise GiveUp(eager_runs_differ(found))
        return found.worst

    def captured(self, ready: Any) -> Captured:
        """The step as a graph for batches like this one."""
        graph = Captured(self.arena, ready)
        try:
            with self.rates.on_device(), self.watch.looking(graph.note_gradients):
                graph.capture(self._fn)
        except BaseException:
            graph.reset()
            raise
        return graph

    def compared(self, graph: Captured, batch: Any, ready: Any) -> Comparison:
        """The graph against the eager step; where batches are padded (`ready`), padded against as it came as well.

        One eager run is the reference. As long as the replays and eager runs so far do not settle it, on any rank, there
        is another one of each (`settle`). What was learned of the noise is left with the graph.
        """
        undo, reference, padding = self.undo(), Gradients(), None
        try:
            loss = self._run(ready, undo, reference.take)
            if ready is not batch:
                padding = self._measured(batch, undo, reference).within(PADDED, PADDED, loss)
            evidence = self._replayed(graph, ready, undo, reference).evidence(loss)
            found = settle(
                evidence,
                graph.noise,
                eager_run=lambda: self._measured(ready, undo, reference).add_to(evidence, eager=True),
                replay=lambda: self._replayed(graph, ready, undo, reference).add_to(evidence, eager=False),
                agreed=self.ranks.all,
            )
        finally:
            self.watch.close(False)
            undo.all()
        if found.same and found.kept is not None:
            graph.noise = found.kept
        return found if padding is None or padding.same else padding

    def _measured(self, batch: Any, undo: Undo, reference: Gradients, *, alone: bool = False) -> Measured:
        """An eager run against the reference, measured where its gradients lie."""
        measuring = Measuring(reference)
        return measuring.done(self._run(batch, undo, measuring.take, alone=alone))

    def _replayed(self, graph: Captured, ready: Any, undo: Undo, reference: Gradients) -> Measured:
        """A replay against the reference, which trains nothing."""
        measuring = Measuring(reference)
        self.rates.refresh()
        self.watch.close(True)
        try:
            graph.replay(ready)
            measuring.take(graph.found())
            return measuring.done(_loss(graph.result))
        finally:
            self.watch.close(False)
            undo.all()

    def _run(
        self,
        batch: Any,
        undo: Undo,
        look: Look | None,
        *,
        alone: bool = False,
        rehearsed: bool = False,
        afterwards: Callable[[], None] = lambda: None,
    ) -> float:
        """The eager step on this batch, which trains nothing. Gives its loss.

        `alone`: gradients are not reduced over the ranks, so that it may fail on one. `rehearsed`: code that asks is told
        that it is captured, and may not wait for the GPU. `afterwards` looks at what was changed, before it is undone.
        """
        placed = on_device(batch, self.device)
        self.watch.close(True)
        try:
            with ExitStack() as around:
                around.enter_context(self.rates.on_device())
                around.enter_context(self.arena.inside())
                around.enter_context(self.watch.looking(look))
                if alone:
                    around.enter_context(self.ranks.silent())
                if rehearsed:
                    around.enter_context(as_captured())
                result = self._fn(placed)
            afterwards()
            return _loss(result)
        finally:
            self.watch.close(False)
            undo.all()


def names_of(model: nn.Module, optimizers: list[Optimizer]) -> dict[Tensor, str]:
    """Every parameter by its name."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    for optimizer in optimizers:
        for place, parameter in enumerate(p for group in optimizer.param_groups for p in group["params"]):
            names.setdefault(parameter, f"parameter {place} of {type(optimizer).__name__}")
    return names


def _loss(result: Any) -> float:
    """The first tensor of what the step returned, as a number."""
    return float(next(iter(tensors(result).values())).detach().float().mean())
