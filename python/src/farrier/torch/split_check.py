"""Whether a batch may run in pieces: what is known to be wrong is refused, and the rest is tried once on some rows.

Nothing here runs before a guard has to split.
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
from farrier.torch.attempt import AttemptRunner, GuardConfig, WeightedPiece, split_batch, weighted
from farrier.torch.ddp import gradient_sync
from farrier.torch.oom import OomFailure, parse_oom
from farrier.torch.recompute import compile_disabled, is_compiled
from farrier.torch.retry_policy import Plan
from farrier.torch.split import NotSplittable, leaves, select_rows, split_rows
from farrier.torch.state_snapshot import StateSnapshot

#: What the losses of torch and Hugging Face leave out of the mean, unless they are told otherwise.
IGNORED_LABEL = -100
#: Gradients are compared of the smallest matrices, of so many elements together.
MAX_ELEMENTS = 1 << 22
#: So many rows at most: one by one they cost as many passes.
MAX_ROWS = 16
#: How far two gradients of the same rows may lie apart, by the coarsest type of the activations: rounding differs where
#: kernels add in another order (0.002 was seen of bfloat16 on a CPU). Float32 may be computed as TF32.
MAX_RELATIVE_DIFFERENCE = {torch.float64: 1e-6, torch.float32: 0.01, torch.float16: 0.03, torch.bfloat16: 0.1}
#: For types that are not listed (of eight bits); and for losses, which are means and round less.
MAX_DIFFERENCE_OTHER, MAX_LOSS_DIFFERENCE = 0.3, 0.02


#: Why a batch is not split, and why a call is not tried again.
MIXES_ROWS_NOTE = (
    "not split: BatchNorm in training mode mixes the rows, as do statistics that are tracked; split_batchnorm=True splits "
    "all the same"
)
NO_RETRY_NOTE = (
    "not retried: parameters have hooks that run once a gradient is there (an optimizer in backward); if memory ran out in "
    "backward, some weights are trained already: go on from a checkpoint"
)


def mixes_rows(module: nn.Module) -> bool:
    """Whether what a module makes of a row, or the statistics that it keeps, depends on the other rows of a pass."""
    if isinstance(module, _BatchNorm):
        return module.training or module.running_mean is None
    return isinstance(module, _InstanceNorm) and module.training and module.track_running_stats


def has_post_accumulate_hooks(parameters: Sequence[Tensor]) -> bool:
    """Whether something happens as soon as a gradient is there, which cannot be undone for a second attempt."""
    return any(getattr(parameter, "_post_accumulate_grad_hooks", None) for parameter in parameters)


def split_refusal(config: GuardConfig, batch: Any, parameters: Sequence[Tensor]) -> str | None:
    """Why this batch must not be split, as far as the parameters and the labels say it."""
    if any(parameter._backward_hooks for parameter in parameters):
        return "not split: parameters have hooks (Tensor.register_hook), which would see the gradients of pieces"
    if has_post_accumulate_hooks(parameters):
        return "not split: parameters have hooks that run once a gradient is there (an optimizer in backward)"
    if config.mean and config.count is None and any(map(_has_ignored_labels, batch_tensors(batch))):
        return (
            f"not split: the batch has labels of {IGNORED_LABEL}, which are left out of the mean: rows do not weigh the same; "
            f'give count=, such as `lambda batch: (batch["labels"] != {IGNORED_LABEL}).sum()`'
        )
    return None


def batch_tensors(batch: Any) -> list[Tensor]:
    """The tensors among its leaves."""
    return [leaf for leaf in leaves(batch) if isinstance(leaf, Tensor)]


def _has_ignored_labels(labels: Tensor) -> bool:
    if labels.is_nested:
        return any(map(_has_ignored_labels, labels.unbind()))
    return labels.dtype in (torch.int16, torch.int32, torch.int64) and bool((labels == IGNORED_LABEL).any())


@dataclass(frozen=True)
class SplitVerdict:
    """Whether batches may run in pieces, and what the user should know of it."""

    split: bool
    note: str | None = None


@dataclass
class SplitCheck:
    """Some rows of a batch as a whole and one by one, with the gradients of both."""

    config: GuardConfig
    attempts: AttemptRunner
    modules: Sequence[nn.Module]
    batch: Any
    rows: int
    plan: Plan
    snapshot: StateSnapshot
    free: Callable[[], None]
    #: Rows of a piece that are expected to fit: the plan's, or fewer where so many ran out of memory here.
    expected_fitting_rows: int = 0
    _saved_dtypes: set[torch.dtype] = field(default_factory=set)

    def run(self) -> SplitVerdict | None:
        """Whether the rows of the loss are independent; None: these cannot tell, for want of a loss or of a gradient.

        As many rows as a piece has are expected to fit; where they do not, half of them, down to two; where these do not,
        their losses alone.
        Leaves gradients, random states and buffers as on entry.
        """
        self.expected_fitting_rows = self.plan.rows
        with eval_mode(self.modules):
            if any(map(mixes_rows, self.modules)):
                return SplitVerdict(
                    True, "split without a check: BatchNorm that tracks no statistics always mixes the rows"
                )
        max_rows = min(max(2, self.plan.rows), MAX_ROWS)
        for count, backward in [*((count, True) for count in _halved(max_rows)), (2, False)]:
            verdict = self.attempts.catch_oom(functools.partial(self._compare_rows, count, backward))
            self.snapshot.reset()
            self.free()
            if not isinstance(verdict, OomFailure):
                return verdict
            # Compiled code needs less than it does here, where it runs eagerly.
            if backward and not any(map(is_compiled, (self.config.loss_fn, *self.modules))):
                self.expected_fitting_rows = min(self.plan.rows, max(1, count // 2))
        square = torch.Size([self.rows, self.rows])
        if self.config.split is split_rows and any(leaf.shape[:2] == square for leaf in batch_tensors(self.batch)):
            return SplitVerdict(
                False,
                f"not split: which dimension of {self.rows} x {self.rows} is that of the rows cannot be told, and there is "
                "no room to try: give split= and rows=",
            )
        return SplitVerdict(True, "split without a check: there was no room for two rows at once")

    def _compare_rows(self, count: int, backward: bool) -> SplitVerdict | None:
        whole, single_rows = self._sample(count)
        try:
            pieces = weighted(self.config, single_rows, [1] * count, whole)
        except NotSplittable as error:
            return SplitVerdict(False, f"not split: {error}")
        # What mixes rows and is to be split all the same would hide the rest.
        for in_eval_mode in (True,) if any(map(mixes_rows, self.modules)) else (False, True):
            try:
                with eval_mode(self.modules) if in_eval_mode else contextlib.nullcontext():
                    verdict = self._compare([(whole, None)], pieces, backward)
            except Exception as error:
                if parse_oom(error) is not None:
                    raise
                message = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
                if in_eval_mode:
                    return SplitVerdict(
                        True, f"split without a check: the loss is random, and fails in eval mode ({message})"
                    )
                return SplitVerdict(
                    False, f"not split: loss_fn fails on some rows of a batch ({message}): give split= and rows="
                )
            if verdict is not _RANDOM_LOSS:
                return verdict
        return _RANDOM_LOSS

    def _sample(self, count: int) -> tuple[Any, list[Any]]:
        """Some rows, and the same one by one: larger pieces may weigh alike by accident.

        From the whole of the batch, because rows side by side may be alike, as when they are sorted by length; where the
        user cuts batches, the first.
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

    def _compare(self, whole: list[WeightedPiece], pieces: list[WeightedPiece], backward: bool) -> SplitVerdict | None:
        one, other = self._measure(whole, backward), self._measure(pieces, backward)
        verdict = _relative_distance(one, other)
        if not math.isfinite(verdict):
            return None
        allowed = max(
            (MAX_RELATIVE_DIFFERENCE.get(each, MAX_DIFFERENCE_OTHER) for each in self._saved_dtypes),
            default=MAX_DIFFERENCE_OTHER,
        )
        allowed = allowed if backward else MAX_LOSS_DIFFERENCE
        if verdict <= allowed:
            return SplitVerdict(
                True, None if backward else "split with the losses checked alone: for gradients was no room"
            )
        if not _relative_distance(one, self._measure(whole, backward)) <= allowed:
            return _RANDOM_LOSS
        what = "gradients" if backward else "losses"
        # The loss may be the other of the two: pieces as they are for a sum, each of the same weight for a mean.
        weight = None if self.config.mean else 1.0 / len(pieces)
        if _relative_distance(one, self._measure([(piece, weight) for piece, _ in pieces], backward)) <= allowed:
            actual, declared = ("sum", "mean") if self.config.mean else ("mean", "sum")
            message = f"not split: by the {what} of pieces the loss is a {actual} over rows, and not a {declared}"
            return SplitVerdict(False, f'{message}: give reduction="{actual}"')
        return SplitVerdict(
            False,
            f"not split: pieces give other {what} than the whole ({format_percent(verdict)} apart): "
            f"the loss is no {'mean' if self.config.mean else 'sum'} over rows that are independent of each other, or a "
            "mean over something else than rows (give count=), or what is cut is not the rows (give split= and rows=)",
        )

    def _measure(self, pieces: list[WeightedPiece], backward: bool) -> Tensor:
        """The gradients of some parameters, or the loss, as one vector on the host."""
        self.snapshot.clear_gradients()
        compared_parameters = _smallest(
            [each for module in self.modules for each in module._parameters.values() if each is not None]
        )
        if not (backward and compared_parameters):
            with torch.no_grad(), compile_disabled(), gradient_sync(self.config.parallel, sync=False):
                losses = [self.config.loss_fn(piece) * (1.0 if weight is None else weight) for piece, weight in pieces]
            return torch.stack([loss.detach().to("cpu", torch.float64).reshape(1) for loss in losses]).sum(0)
        with compile_disabled(), torch.autograd.graph.saved_tensors_hooks(self._record_dtype, lambda tensor: tensor):
            self.attempts.accumulate(pieces, self.plan, self.snapshot, sync=False)
        gradients = [torch.zeros_like(each) if each.grad is None else each.grad.to_dense() for each in compared_parameters]
        return torch.cat([gradient.detach().to("cpu", torch.float64).flatten() for gradient in gradients])

    def _record_dtype(self, tensor: Tensor) -> Tensor:
        if tensor.is_floating_point():
            self._saved_dtypes.add(tensor.dtype)
        return tensor.detach()  # The tensor itself would be held by its own graph, for good when an attempt fails.


