"""Warms up, times, captures, verifies and replays one step function.

A call has three phases: this rank proposes an action (`_propose`), the ranks agree on one action
(`RankGroup.agree`), and every rank performs it. Each call trains on its batch exactly once. Extra
runs of the step leave no side effects (`StepSandbox`). If extra runs reduce gradients, all ranks
make them at the same call. After `GraphsDisabled` the step runs eagerly for the rest of the job.
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

from farrier.torch.batch import pad_batch, signature, tensors
from farrier.torch.capture import CapturedStep, detach, raise_if_context_lost
from farrier.torch.capture_key import CaptureKey
from farrier.torch.explain import GraphsDisabled, Reason, comparison_failed, explain_error
from farrier.torch.graph_policy import CallAction, Policy, VerifySchedule, may_evict
from farrier.torch.lengths import Lengths, LruCache, TooLong
from farrier.torch.optimizer import STEP_SETS_LR, UnsupportedOptimizer, captured_constants, make_capturable, unfuse
from farrier.torch.pinned_reuse import PinnedReuseDetector
from farrier.torch.rank_agreement import OTHER_RANK_EAGER
from farrier.torch.report import StepReport
from farrier.torch.step_sandbox import StepSandbox, parameter_names
from farrier.torch.step_timing import profile_step, time_step
from farrier.torch.training_snapshot import ExtraState, TrainingSnapshot

log = logging.getLogger("farrier.torch")

Key = tuple[object, ...]


class GraphRunner:
    """One step function and its captured graphs."""

    def __init__(
        self,
        fn: Callable[[Any], Any],
        model: nn.Module,
        optimizers: list[Optimizer],
        scaler: Any,
        lengths: Lengths | None,
        policy: Policy,
        report: StepReport,
        extra_state: ExtraState = (),
    ) -> None:
        self._fn, self._model, self._optimizers = fn, model, optimizers
        self._lengths, self._policy, self._report = lengths, policy, report
        self._occurrences: Counter[Key] = Counter()
        self._rejected: set[Key] = set()
        self._calls = self._warmup_steps = self._recaptures = 0
        self._disabled_reason: Reason | None = None
        self._graphs: LruCache[Key, CapturedStep] = LruCache(policy.max_graphs)
        self._fused_optimizers: list[Optimizer] = []
        self._pinned_reuse = PinnedReuseDetector()
        self._prepare()
        self._sandbox = StepSandbox(fn, model, optimizers, scaler, extra_state)
        self._ranks, self._arena = self._sandbox.ranks, self._sandbox.arena
        self._hooks = [self._on_load_state_dict(each, "the optimizer's state was loaded") for each in optimizers]
        self._hooks.append(self._on_load_state_dict(model, "the model's weights were loaded"))

    def _on_load_state_dict(self, owner: Any, reason: str) -> Any:
        this = weakref.ref(self)

        def invalidate(*_: object) -> None:
            graph_runner = this()
            if graph_runner is not None:
                graph_runner.invalidate(reason)

        return owner.register_load_state_dict_post_hook(invalidate)

    def _prepare(self) -> None:
        """Makes the optimizers capturable and records the state that a graph will capture."""
        self._fused_optimizers += [optimizer for optimizer in self._optimizers if make_capturable(optimizer)]
        self._captured_constants = captured_constants(self._optimizers)
        modules = set(self._model.parameters())
        names = parameter_names(self._model, self._optimizers)
        self._capture_key = CaptureKey(self._model, [tensor for tensor in names if tensor not in modules])
        self._mode = b""
        self._is_stale = False

    def invalidate(self, reason: str) -> None:
        """Discards every graph. Later calls capture graphs again."""
        log.info("recapturing graphs: %s", reason)
        self._drop_graphs()
        self._is_stale = True

    def close(self) -> None:
        """Removes the hooks and frees the pool, which holds a full step's memory."""
        self._drop_graphs()
        for optimizer in self._optimizers:
            optimizer.zero_grad(set_to_none=True)
        for optimizer in self._fused_optimizers:
            unfuse(optimizer)
        self._sandbox.hooks.remove()
        for hook in self._hooks:
            hook.remove()
        del self._arena, self._sandbox
        torch.cuda.synchronize()
        torch.cuda.empty_cache()

    def __len__(self) -> int:
        return len(self._graphs)

    def run(self, batch: Any) -> Any:
        """Trains on the batch, once.

        Raises `GraphsDisabled` if graphs can no longer be used, on every rank at the same call.
        """
        self._calls += 1
        self._report.called_s = time.perf_counter()
        key: Key | None
        try:
            action, key, padded_batch = self._propose(batch)
        except GraphsDisabled as err:
            self._disabled_reason = err.reason
            action, key, padded_batch = CallAction.DISABLE, None, batch
        action = self._ranks.agree(action, key)
        if action is CallAction.DISABLE:
            raise GraphsDisabled(self._disabled_reason or OTHER_RANK_EAGER)
        if action is CallAction.WARM_UP:
            return self._warm_up(batch)
        if action is CallAction.EAGER or key is None:
            return self._run_eager(key, batch)
        if action is CallAction.CAPTURE:
            return self._capture(key, batch, padded_batch)
        graph = self._graphs.get(key)
        assert graph is not None, "REPLAY and VERIFY are proposed only for a captured shape"
        graph.last_used_call = self._calls
        return (
            self._verify_and_replay(graph, batch, padded_batch)
            if action is CallAction.VERIFY
            else self._replay(graph, padded_batch)
        )

    def _propose(self, batch: Any) -> tuple[CallAction, Key | None, Any]:
        """Returns the action that this rank proposes, the graph key, and the padded batch."""
        if self._disabled_reason is not None:
            raise GraphsDisabled(self._disabled_reason)
        self._refresh_capture_key()
        try:
            padded_batch = pad_batch(batch, self._lengths) if self._lengths else batch
            key = (signature(padded_batch), self._mode)
        except TooLong:
            return CallAction.EAGER, None, batch
        except (TypeError, ValueError, RuntimeError) as err:  # RuntimeError: torch raises it for a tensor without a shape.
            raise GraphsDisabled(Reason(f"the batch has no fixed structure: {err}", "pass named tensors")) from err
        self._pinned_reuse.check(padded_batch)
        graph = self._graphs.get(key)
        if graph is not None:
            return CallAction.VERIFY if graph.schedule.due(graph.replays + 1) else CallAction.REPLAY, key, padded_batch
        return CallAction.EAGER if key in self._rejected else self._without_graph(key), key, padded_batch

    def _refresh_capture_key(self) -> None:
        """Drops the graphs if state that they captured changed.

        Disables graphs if that state keeps changing.
        """
        constants_now = captured_constants(self._optimizers)
        layout, mode = self._capture_key.read()
        moved = layout != self._capture_key.layout
        if self._is_stale or moved or constants_now != self._captured_constants:
            names = constants_now.keys() | self._captured_constants.keys()
            changed = sorted(name for name in names if constants_now.get(name) != self._captured_constants.get(name))
            self._recaptures += not self._is_stale and self._warmup_steps > self._policy.warmups
            self._drop_graphs()
            try:
                self._prepare()
            except UnsupportedOptimizer as err:
                raise GraphsDisabled(err.reason) from err
            self._sandbox.refresh()
            if self._recaptures > self._policy.max_graphs:
                cause = ", ".join(
                    [*(f"{name} of the optimizer" for name in changed), *["the addresses of weights"] * moved]
                )
                reason = f"{cause} changed {self._recaptures} times, and a graph captures it as a constant"
                raise GraphsDisabled(
                    Reason(reason, "keep it constant (cycle_momentum=False); only the learning rate may change")
                )
            _, mode = self._capture_key.read()
        if mode != self._mode:
            self._mode = mode
            self._sandbox.hooks.init_state(self._optimizers)

    def _without_graph(self, key: Key) -> CallAction:
        """Chooses the action for a shape without a graph: warm up; capture if the shape recurs."""
        self._occurrences[key] += 1
        if self._warmup_steps <= self._policy.warmups:
            return CallAction.WARM_UP
        if self._occurrences[key] >= self._policy.min_occurrences:
            return (
                CallAction.CAPTURE if not self._graphs.full or self._eviction_candidate() is not None else CallAction.EAGER
            )
        if len(self._occurrences) >= self._policy.max_shapes:
            if not self._report.captures and max(self._occurrences.values()) < self._policy.min_occurrences:
                count = len(self._occurrences)
                cause = f"the last {count} batches had {count} shapes, and none occurred twice"
                raise GraphsDisabled(Reason(cause, "pad to buckets with lengths=farrier.torch.Lengths(...)"))
            self._occurrences.clear()
        return CallAction.EAGER

    def _eviction_candidate(self) -> Key | None:
        return self._graphs.eviction_candidate(
            lambda graph: may_evict(graph.replays, self._calls - graph.last_used_call, self._policy)
        )

    def _replay(self, graph: CapturedStep, padded_batch: Any) -> Any:
        self._sandbox.learning_rates.refresh()
        graph.replay(padded_batch, wait=self._pinned_reuse.reuse_found)
        graph.replays += 1
        self._report.replays += 1
        if graph.replays == self._policy.break_even_replays:
            self._recaptures = 0
        return graph.result

    def _warm_up(self, batch: Any) -> Any:
        """Runs a timed eager step that trains. The last warm-up estimates a graph's speed-up."""
        first, last = self._warmup_steps == 0, self._warmup_steps == self._policy.warmups
        self._warmup_steps += 1
        if first:  # Not timed, because it includes compilation and lazy initialisation.
            return self._eager(batch)
        run = functools.partial(self._eager, batch)
        best = self._report.eager
        if last and self._policy.profile and best is not None:
            result, timing = profile_step(run, best.wall_s, best.enqueue_s)
        else:
            result, timing = time_step(run)
        if best is None or timing.busy_s is not None or timing.wall_s < best.wall_s:
            self._report.eager = best = timing
        if last:
            log.info("%s", best)
            worth_capturing = best.gain is None or best.gain >= self._policy.min_speedup
            if not self._ranks.all(worth_capturing):
                cause = f"the step is bound by the GPU, not by launches: {best}"
                self._disabled_reason = OTHER_RANK_EAGER if worth_capturing else Reason(cause, "optimize GPU time instead")
        return result

    def _eager(self, batch: Any) -> Any:
        """Runs an eager step that trains.

        The step must step each optimizer exactly once, as a graph does. Otherwise the next call
        disables graphs. After the first capture, the eager step runs outside the pool. Inside it, a
        tensor that outlives the step (the loss, a table for a longer batch) would occupy memory
        that graphs write to.
        """
        hooks, rates = self._sandbox.hooks, self._sandbox.learning_rates
        steps_before, rates_before = hooks.calls, rates.user_values()
        with self._arena.on_stream() if self._report.captures else self._arena.on_stream_and_pool():
            result = detach(self._fn(batch))
        steps = hooks.calls - steps_before
        if steps != len(self._optimizers):
            cause = f"a call stepped optimizers {steps} times; expected {len(self._optimizers)}, once per optimizer"
            self._disabled_reason = Reason(cause, "pass all micro-batches of an update to one call and step once in it")
        elif not tensors(result):
            self._disabled_reason = Reason("the step returns no tensor to compare", "return the loss")
        elif rates.user_values() != rates_before:
            self._disabled_reason = STEP_SETS_LR
        return result

    def _run_eager(self, key: Key | None, batch: Any) -> Any:
        """Runs a batch eagerly, because its shape has no graph on this or another rank."""
        shape_mismatches = self._ranks.shape_mismatches
        if shape_mismatches >= self._policy.max_shapes and not self._report.captures:
            cause = (
                f"the ranks had batches of different shapes {shape_mismatches} times, "
                "and a graph needs the same shape on every rank"
            )
            self._disabled_reason = Reason(cause, "pass batches of the same shape to all ranks at each step")
        result = self._eager(batch)
        if key is None or self._occurrences[key] < self._policy.min_occurrences:
            torch.cuda.empty_cache()  # The pool holds a step's memory already; do not cache as much again.
        return result

    def _capture(self, key: Key, batch: Any, padded_batch: Any) -> Any:
        """Captures the step for this shape.

        Even if the capture fails, the call trains on the batch exactly once.
        """
        self._evict(key)
        new_state: list[bool] = []
        captured: list[CapturedStep] = []

        def dry_run(snapshot: TrainingSnapshot) -> None:
            new_state.append(self._sandbox.dry_run(padded_batch, snapshot))
            if not self._report.captures and not new_state[0]:
                self._report.noise = self._sandbox.eager_noise(padded_batch, snapshot)
                self._report.eager_runs += 2

        reason = self._sandbox.attempt(dry_run)
        if not self._ranks.all(reason is None):
            return self._reject(key, reason, batch)
        if not self._ranks.all(new_state == [False]):  # An optimizer keeps new state only if the step trains.
            return self._eager(batch)
        reason = self._sandbox.attempt(lambda _: captured.append(self._sandbox.capture(padded_batch)))
        if not self._ranks.all(reason is None):
            for graph in captured:
                graph.reset()
            return self._reject(key, reason, batch, for_good=self._ranks.reset_reducer())
        self._report.captures += 1
        del self._occurrences[key]
        (graph,) = captured
        graph.last_used_call, graph.schedule = self._calls, VerifySchedule(self._policy.verify_every)
        self._graphs.put(key, graph)
        return self._verify_and_replay(graph, batch, padded_batch)

    def _evict(self, key: Key) -> None:
        replaced = self._graphs.pop(key)  # Not None if another rank had to recapture this shape.
        victim = self._eviction_candidate() if self._graphs.full else None
        for graph in (replaced, self._graphs.pop(victim) if victim is not None else None):
            if graph is not None:
                self._report.evicted += 1
                graph.reset()

    def _verify_and_replay(self, graph: CapturedStep, batch: Any, padded_batch: Any) -> Any:
        """Compares eager step and graph on this batch, then trains on the batch with a replay."""
        try:
            comparison, cost = time_step(lambda: self._sandbox.compare(graph, batch, padded_batch))
        except Exception as err:
            raise_if_context_lost(err)
            if not self._ranks.is_single:
                raise  # The other ranks are still comparing, so this rank cannot continue, and the job ends.
            raise GraphsDisabled(err.reason if isinstance(err, GraphsDisabled) else explain_error(err)) from err
        self._report.record_comparison(comparison, cost.wall_s, time.perf_counter())
        if not self._ranks.all(comparison.passed):
            raise GraphsDisabled(OTHER_RANK_EAGER if comparison.passed else comparison_failed(comparison, graph.replays))
        result, replay_timing = time_step(functools.partial(self._replay, graph, padded_batch))
        if graph.replays >= 2:  # The first replay includes the graph upload.
            self._report.graph_s = min(replay_timing.wall_s, self._report.graph_s or replay_timing.wall_s)
        graph.schedule.record_comparison(graph.replays, cost.wall_s, replay_timing.wall_s)
        self._report.schedule = graph.schedule
        return result

    def _reject(self, key: Key, reason: Reason | None, batch: Any, *, for_good: bool = False) -> Any:
        """Runs this shape eagerly from now on, or disables graphs if no shape can be captured.

        `reason` is None if another rank caused the rejection.
        """
        reason = reason or OTHER_RANK_EAGER
        if for_good or not (self._report.captures or reason.shape_specific):
            raise GraphsDisabled(reason)
        self._rejected.add(key)
        self._report.shape_reasons.append(reason)
        log.warning("running batches of one shape eagerly: %s", reason)
        return self._eager(batch)

    def _drop_graphs(self) -> None:
        for graph in self._graphs.clear():
            graph.reset()
