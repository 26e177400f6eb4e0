"""A whole training step as one CUDA graph, verified against the eager step it replaces."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from farrier import agent
from farrier.torch import agreement
from farrier.torch.arguments import function_of, instance_of, module_of, number_of, optimizers_of, trained_by
from farrier.torch.capture import detached, survive
from farrier.torch.explain import GiveUp, Reason
from farrier.torch.lengths import Lengths
from farrier.torch.oom import point_to_guard
from farrier.torch.optimizer import UnsupportedOptimizer
from farrier.torch.policy import Policy
from farrier.torch.report import StepReport
from farrier.torch.telling import Telling
from farrier.torch.undo import Also
from farrier.torch.workshop import Workshop

log = logging.getLogger("farrier.torch")


class Step:
    """What `farrier.torch.step` returns: call it as the function it wraps."""

    def __init__(self, fn: Callable[[Any], Any], report: StepReport, workshop: Workshop | None, telling: Telling) -> None:
        self.report = report
        self._fn = fn
        self._workshop = workshop
        self._telling = telling

    @property
    def graphed(self) -> bool:
        """Whether there is a graph."""
        return self._workshop is not None and len(self._workshop) > 0

    @property
    def job(self) -> agent.Job:
        """The job that the node's agent hears of these steps from: for checkpoints that are wanted, and phases."""
        return self._telling.job

    def forget(self, why: str) -> None:
        """Gives up every graph; they are made anew. Needed after weights or state were put elsewhere in memory."""
        if self._workshop is not None:
            self._workshop.forget(why)

    def close(self) -> None:
        """Gives the graphs up, and their memory; the agent hears of the last step. The step goes on eagerly."""
        self._telling.flush()  # Before: what it takes to give up graphs is no time of a step.
        self._without_graphs()

    def _without_graphs(self) -> None:
        if self._workshop is not None:
            self._workshop.close()
            self._workshop = None

    def __call__(self, batch: Any) -> Any:
        """Trains on one batch, once. What `fn` returns is detached, and is the caller's to keep."""
        self._telling.begin()
        try:
            result = self._run(batch)
        except Exception as err:
            point_to_guard(err)
            raise
        self.report.steps += 1  # One that failed has trained on nothing.
        self._telling.ended(result)
        return result

    def _run(self, batch: Any) -> Any:
        if self._workshop is not None:
            try:
                return self._workshop.run(batch)
            except GiveUp as err:
                log.warning("eager from here on: %s", err.why)
                self.report.reason = err.why
                self._without_graphs()
            except RuntimeError as err:
                survive(err)
                raise
        return detached(self._fn(batch))


def step(
    fn: Callable[[Any], Any],
    *,
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    scaler: Any = None,
    also: Also = (),
    compile: bool | Mapping[str, Any] = False,
    graph: bool = True,
    lengths: Lengths | None = None,
    policy: Policy | None = None,
    tokens: int | None = None,
    first_step: int = 0,
    job: agent.Job | None = None,
) -> Step:
    """Wraps `fn(batch) -> loss`, a whole training step: forward, backward, clipping, optimizer, zero-grad.

    The first calls run eagerly and are measured. Where the GPU waits for launches the step becomes one CUDA graph for
    each shape of batch, compared with the eager step on the same batch before it counts and again later on. What cannot
    be captured is explained in the log and in `.report`, and runs eagerly. The node's agent hears of the steps, about
    once a second, without a wait for it or for the GPU.

    Args:
        fn: the step. It must depend on nothing but the batch, the model, the optimizer and torch's random numbers, and
            step the optimizer once. For gradient accumulation give all micro-batches of an update to one call.
        model: whose gradients are compared.
        optimizer: one or several; made capturable in place. Learning rates stay numbers, and may change.
        scaler: the GradScaler of float16 runs.
        also: modules and tensors that the step changes beside model and optimizer, such as averaged weights. What is not
            named is changed by comparisons, too, and so more often than once a batch.
        compile: whether the model is compiled in place first, or the keywords of `Module.compile`.
        graph: False runs everything eagerly.
        lengths: pads batches of varying length to buckets.
        policy: when to capture, verify and give up.
        tokens: tokens of a step of this rank, for the agent.
        first_step: steps that were done before, by the process that this one goes on for.
        job: whom the agent hears; None: the job of this process, `farrier.agent.job()`.

    Needs torch 2.5 (`torch.cuda.MemPool`).
    """
    function_of(fn, "fn", "fn(batch) -> loss")
    module_of(model)
    optimizers = optimizers_of(optimizer)
    trained_by(optimizers, model)
    instance_of(lengths, Lengths, "lengths")
    instance_of(policy, Policy, "policy")
    first_step = number_of(first_step, "first_step", 0, "the steps that were done before")
    tokens = tokens if tokens is None else number_of(tokens, "tokens", 1, "the tokens of a step of this rank")
    policy = policy or Policy()
    if agreement.wrapper_of(model) is not None:
        policy = dataclasses.replace(policy, warmups=max(11, policy.warmups))
    if compile:
        model.compile(**(dict(compile) if isinstance(compile, Mapping) else {}))
    report = StepReport(reason=_hindrance(model, optimizers, graph))
    workshop: Workshop | None = None
    if report.reason is None:
        try:
            workshop = Workshop(fn, model, optimizers, scaler, lengths, policy, report, also)
        except UnsupportedOptimizer as err:
            report.reason = err.why
    if report.reason is not None:
        log.info("the step runs eagerly: %s", report.reason)
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    return Step(fn, report, workshop, Telling(job, device=device, tokens=tokens, first_step=first_step))


def _hindrance(model: nn.Module, optimizers: list[Optimizer], graph: bool) -> Reason | None:
    """What is known beforehand to keep a step from being captured."""
    if not graph:
        return Reason("graph=False was given", "give graph=True")
    if not optimizers or not any(True for _ in model.parameters()):
        return Reason("there is no optimizer, or the model has no parameters", "give both")
    why = _on_a_gpu(model)
    if why is not None:
        return why
    if any(getattr(module, "sparse", False) is True for module in model.modules()):
        return Reason("an embedding has sparse gradients, which fused optimizers do not take", "use sparse=False")
    return agreement.hindrance(model)


def _on_a_gpu(model: nn.Module) -> Reason | None:
    devices = {parameter.device for parameter in model.parameters()}
    if len(devices) != 1 or next(iter(devices)).type != "cuda":
        where = ", ".join(sorted(map(str, devices)))
        return Reason(f"the model is on {where}", "a graph needs it on one CUDA device; on a CPU there is none to make")
    return None
