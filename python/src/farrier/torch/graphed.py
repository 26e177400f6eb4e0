"""A whole training step as one CUDA graph, verified against the eager step it replaces."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

from farrier.torch.capture import detached
from farrier.torch.explain import Reason
from farrier.torch.lengths import Lengths
from farrier.torch.optimizer import UnsupportedOptimizer
from farrier.torch.policy import Policy
from farrier.torch.report import StepReport
from farrier.torch.workshop import GiveUp, Workshop, survive

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

    def __call__(self, batch: Any) -> Any:
        """Trains on one batch, once. What `fn` returns is detached, and is the caller's to keep."""
        self.report.steps += 1
        if self._workshop is not None:
            try:
                return self._workshop.run(batch)
            except GiveUp as err:
                log.warning("eager from here on: %s", err.why)
                self.report.reason = err.why
                self._workshop.close()
                self._workshop = None
                if err.trained:
                    return err.result
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
    report = StepReport(reason=_hindrance(model, optimizers, graph))
    if report.reason is not None:
        return Step(fn, report, None)
    try:
        return Step(fn, report, Workshop(fn, model, optimizers, scaler, lengths, policy, report))
    except UnsupportedOptimizer as err:
        report.reason = err.why
        return Step(fn, report, None)


def _hindrance(model: nn.Module, optimizers: list[Optimizer], graph: bool) -> Reason | None:
    """What is known beforehand to keep a step from being captured."""
    if not graph:
        return Reason("graph=False was given", "give graph=True")
    if not optimizers or not any(True for _ in model.parameters()):
        return Reason("there is no optimizer, or the model has no parameters", "give both")
    devices = {parameter.device for parameter in model.parameters()}
    if len(devices) != 1 or next(iter(devices)).type != "cuda":
        return Reason(f"the model is on {', '.join(sorted(map(str, devices)))}", "graphs need one CUDA device")
    return None
