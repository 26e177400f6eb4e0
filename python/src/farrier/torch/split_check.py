"""Checks whether a batch may be split: known obstacles first, then a comparison on some rows.

A guard runs these checks only when it has to split.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from farrier.formatting import format_percent
from farrier.torch.attempt import AttemptRunner, GuardConfig, WeightedMicroBatch, split_batch, weighted
from farrier.torch.ddp import gradient_sync
from farrier.torch.oom import OomFailure, parse_oom
from farrier.torch.recompute import compile_disabled, is_compiled
from farrier.torch.retry_policy import Plan
from farrier.torch.split import NotSplittable, leaves, select_rows, split_rows
from farrier.torch.state_snapshot import StateSnapshot

#: Label that the losses of torch and Hugging Face exclude from the mean by default.
IGNORED_LABEL = -100
#: Gradients of the smallest matrices are compared, up to this many elements in total.
MAX_ELEMENTS = 1 << 22
#: Maximum number of compared rows. Each row costs a pass, because rows also run one by one.
MAX_ROWS = 16
#: Allowed relative distance between two gradients of the same rows, by the coarsest dtype of the
#: activations. Rounding differs if kernels add in another order (0.002 was seen for bfloat16 on a
#: CPU). float32 may be computed as TF32.
MAX_RELATIVE_DIFFERENCE = {torch.float64: 1e-6, torch.float32: 0.01, torch.float16: 0.03, torch.bfloat16: 0.1}
#: The limits for dtypes that are not listed (8-bit), and for losses, whose rounding averages out.
MAX_DIFFERENCE_OTHER, MAX_LOSS_DIFFERENCE = 0.3, 0.02


#: Notes for the user: why a batch is not split, and why a call is not retried.
MIXES_ROWS_NOTE = (
    "not split: BatchNorm in training mode, or tracked statistics, mix the rows; split_batchnorm=True splits anyway"
)
NO_RETRY_NOTE = (
    "not retried: parameters have hooks that run once a gradient is accumulated (an optimizer in backward); if memory "
    "ran out in backward, some weights are already updated: resume from a checkpoint"
)


def mixes_rows(module: nn.Module) -> bool:
    """Whether a module's output for a row, or its statistics, depend on other rows."""
    if isinstance(module, _BatchNorm):
        return module.training or module.running_mean is None
    return isinstance(module, _InstanceNorm) and module.training and module.track_running_stats


def has_post_accumulate_hooks(parameters: Sequence[Tensor]) -> bool:
    """Whether hooks run as soon as a gradient is accumulated. A retry cannot undo their effects."""
    return any(getattr(parameter, "_post_accumulate_grad_hooks", None) for parameter in parameters)


def split_refusal(config: GuardConfig, batch: Any, parameters: Sequence[Tensor]) -> str | None:
    """Returns why this batch must not be split, judging by parameters and labels, or None."""
    if any(parameter._backward_hooks for parameter in parameters):
        return "not split: parameters have hooks (Tensor.register_hook), which would see micro-batch gradients"
    if has_post_accumulate_hooks(parameters):
        return "not split: parameters have hooks that run once a gradient is accumulated (an optimizer in backward)"
    if config.mean and config.count is None and any(map(_has_ignored_labels, batch_tensors(batch))):
        return (
            f"not split: the batch has labels of {IGNORED_LABEL}, which the mean excludes, so rows have different weights; "
            f'pass count=, such as `lambda batch: (batch["labels"] != {IGNORED_LABEL}).sum()`'
        )
    return None


def batch_tensors(batch: Any) -> list[Tensor]:
    """The tensors among the batch's leaves."""
    return [leaf for leaf in leaves(batch) if isinstance(leaf, Tensor)]


def _has_ignored_labels(labels: Tensor) -> bool:
    if labels.is_nested:
        return any(map(_has_ignored_labels, labels.unbind()))
    return labels.dtype in (torch.int16, torch.int32, torch.int64) and bool((labels == IGNORED_LABEL).any())


@dataclass(frozen=True)
class SplitVerdict:
    """Whether batches may be split, with a note for the user."""

    split: bool
    note: str | None = None