#: What is known where there is no verdict.
NOT_COMPARABLE = SplitVerdict(
    True, "split without a check: the rows that were tried had no loss or no gradient to be compared"
)
#: Two runs of the same rows differ, and nothing can be compared.
_RANDOM_LOSS = SplitVerdict(True, "split without a check: the loss is random, also in eval mode")


def _halved(count: int) -> list[int]:
    """The number, half of it, and so on, down to two."""
    return [count, *_halved(max(2, count // 2))] if count > 2 else [2]


def _relative_distance(one: Tensor, other: Tensor) -> float:
    """The distance of two vectors, relative to the longer one. Two zeros say nothing: that is no number."""
    length = max(one.norm().item(), other.norm().item())
    return (one - other).norm().item() / length if length else math.nan


def _smallest(parameters: Sequence[Tensor]) -> list[Tensor]:
    """The smallest of those that are trained, at least one if there is one.

    Matrices where there are some: in the gradients of norms and biases more cancels, and rounding shows more.
    """
    training_modules = [each for each in dict.fromkeys(parameters) if each.requires_grad]
    chosen: list[Tensor] = []
    elements = 0
    for parameter in sorted([each for each in training_modules if each.ndim > 1] or training_modules, key=Tensor.numel):
        elements += parameter.numel()
        if chosen and elements > MAX_ELEMENTS:
            break
        chosen.append(parameter)
    return chosen


@contextlib.contextmanager
def eval_mode(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Within, modules are in eval mode: dropout draws nothing. By the attribute: an own `train()` may do other things."""
    training_modules = [module for module in modules if module.training]
    try:
        for module in training_modules:
            module.training = False
        yield
    finally:
        for module in training_modules:
            module.training = True
