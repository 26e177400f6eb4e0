"""Runs each update of Hugging Face's Trainer as one call, which can be captured."""

from __future__ import annotations

import importlib
import logging
import types
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from farrier.torch.arguments import type_name
from farrier.torch.graph_policy import Policy
from farrier.torch.lengths import Lengths
from farrier.torch.training_step import Step, step

log = logging.getLogger("farrier.torch")


class WholeUpdate:
    """Replaces a Trainer's forward, backward, clipping and optimizer step by one call per update.

    The Trainer runs forward and backward for each micro-batch, then clips and steps. Here
    micro-batches are queued until the last one of an update arrives. Then the whole update runs as
    one call, and the Trainer's own clipping and stepping do nothing. Order and contents of the
    batches do not change.
    """

    def __init__(self, trainer: Any, options: dict[str, Any]) -> None:
        self.step: Step | None = None
        self._trainer, self._options = trainer, options
        self._backward = trainer.training_step
        self._built_for: tuple[Any, ...] = ()
        self._waiting: list[dict[str, Any]] = []
        self._norm: Tensor | None = None

    def training_step(self, model: Any, inputs: Mapping[str, Any], num_items_in_batch: Any = None, **_: Any) -> Tensor:
        """Queues a micro-batch, and runs the update if it is the last one of an update.

        Returns the loss of the update, or zero if the micro-batch was only queued.
        """
        self._waiting.append(dict(inputs))
        device = self._trainer.args.device
        if not self._trainer.accelerator.sync_gradients:
            return torch.zeros((), device=device)
        items = None if num_items_in_batch is None else torch.as_tensor(num_items_in_batch).to(device)
        batch = {"micro": self._waiting, "items": items}
        self._waiting = []
        loss, self._norm = self._step_for(model)(batch)
        return torch.as_tensor(loss)

    def begin(self) -> None:
        """Starts a training run. Drops the micro-batches that an aborted run left in the queue."""
        self._waiting = []

    def _step_for(self, model: Any) -> Step:
        """Returns the step. A new model or optimizer (`model_init`) gets a new step."""
        now = (model, self._trainer.optimizer, self._trainer.accelerator)
        if self.step is None or any(built is not current for built, current in zip(self._built_for, now, strict=True)):
            if self.step is not None:
                self.step.close()
            self.step, self._built_for = self._new_step(model), now
        return self.step

    def _new_step(self, model: Any) -> Step:
        optimizer = self._trainer.optimizer
        while hasattr(optimizer, "optimizer"):  # Unwrap Accelerate's wrapper, whose `step` is replaced below.
            optimizer = optimizer.optimizer
        self._trainer.optimizer.step = types.MethodType(_step_done, self._trainer.optimizer)
        self._trainer.accelerator.clip_grad_norm_ = self._clipped

        def update(batch: dict[str, Any]) -> tuple[Tensor, Tensor]:
            optimizer.zero_grad(set_to_none=True)
            losses = [self._backward(model, dict(micro), batch["items"]) for micro in batch["micro"]]
            limit = self._trainer.args.max_grad_norm or float("inf")
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
            optimizer.step()
            return torch.stack([loss.detach() for loss in losses]).sum(), norm

        done = int(self._trainer.state.global_step)
        return step(update, model=model, optimizer=optimizer, first_step=done, **self._options)

    def _clipped(self, *_: Any, **__: Any) -> Tensor | None:
        return self._norm


def _step_done(optimizer: Any, *_: Any, **__: Any) -> None:
    """Replaces the optimizer's `step`, because the update has already stepped.

    It sets the mark by which schedulers check that the optimizer stepped before them.
    """
    optimizer._opt_called = True


# Marks the function as wrapped by a scheduler. Otherwise schedulers warn that `step` was replaced.
_step_done._wrapped_by_lr_sched = True  # type: ignore[attr-defined]


def trainer(
    trainer: Any, *, compile: bool | Mapping[str, Any] = False, lengths: Lengths | None = None, policy: Policy | None = None
) -> Any:
    """Makes a `transformers.Trainer` run each update as one verified graph.

    Call it before `train()`.

    Returns the Trainer. `trainer.farrier.step.report` describes how its updates ran. A Trainer with
    float16 and a scaler, DeepSpeed, FSDP, Megatron or DataParallel is left unchanged, with a log
    message, because its update is not one function on one device.

    Tried with transformers 5.17 and 5.22.
    """
    if not all(hasattr(trainer, name) for name in ("accelerator", "training_step")):
        raise TypeError(f"trainer is {type_name(trainer)}: pass a transformers.Trainer before its train()")
    reason = _unsupported_reason(trainer)
    if reason:
        log.warning("the Trainer is left unchanged: %s", reason)
        return trainer
    whole_update = WholeUpdate(trainer, {"compile": compile, "lengths": lengths, "policy": policy})
    trainer.training_step = whole_update.training_step
    trainer.add_callback(_train_begin_callback(whole_update))
    trainer.farrier = whole_update
    return trainer


def _train_begin_callback(whole_update: WholeUpdate) -> Any:
    """A callback for the start of a training run."""
    transformers: Any = importlib.import_module("transformers")
    handlers = {"on_train_begin": lambda *_, **__: whole_update.begin()}
    return type("Beginning", (transformers.TrainerCallback,), handlers)()


def _unsupported_reason(trainer: Any) -> str | None:
    distributed_type = str(getattr(trainer.accelerator, "distributed_type", "")).upper()
    if any(name in distributed_type for name in ("DEEPSPEED", "FSDP", "MEGATRON")):
        return f"it runs with {distributed_type.rsplit('.', 1)[-1]}"
    if getattr(trainer.accelerator, "scaler", None) is not None or trainer.args.fp16:
        return "it scales float16 gradients: use bf16=True"
    if trainer.args.n_gpu > 1:
        return "it runs DataParallel on several GPUs in one process: use torchrun"
    return None