@dataclass
class SplitCheck:
    """Runs some rows of a batch together and one by one, and compares the gradients."""

    config: GuardConfig
    attempts: AttemptRunner
    modules: Sequence[nn.Module]
    batch: Any
    rows: int
    plan: Plan
    snapshot: StateSnapshot
    free: Callable[[], None]
    #: Rows of a micro-batch that are expected to fit: as many as in the plan, or fewer if that many
    #: rows ran out of memory in this check.
    expected_fitting_rows: int = 0
    _saved_dtypes: set[torch.dtype] = field(default_factory=set)

    def run(self) -> SplitVerdict | None:
        """Returns whether the rows contribute to the loss independently.

        Returns None if these rows cannot show that, because they have no loss or no gradient.

        The check starts with as many rows as a micro-batch of the plan has. If they do not fit, it
        halves the number, down to two. If two rows do not fit, it compares only losses. Gradients,
        RNG states and buffers are left as on entry.
        """
        self.expected_fitting_rows = self.plan.rows
        with eval_mode(self.modules):
            if any(map(mixes_rows, self.modules)):
                return SplitVerdict(True, "split unchecked: BatchNorm without tracked statistics always mixes the rows")
        max_rows = min(max(2, self.plan.rows), MAX_ROWS)
        for count, backward in [*((count, True) for count in _halved(max_rows)), (2, False)]:
            verdict = self.attempts.catch_oom(functools.partial(self._compare_rows, count, backward))
            self.snapshot.reset()
            self.free()
            if not isinstance(verdict, OomFailure):
                return verdict
            # If the model is compiled, this eager run needs more memory than a real step, so its
            # failure does not show that the rows do not fit.
            if backward and not any(map(is_compiled, (self.config.loss_fn, *self.modules))):
                self.expected_fitting_rows = min(self.plan.rows, max(1, count // 2))
        square = torch.Size([self.rows, self.rows])
        if self.config.split is split_rows and any(leaf.shape[:2] == square for leaf in batch_tensors(self.batch)):
            return SplitVerdict(
                False,
                f"not split: the row dimension of {self.rows} x {self.rows} is ambiguous, and there is no memory to try: "
                "pass split= and rows=",
            )
        return SplitVerdict(True, "split unchecked: no memory for two rows at once")

    def _compare_rows(self, count: int, backward: bool) -> SplitVerdict | None:
        whole, single_rows = self._sample(count)
        try:
            micro_batches = weighted(self.config, single_rows, [1] * count, whole)
        except NotSplittable as error:
            return SplitVerdict(False, f"not split: {error}")
        # Modules that mix rows (allowed by `split_batchnorm`) would hide other differences, so then
        # compare in eval mode only.
        for in_eval_mode in (True,) if any(map(mixes_rows, self.modules)) else (False, True):
            try:
                with eval_mode(self.modules) if in_eval_mode else contextlib.nullcontext():
                    verdict = self._compare([(whole, None)], micro_batches, backward)
            except Exception as error:
                if parse_oom(error) is not None:
                    raise
                message = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
                if in_eval_mode:
                    return SplitVerdict(True, f"split unchecked: the loss is random, and fails in eval mode ({message})")
                return SplitVerdict(
                    False, f"not split: loss_fn fails on some rows of a batch ({message}): pass split= and rows="
                )
            if verdict is not _RANDOM_LOSS:
                return verdict
        return _RANDOM_LOSS

    def _sample(self, count: int) -> tuple[Any, list[Any]]:
        """Returns some rows together, and the same rows one by one.

        Groups larger than one row could give matching gradients by accident. The rows are spread
        over the batch, because neighbours may be alike, as in batches sorted by length. With the
        user's own `split`, they are the first rows.
        """
        if self.config.split is not split_rows:
            more = [self.rows - count] if self.rows > count else []
            single_rows = split_batch(self.config, self.batch, [*[1] * count, *more])[:count]
            return split_batch(self.config, self.batch, [count, *more])[0], single_rows
        indices = [index * (self.rows - 1) // (count - 1) for index in range(count)]
        whole, *single_rows = (
            select_rows(self.batch, self.rows, part) for part in (indices, *([index] for index in indices))
        )
        return whole, single_rows

    def _compare(
        self, whole: list[WeightedMicroBatch], micro_batches: list[WeightedMicroBatch], backward: bool
    ) -> SplitVerdict | None:
        one, other = self._measure(whole, backward), self._measure(micro_batches, backward)
        distance = _relative_distance(one, other)
        if not math.isfinite(distance):
            return None
        allowed = max(
            (MAX_RELATIVE_DIFFERENCE.get(each, MAX_DIFFERENCE_OTHER) for each in self._saved_dtypes),
            default=MAX_DIFFERENCE_OTHER,
        )
        allowed = allowed if backward else MAX_LOSS_DIFFERENCE
        if distance <= allowed:
            return SplitVerdict(True, None if backward else "split with only the losses checked: no memory for gradients")
        if not _relative_distance(one, self._measure(whole, backward)) <= allowed:
            return _RANDOM_LOSS
        what = "gradients" if backward else "losses"
        # The loss may be reduced in the other way than declared. Try that: unweighted micro-batches
        # for a sum, equal weights for a mean.
        weight = None if self.config.mean else 1.0 / len(micro_batches)
        if (
            _relative_distance(one, self._measure([(micro_batch, weight) for micro_batch, _ in micro_batches], backward))
            <= allowed
        ):
            actual, declared = ("sum", "mean") if self.config.mean else ("mean", "sum")
            message = f"not split: by the {what} of micro-batches the loss is a {actual} over rows, not a {declared}"
            return SplitVerdict(False, f'{message}: pass reduction="{actual}"')
        return SplitVerdict(
            False,
            f"not split: micro-batches give different {what} than the whole batch ({format_percent(distance)} apart): "
            f"the loss is not a {'mean' if self.config.mean else 'sum'} over independent rows, or a mean over something "
            "other than rows (pass count=), or the batch is not split along its rows (pass split= and rows=)",
        )

    def _measure(self, micro_batches: list[WeightedMicroBatch], backward: bool) -> Tensor:
        """Returns the gradients of some parameters, or the loss, as one vector on the host."""
        self.snapshot.clear_gradients()
        compared_parameters = _smallest(
            [each for module in self.modules for each in module._parameters.values() if each is not None]
        )
        if not (backward and compared_parameters):
            with torch.no_grad(), compile_disabled(), gradient_sync(self.config.parallel, sync=False):
                losses = [
                    self.config.loss_fn(micro_batch) * (1.0 if weight is None else weight)
                    for micro_batch, weight in micro_batches
                ]
            return torch.stack([loss.detach().to("cpu", torch.float64).reshape(1) for loss in losses]).sum(0)
        with compile_disabled(), torch.autograd.graph.saved_tensors_hooks(self._record_dtype, lambda tensor: tensor):
            self.attempts.accumulate(micro_batches, self.plan, self.snapshot, sync=False)
        gradients = [torch.zeros_like(each) if each.grad is None else each.grad.to_dense() for each in compared_parameters]
        return torch.cat([gradient.detach().to("cpu", torch.float64).flatten() for gradient in gradients])

    def _record_dtype(self, tensor: Tensor) -> Tensor:
        if tensor.is_floating_point():
            self._saved_dtypes.add(tensor.dtype)
        # Detached, because a saved tensor and its autograd graph would otherwise reference each
        # other, and would never be freed if an attempt fails.
        return tensor.detach()


#: The verdict if the check had no result.
NOT_COMPARABLE = SplitVerdict(True, "split unchecked: the sampled rows had no loss or no gradient to compare")
#: Two runs of the same rows differ, so nothing can be compared.
_RANDOM_LOSS = SplitVerdict(True, "split unchecked: the loss is random, also in eval mode")


def _halved(count: int) -> list[int]:
    """The number, its half, and so on down to two."""
    return [count, *_halved(max(2, count // 2))] if count > 2 else [2]


def _relative_distance(one: Tensor, other: Tensor) -> float:
    """Distance of two vectors, relative to the longer one.

    NaN if both are zero, because equal zeros prove nothing.
    """
    length = max(one.norm().item(), other.norm().item())
    return (one - other).norm().item() / length if length else math.nan


def _smallest(parameters: Sequence[Tensor]) -> list[Tensor]:
    """Returns the smallest trained parameters; at least one if there are any.

    Only matrices are used if there are any: in the gradients of norms and biases more terms cancel,
    so rounding has a larger effect.
    """
    trained = [each for each in dict.fromkeys(parameters) if each.requires_grad]
    chosen: list[Tensor] = []
    elements = 0
    for parameter in sorted([each for each in trained if each.ndim > 1] or trained, key=Tensor.numel):
        elements += parameter.numel()
        if chosen and elements > MAX_ELEMENTS:
            break
        chosen.append(parameter)
    return chosen


@contextlib.contextmanager
def eval_mode(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Inside the context, modules are in eval mode, so that dropout draws nothing.

    It sets the attribute `training`, because a custom `train()` may do other things too.
    """
    training_modules = [module for module in modules if module.training]
    try:
        for module in training_modules:
            module.training = False
        yield
    finally:
        for module in training_modules:
            module.training = True
