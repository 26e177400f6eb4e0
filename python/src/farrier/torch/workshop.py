"""Where a step is warmed up, judged, captured, compared and replayed. It ends where the step must run eagerly for good.

A call has three parts: what this rank intends (`_intend`), what all ranks do then (`Ranks.joint`), and doing it, which
trains on the batch once. Whatever runs the step more often than that leaves no trace (`Trial`), and where it reduces
gradients, all ranks run it at the same call.
"""

from __future__ import annotations

import functools
import logging
import time
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from farrier.torch.agreement import ANOTHER_RANK
from farrier.torch.baked import Baked
from farrier.torch.batch import padded, signature, tensors
from farrier.torch.capture import Captured, detached, survive
from farrier.torch.explain import GiveUp, Reason, not_verified, reason
from farrier.torch.lengths import Lengths, Recent, TooLong
from farrier.torch.measure import profiled, timed
from farrier.torch.optimizer import SETS_THE_RATE, UnsupportedOptimizer, constants, leave, prepare
from farrier.torch.pinned import GivenAgain
from farrier.torch.policy import Move, Pace, Policy, may_go
from farrier.torch.report import StepReport
from farrier.torch.trial import Trial, names_of
from farrier.torch.undo import Also, Undo

log = logging.getLogger("farrier.torch")

