"""A whole training step as one CUDA graph, verified against the eager step it replaces."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

from farrier.torch import agreement
from farrier.torch.capture import detached, survive
from farrier.torch.explain import GiveUp, Reason
from farrier.torch.lengths import Lengths
from farrier.torch.optimizer import UnsupportedOptimizer
from farrier.torch.policy import Policy
from farrier.torch.report import StepReport
from farrier.torch.undo import Also
from farrier.torch.workshop import Workshop

log = logging.getLogger("farrier.torch")


class Step:
    """What `farrier.torch.step` returns: call it as the function it wraps."""

    def __init__(self, fn: Callable[[Any], Any], report: StepReport, workshop: Workshop | None) -> None:
        self.report = report
        self._fn = fn
        self._workshop = workshop

    @property
    def graphed(self) -> bool:
        """Whether there is a graph."""
        return self._workshop is not None and len(self._workshop) > 0

    def forget(self, why: str) -> None:
        """Gives up every graph; they are made anew. Needed after weights or state were put elsewhere in memory."""
        if self._workshop is not None:
            self._workshop.forget(why)

    def close(self) -> None:
        """Gives the graphs up, and their memory. The step goes on eagerly."""
        if self._workshop is not None:
            self._workshop.close()
            self._workshop = None

    def __call__(self, batch: Any) -> Any:
        """Trains on one batch, once. What `fn` returns is detached, and is the caller's to keep."""
        self.report.steps += 1
        if self._workshop is not None:
            try:
                return self._workshop.run(batch)
            except GiveUp as err:
                log.warning("eager from here on: %s", err.why)
                self.report.reason = err.why
                self.close()
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
) -> Step:
    """Wraps `fn(batch) -> loss`, a whole training step: forward, backward, clipping, optimizer, zero-grad.

    The first calls run eagerly and are measured. Where the GPU waits for launches the step becomes one CUDA graph for
    each shape of batch, compared with the eager step on the same batch before it counts and again later on. What cannot
    be captured is explained in the log and in `.report`, and runs eagerly.

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

    Needs torch 2.5 (`torch.cuda.MemPool`).
    """
    optimizers = [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)
    policy = policy or Policy()
    if agreement.wrapper_of(model) is not None:
        policy = dataclasses.replace(policy, warmups=max(11, policy.warmups))
    if compile:
        model.compile(**(dict(compile) if isinstance(compile, Mapping) else {}))
    report = StepReport(reason=_hindrance(model, optimizers, graph))
    if report.reason is not None:
        return Step(fn, report, None)
    try:
        return Step(fn, report, Workshop(fn, model, optimizers, scaler, lengths, policy, report, also))
    except UnsupportedOptimizer as err:
        report.reason = err.why
        return Step(fn, report, None)


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
        return Reason(f"the model is on {', '.join(sorted(map(str, devices)))}", "graphs need one CUDA device")
    return None
