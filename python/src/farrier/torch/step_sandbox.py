"""Runs the step without training or other side effects: dry run, capture and comparisons."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from farrier.torch.batch import tensors
from farrier.torch.capture import Arena, CapturedStep, raise_if_context_lost, to_device
from farrier.torch.capture_dry_run import simulated_capture
from farrier.torch.comparison import Comparison, compare_until_decided
from farrier.torch.explain import GraphsDisabled, Reason, eager_runs_differ, explain_error
from farrier.torch.gradient_check import PADDING_TOLERANCE, GradientComparator, ReferenceGradients, RunReadings
from farrier.torch.host_rng import HostRngState
from farrier.torch.optimizer import GradientObserver, LearningRates, OptimizerHooks
from farrier.torch.rank_agreement import RankGroup
from farrier.torch.training_snapshot import ExtraState, TrainingSnapshot

#: Pauses before repeated dry runs, which show whether the step itself draws from a host RNG. A step
#: that does so draws in every run. A data-loading thread stops drawing once its queue is full, and
#: the compiler draws only once.
DRY_RUN_PAUSES_S = (0.0, 0.05, 0.2, 0.5)


class StepSandbox:
    """Runs a step function without training."""

    def __init__(
        self, fn: Callable[[Any], Any], model: nn.Module, optimizers: list[Optimizer], scaler: Any, extra_state: ExtraState
    ) -> None:
        self._fn, self._model, self._optimizers = fn, model, optimizers
        self._scaler, self._extra_state = scaler, extra_state
        self.device = next(model.parameters()).device
        self.ranks, self.arena = RankGroup(model), Arena(self.device)
        self.hooks = OptimizerHooks(optimizers, parameter_names(model, optimizers))
        self.learning_rates = LearningRates(optimizers)

    def refresh(self) -> None:
        """Reads the optimizers again, after they changed.

        Graphs that were captured before are stale, because they use the old learning-rate tensors
        and the old gate.
        """
        self.hooks.remove()
        self.hooks = OptimizerHooks(self._optimizers, parameter_names(self._model, self._optimizers))
        self.learning_rates = LearningRates(self._optimizers)

    def snapshot(self) -> TrainingSnapshot:
        """Takes a snapshot of everything that a run may change."""
        return TrainingSnapshot(self._model, self._optimizers, self._scaler, self.device, self._extra_state)

    def attempt(self, act: Callable[[TrainingSnapshot], None]) -> Reason | None:
        """Runs `act` and restores all state. Returns the reason if `act` failed."""
        snapshot = self.snapshot()
        try:
            act(snapshot)
        except GraphsDisabled as err:
            return err.reason
        except Exception as err:
            raise_if_context_lost(err)
            return explain_error(err)
        finally:
            snapshot.restore()
        return None

    def dry_run(self, padded_batch: Any, snapshot: TrainingSnapshot) -> bool:
        """Runs the step under capture rules. Returns whether an optimizer created state."""
        replaced, has_new_state, drawn = self._dry_run_once(padded_batch, snapshot)
        for pause_s in DRY_RUN_PAUSES_S if drawn else ():
            time.sleep(pause_s)
            drawn_again = self._dry_run_once(padded_batch, snapshot)[2]
            drawn = [each for each in drawn if each in drawn_again]
        if drawn:
            snapshot.host_rng.restore()
            cause = f"the step draws random numbers on the host ({', '.join(drawn)}), which a graph freezes at capture"
            remedy = "draw on the GPU, or before the step and pass the value in the batch; give threads their own generator"
            raise GraphsDisabled(Reason(cause, remedy))
        if replaced:
            cause = f"the step replaces a buffer by another tensor ({', '.join(replaced[:3])})"
            raise GraphsDisabled(Reason(cause, "write to the buffer in place: buffer.copy_(...), buffer.lerp_(...)"))
        return has_new_state

    def _dry_run_once(self, padded_batch: Any, snapshot: TrainingSnapshot) -> tuple[list[str], bool, list[str]]:
        """Returns replaced buffers, whether state was created, and host RNGs that were drawn from.

        Comparisons cannot detect draws from a host RNG: each run starts with all RNGs restored, so
        all runs draw the same numbers.
        """
        before = HostRngState()
        results: list[tuple[list[str], bool, list[str]]] = []
        observer = lambda: results.append((snapshot.replaced_buffers(), snapshot.has_new_state(), before.changed()))  # noqa: E731
        self._run_eager(
            padded_batch, snapshot, None, without_reduction=True, simulate_capture=True, before_restore=observer
        )
        return results[0]

    def eager_noise(self, padded_batch: Any, snapshot: TrainingSnapshot) -> float:
        """Returns the largest relative distance of a gradient between two eager runs of one batch.

        Atomic additions run in any order, so the distance may be above zero. Raises
        `GraphsDisabled` if noise does not explain the distance.
        """
        reference = ReferenceGradients()
        loss = self._run_eager(padded_batch, snapshot, reference.add, without_reduction=True)
        result = self._measure_eager(padded_batch, snapshot, reference, without_reduction=True).is_same_step(loss)
        if not result.passed:
            raise GraphsDisabled(eager_runs_differ(result))
        return result.max_distance

    def capture(self, padded_batch: Any) -> CapturedStep:
        """Captures the step for batches like this one."""
        graph = CapturedStep(self.arena, padded_batch)
        try:
            with self.learning_rates.on_device(), self.hooks.observing(graph.record_gradients):
                graph.capture(self._fn)
        except BaseException:
            graph.reset()
            raise
        return graph

    def compare(self, graph: CapturedStep, batch: Any, padded_batch: Any) -> Comparison:
        """Compares the graph with the eager step, and a padded batch also with the unpadded one.

        One eager run is the reference. While the runs so far are inconclusive on any rank, another
        eager run and another replay follow (`compare_until_decided`). The measured noise is stored
        with the graph.
        """
        snapshot, reference, padding = self.snapshot(), ReferenceGradients(), None
        try:
            loss = self._run_eager(padded_batch, snapshot, reference.add)
            if padded_batch is not batch:
                padding = self._measure_eager(batch, snapshot, reference).within_tolerance(
                    PADDING_TOLERANCE, PADDING_TOLERANCE, loss
                )
            evidence = self._measure_replay(graph, padded_batch, snapshot, reference).evidence(loss)
            result = compare_until_decided(
                evidence,
                graph.noise_history,
                eager_run=lambda: self._measure_eager(padded_batch, snapshot, reference).add_to(evidence, eager=True),
                replay=lambda: self._measure_replay(graph, padded_batch, snapshot, reference).add_to(evidence, eager=False),
                all_ranks_done=self.ranks.all,
            )
        finally:
            self.hooks.set_gate(False)
            snapshot.restore()
        if result.passed and result.noise_history is not None:
            graph.noise_history = result.noise_history
        return result if padding is None or padding.passed else padding

    def _measure_eager(
        self, batch: Any, snapshot: TrainingSnapshot, reference: ReferenceGradients, *, without_reduction: bool = False
    ) -> RunReadings:
        """Compares an eager run with the reference, on the device of its gradients."""
        measuring = GradientComparator(reference)
        return measuring.finish(self._run_eager(batch, snapshot, measuring.add, without_reduction=without_reduction))

    def _measure_replay(
        self, graph: CapturedStep, padded_batch: Any, snapshot: TrainingSnapshot, reference: ReferenceGradients
    ) -> RunReadings:
        """Compares a replay, which does not train, with the reference."""
        measuring = GradientComparator(reference)
        self.learning_rates.refresh()
        self.hooks.set_gate(True)
        try:
            graph.replay(padded_batch)
            measuring.add(graph.replayed_gradients())
            return measuring.finish(_loss(graph.result))
        finally:
            self.hooks.set_gate(False)
            snapshot.restore()

    def _run_eager(
        self,
        batch: Any,
        snapshot: TrainingSnapshot,
        observer: GradientObserver | None,
        *,
        without_reduction: bool = False,
        simulate_capture: bool = False,
        before_restore: Callable[[], None] = lambda: None,
    ) -> float:
        """Runs the eager step on this batch without training. Returns the loss.

        `without_reduction` skips gradient reduction over ranks, so the run may fail on a single
        rank. `simulate_capture` reports an active capture to code that asks, and forbids
        synchronising with the GPU. `before_restore` inspects the changes before they are rolled
        back.
        """
        on_gpu = to_device(batch, self.device)
        self.hooks.set_gate(True)
        try:
            with ExitStack() as stack:
                stack.enter_context(self.learning_rates.on_device())
                stack.enter_context(self.arena.on_stream_and_pool())
                stack.enter_context(self.hooks.observing(observer))
                if without_reduction:
                    stack.enter_context(self.ranks.no_reduction())
                if simulate_capture:
                    stack.enter_context(simulated_capture())
                result = self._fn(on_gpu)
            before_restore()
            return _loss(result)
        finally:
            self.hooks.set_gate(False)
            snapshot.restore()


def parameter_names(model: nn.Module, optimizers: list[Optimizer]) -> dict[Tensor, str]:
    """Maps every parameter to its name."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    for optimizer in optimizers:
        for index, parameter in enumerate(p for group in optimizer.param_groups for p in group["params"]):
            names.setdefault(parameter, f"parameter {index} of {type(optimizer).__name__}")
    return names


def _loss(result: Any) -> float:
    """The first tensor of the step's result, as a number."""
    return float(next(iter(tensors(result).values())).detach().float().mean())