Key = tuple[object, ...]


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
        also: Also = (),
    ) -> None:
        self._fn, self._model, self._optimizers = fn, model, optimizers
        self._lengths, self._policy, self._report = lengths, policy, report
        self._seen: Counter[Key] = Counter()
        self._refused: set[Key] = set()
        self._calls = self._warm = self._changes = 0
        self._leaving: Reason | None = None
        self._graphs: Recent[Key, Captured] = Recent(policy.graphs)
        self._fused: list[Optimizer] = []
        self._given_again = GivenAgain()
        self._prepare()
        self._trial = Trial(fn, model, optimizers, scaler, also)
        self._ranks, self._arena = self._trial.ranks, self._trial.arena
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
        """Makes the optimizers capturable, and reads what a graph will bake in."""
        self._fused += [optimizer for optimizer in self._optimizers if prepare(optimizer)]
        self._constants = constants(self._optimizers)
        modules = set(self._model.parameters())
        named = names_of(self._model, self._optimizers)
        self._baked = Baked(self._model, [tensor for tensor in named if tensor not in modules])
        self._mode = b""
        self._stale = False

    def forget(self, why: str) -> None:
        """Gives up every graph; they are made anew."""
        log.info("graphs are made anew: %s", why)
        self._drop_graphs()
        self._stale = True

    def close(self) -> None:
        """Takes the hooks away and gives the pool back, which holds as much memory as a step needs, gradients and all."""
        self._drop_graphs()
        for optimizer in self._optimizers:
            optimizer.zero_grad(set_to_none=True)
        for optimizer in self._fused:
            leave(optimizer)
        self._trial.watch.remove()
        for hook in self._hooks:
            hook.remove()
        del self._arena, self._trial
        torch.cuda.synchronize()
        torch.cuda.empty_cache()

    def __len__(self) -> int:
        return len(self._graphs)

    def run(self, batch: Any) -> Any:
        """Trains on the batch, once. Raises `GiveUp` where that is the end of graphs, on every rank at the same call."""
        self._calls += 1
        self._report.called_s = time.perf_counter()
        key: Key | None
        try:
            move, key, ready = self._intend(batch)
        except GiveUp as err:
            self._leaving = err.why
            move, key, ready = Move.STOP, None, batch
        move = self._ranks.joint(move, key)
        if move is Move.STOP:
            raise GiveUp(self._leaving or ANOTHER_RANK)
        if move is Move.WARM_UP:
            return self._warm_up(batch)
        if move is Move.EAGER or key is None:
            return self._eager_for_now(key, batch)
        if move is Move.MAKE:
            return self._made(key, batch, ready)
        graph = self._graphs.get(key)
        assert graph is not None, "who intends less than to make a graph has one"
        graph.used = self._calls
        return self._verified(graph, batch, ready) if move is Move.VERIFY else self._replay(graph, ready)

    def _intend(self, batch: Any) -> tuple[Move, Key | None, Any]:
        """What this rank would do by itself; which graph the batch is for; and the batch as that graph takes it."""
        if self._leaving is not None:
            raise GiveUp(self._leaving)
        self._look_at_what_is_baked()
        try:
            ready = padded(batch, self._lengths) if self._lengths else batch
            key = (signature(ready), self._mode)
        except TooLong:
            return Move.EAGER, None, batch
        except (TypeError, ValueError, RuntimeError) as err:  # RuntimeError: torch itself, of a tensor without a shape.
            raise GiveUp(Reason(f"the batch has no fixed form: {err}", "give tensors of known names")) from err
        self._given_again.look(ready)
        graph = self._graphs.get(key)
        if graph is not None:
            return Move.VERIFY if graph.pace.due(graph.replays + 1) else Move.REPLAY, key, ready
        return Move.EAGER if key in self._refused else self._without_graph(key), key, ready

    def _look_at_what_is_baked(self) -> None:
        """A change of what graphs bake in makes them stale, and one every time has no graph."""
        now = constants(self._optimizers)
        layout, mode = self._baked.read()
        moved = layout != self._baked.layout
        if self._stale or moved or now != self._constants:
            names = now.keys() | self._constants.keys()
            changed = sorted(name for name in names if now.get(name) != self._constants.get(name))
            self._changes += not self._stale and self._warm > self._policy.warmups
            self._drop_graphs()
            try:
                self._prepare()
            except UnsupportedOptimizer as err:
                raise GiveUp(err.why) from err
            self._trial.renew()
            if self._changes > self._policy.graphs:
                what = ", ".join([*(f"{name} of the optimizer" for name in changed), *["the place of weights"] * moved])
                why = f"{what} changed {self._changes} times, and a graph bakes it in"
                raise GiveUp(Reason(why, "keep it fixed (cycle_momentum=False); only the learning rate may change"))
            _, mode = self._baked.read()
        if mode != self._mode:
            self._mode = mode
            self._trial.watch.make_state(self._optimizers)

    def _without_graph(self, key: Key) -> Move:
        """A shape without a graph: warm up, and make one when the shape comes back."""
        self._seen[key] += 1
        if self._warm <= self._policy.warmups:
            return Move.WARM_UP
        if self._seen[key] >= self._policy.sights:
            return Move.MAKE if not self._graphs.full or self._in_the_way() is not None else Move.EAGER
        if len(self._seen) >= self._policy.shapes:
            if not self._report.captures and max(self._seen.values()) < self._policy.sights:
                what = f"the last {len(self._seen)} batches had {len(self._seen)} shapes, and none came back"
                raise GiveUp(Reason(what, "pad to buckets with lengths=farrier.torch.Lengths(...)"))
            self._seen.clear()
        return Move.EAGER

    def _in_the_way(self) -> Key | None:
        return self._graphs.in_the_way(lambda graph: may_go(graph.replays, self._calls - graph.used, self._policy))

    def _replay(self, graph: Captured, ready: Any) -> Any:
        self._trial.rates.refresh()
        graph.replay(ready, wait=self._given_again.found)
        graph.replays += 1
        self._report.replays += 1
        if graph.replays == self._policy.pays:
            self._changes = 0
        return graph.result

    def _warm_up(self, batch: Any) -> Any:
        """An eager step that trains and is timed; the last of them says what a graph would bring."""
        first, last = self._warm == 0, self._warm == self._policy.warmups
        self._warm += 1
        if first:  # What is compiled and looked up in the first step is not to be timed.
            return self._eager(batch)
        run = functools.partial(self._eager, batch)
        best = self._report.eager
        if last and self._policy.profile and best is not None:
            result, found = profiled(run, best.wall_s, best.enqueue_s)
        else:
            result, found = timed(run)
        if best is None or found.busy_s is not None or found.wall_s < best.wall_s:
            self._report.eager = best = found
        if last:
            log.info("%s", best)
            pays = best.gain is None or best.gain >= self._policy.gain
            if not self._ranks.all(pays):
                what = f"the step waits for the GPU and not for launches: {best}"
                self._leaving = ANOTHER_RANK if pays else Reason(what, "larger gains are elsewhere")
        return result

    def _eager(self, batch: Any) -> Any:
        """A step that trains. It must step each optimizer once: a graph can do nothing else. If not, the next call stops.

        Once there is a graph it runs outside the pool: what it makes and somebody keeps (the loss, a table for a longer
        batch) would lie where a graph of before writes.
        """
        watch, rates = self._trial.watch, self._trial.rates
        steps_before, rates_before = watch.calls, rates.users()
        with self._arena.beside() if self._report.captures else self._arena.inside():
            result = detached(self._fn(batch))
        steps = watch.calls - steps_before
        if steps != len(self._optimizers):
            what = f"a call of the step made {steps} optimizer steps, and {len(self._optimizers)} are there to be made"
            self._leaving = Reason(what, "give all micro-batches of an update to one call, and step once in it")
        elif not tensors(result):
            self._leaving = Reason("the step returns no tensor, so nothing can be compared", "return the loss")
        elif rates.users() != rates_before:
            self._leaving = SETS_THE_RATE
        return result

    def _eager_for_now(self, key: Key | None, batch: Any) -> Any:
        """A batch without a graph: of a shape that came for the first time, or has none on another rank."""
        apart = self._ranks.apart
        if apart >= self._policy.shapes and not self._report.captures:
            what = f"the ranks had batches of different shapes {apart} times, and graphs are for one shape on all of them"
            self._leaving = Reason(what, "give batches of one shape to all ranks at a time")
        result = self._eager(batch)
        if key is None or self._seen[key] < self._policy.sights:
            torch.cuda.empty_cache()  # What a step needs lies in the pool already, and is not to be held twice.
        return result

    def _made(self, key: Key, batch: Any, ready: Any) -> Any:
        """Captures the step for this shape. Whatever fails, this batch is trained on, once."""
        self._make_room(key)
        made_state: list[bool] = []
        made: list[Captured] = []

        def rehearse(undo: Undo) -> None:
            made_state.append(self._trial.rehearse(ready, undo))
            if not self._report.captures and not made_state[0]:
                self._report.noise = self._trial.noise(ready, undo)
                self._report.eager_runs += 2

        why = self._trial.attempt(rehearse)
        if not self._ranks.all(why is None):
            return self._refuse(key, why, batch)
        if not self._ranks.all(made_state == [False]):  # The first state of a parameter is made by a step that trains.
            return self._eager(batch)
        why = self._trial.attempt(lambda _: made.append(self._trial.captured(ready)))
        if not self._ranks.all(why is None):
            for graph in made:
                graph.reset()
            return self._refuse(key, why, batch, for_good=self._ranks.forget_reduction())
        self._report.captures += 1
        del self._seen[key]
        (graph,) = made
        graph.used, graph.pace = self._calls, Pace(self._policy.verify_every)
        self._graphs.put(key, graph)
        return self._verified(graph, batch, ready)

    def _make_room(self, key: Key) -> None:
        gone = self._graphs.pop(key)  # There is one where another rank had to make its own anew.
        other = self._in_the_way() if self._graphs.full else None
        for graph in (gone, self._graphs.pop(other) if other is not None else None):
            if graph is not None:
                self._report.evicted += 1
                graph.reset()

    def _verified(self, graph: Captured, batch: Any, ready: Any) -> Any:
        """The step on this batch, compared first: eagerly and as a graph, neither of which trains; then for good."""
        try:
            found, cost = timed(lambda: self._trial.compared(graph, batch, ready))
        except Exception as err:
            survive(err)
            if not self._ranks.alone:
                raise  # The others are at their comparison: the job ends, as it does when a rank fails in any step.
            raise GiveUp(err.why if isinstance(err, GiveUp) else reason(err)) from err
        self._report.compared(found, cost.wall_s, time.perf_counter())
        if not self._ranks.all(found.same):
            raise GiveUp(ANOTHER_RANK if found.same else not_verified(found, graph.replays))
        result, took = timed(functools.partial(self._replay, graph, ready))
        if graph.replays >= 2:  # The first one uploads the graph.
            self._report.graph_s = min(took.wall_s, self._report.graph_s or took.wall_s)
        graph.pace.compared(graph.replays, cost.wall_s, took.wall_s)
        self._report.pace = graph.pace
        return result

    def _refuse(self, key: Key, why: Reason | None, batch: Any, *, for_good: bool = False) -> Any:
        """No graph for this shape; where none ever was, none at all, unless another shape may do better.

        `why` is None where another rank has the reason.
        """
        why = why or ANOTHER_RANK
        if for_good or not (self._report.captures or why.of_this_shape):
            raise GiveUp(why)
        self._refused.add(key)
        self._report.refused.append(why)
        log.warning("eager for batches of one shape: %s", why)
        return self._eager(batch)

    def _drop_graphs(self) -> None:
        for graph in self._graphs.clear():
            graph.reset()
