"""Runs a whole training step as one CUDA graph, verified against the eager step."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from farrier import agent
from farrier.torch import rank_agreement
from farrier.torch.arguments import (
    require_function,
    require_instance,
    require_int,
    require_module,
    require_optimizers,
    require_trains,
)
from farrier.torch.capture import detach, raise_if_context_lost
from farrier.torch.explain import GraphsDisabled, Reason
from farrier.torch.graph_policy import Policy
from farrier.torch.graph_runner import GraphRunner
from farrier.torch.lengths import Lengths
from farrier.torch.oom import add_guard_hint
from farrier.torch.optimizer import UnsupportedOptimizer
from farrier.torch.report import StepReport
from farrier.torch.reporter import StepReporter
from farrier.torch.training_snapshot import ExtraState

log = logging.getLogger("farrier.torch")


class Step:
    """Returned by `farrier.torch.step`. Call it like the function that it wraps."""

    def __init__(
        self, fn: Callable[[Any], Any], report: StepReport, graph_runner: GraphRunner | None, reporter: StepReporter
    ) -> None:
        self.report = report
        self._fn = fn
        self._graph_runner = graph_runner
        self._reporter = reporter

    @property
    def graphed(self) -> bool:
        """Whether at least one graph is captured."""
        return self._graph_runner is not None and len(self._graph_runner) > 0

    @property
    def job(self) -> agent.Job:
        """The job that reports these steps to the node's agent.

        Use it for checkpoint requests and phases.
        """
        return self._reporter.job

    def invalidate(self, reason: str) -> None:
        """Discards every graph. Later calls capture graphs again.

        Call it after you moved weights or optimizer state in memory.
        """
        if self._graph_runner is not None:
            self._graph_runner.invalidate(reason)

    def close(self) -> None:
        """Reports the last step, and frees the graphs and their memory pool.

        Later calls run eagerly.
        """
        self._reporter.flush()  # First, so that freeing graphs does not count as step time.
        self._close_runner()

    def _close_runner(self) -> None:
        if self._graph_runner is not None:
            self._graph_runner.close()
            self._graph_runner = None

    def __call__(self, batch: Any) -> Any:
        """Trains on one batch, once. Returns the detached result of `fn`, which is safe to keep."""
        self._reporter.step_begin()
        try:
            result = self._run(batch)
        except Exception as err:
            add_guard_hint(err)
            raise
        self.report.steps += 1  # Not before: a step that failed has not trained.
        self._reporter.step_launched(result)
        return result

    def _run(self, batch: Any) -> Any:
        if self._graph_runner is not None:
            try:
                return self._graph_runner.run(batch)
            except GraphsDisabled as err:
                log.warning("eager from here on: %s", err.reason)
                self.report.reason = err.reason
                self._close_runner()
            except RuntimeError as err:
                raise_if_context_lost(err)
                raise
        return detach(self._fn(batch))


def step(
    fn: Callable[[Any], Any],
    *,
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    scaler: Any = None,
    extra_state: ExtraState = (),
    compile: bool | Mapping[str, Any] = False,
    graph: bool = True,
    lengths: Lengths | None = None,
    policy: Policy | None = None,
    tokens: int | None = None,
    first_step: int = 0,
    job: agent.Job | None = None,
) -> Step:
    """Wraps `fn(batch) -> loss`, a whole training step from forward to zero-grad.

    The first calls run eagerly and are measured. If the GPU waits for launches, the step becomes
    one CUDA graph per batch shape. A graph is compared with the eager step on the same batch before
    it is used, and again later. A step that cannot be captured runs eagerly; the log and `.report`
    give the reason. Steps are reported to the node's agent about once a second, without waiting for
    the agent or the GPU.

    Args:
        fn: the step. It may depend only on the batch, the model, the optimizer and torch's random
            numbers, and must step the optimizer once. For gradient accumulation pass all
            micro-batches of an update to one call.
        model: the model whose gradients are compared.
        optimizer: one optimizer or several; they are made capturable in place. Learning rates stay
            Python numbers and may change.
        scaler: the GradScaler of float16 runs.
        extra_state: modules and tensors that the step changes besides model and optimizer, such as
            averaged weights. Comparisons run the step more than once per batch. Besides model and
            optimizer, they restore only the state named here.
        compile: True compiles the model in place first. A mapping does the same, and is passed to
            `Module.compile` as keyword arguments.
        graph: False runs everything eagerly.
        lengths: pads batches of varying length to buckets.
        policy: when to capture, when to verify, and when to run eagerly instead.
        tokens: tokens per step on this rank, for the agent.
        first_step: number of steps that earlier processes completed, when resuming.
        job: the job to report through. None uses this process's `farrier.agent.job()`.

    Needs torch 2.5 (`torch.cuda.MemPool`).
    """
    require_function(fn, "fn", "fn(batch) -> loss")
    require_module(model)
    optimizers = require_optimizers(optimizer)
    require_trains(optimizers, model)
    require_instance(lengths, Lengths, "lengths")
    require_instance(policy, Policy, "policy")
    first_step = require_int(first_step, "first_step", 0, "the number of steps completed before")
    tokens = tokens if tokens is None else require_int(tokens, "tokens", 1, "the tokens per step on this rank")
    policy = policy or Policy()
    if rank_agreement.find_ddp(model) is not None:
        policy = dataclasses.replace(policy, warmups=max(11, policy.warmups))
    if compile:
        model.compile(**(dict(compile) if isinstance(compile, Mapping) else {}))
    report = StepReport(reason=_unsupported_reason(model, optimizers, graph))
    graph_runner: GraphRunner | None = None
    if report.reason is None:
        try:
            graph_runner = GraphRunner(fn, model, optimizers, scaler, lengths, policy, report, extra_state)
        except UnsupportedOptimizer as err:
            report.reason = err.reason
    if report.reason is not None:
        log.info("the step runs eagerly: %s", report.reason)
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    return Step(fn, report, graph_runner, StepReporter(job, device=device, tokens=tokens, first_step=first_step))


def _unsupported_reason(model: nn.Module, optimizers: list[Optimizer], graph: bool) -> Reason | None:
    """Returns why the step cannot be captured, as far as that is known before the first call."""
    if not graph:
        return Reason("graph=False was passed", "pass graph=True")
    if not optimizers or not any(True for _ in model.parameters()):
        return Reason("no optimizer was passed, or the model has no parameters", "pass both")
    reason = _not_on_one_gpu(model)
    if reason is not None:
        return reason
    if any(getattr(module, "sparse", False) is True for module in model.modules()):
        return Reason("an embedding has sparse gradients, which fused optimizers do not support", "use sparse=False")
    return rank_agreement.unsupported_reason(model)


def _not_on_one_gpu(model: nn.Module) -> Reason | None:
    devices = {parameter.device for parameter in model.parameters()}
    if len(devices) != 1 or next(iter(devices)).type != "cuda":
        device_names = ", ".join(sorted(map(str, devices)))
        return Reason(f"the model is on {device_names}", "CUDA graphs need the whole model on one CUDA device")
    return None
