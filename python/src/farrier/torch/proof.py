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

from farrier.plural import percent
from farrier.torch.attempt import Attempts, Setting, Weighed, cut, weighed
from farrier.torch.entry import Entry
from farrier.torch.ladder import Plan
from farrier.torch.oom import Failure, failure_of
from farrier.torch.parallel import synchronising
from farrier.torch.recompute import is_compiled, uncompiled
from farrier.torch.split import NotSplittable, leaves, pieces_of, rows_at

#: What the losses of torch and Hugging Face leave out of the mean, unless they are told otherwise.
IGNORED = -100
#: Gradients are compared of the smallest matrices, of so many elements together.
MOST_ELEMENTS = 1 << 22
#: So many rows at most: one by one they cost as many passes.
MOST_ROWS = 16
#: How far two gradients of the same rows may lie apart, by the coarsest type of the activations: rounding differs where
#: kernels add in another order (0.002 was seen of bfloat16 on a CPU). Float32 may be computed as TF32.
APART = {torch.float64: 1e-6, torch.float32: 0.01, torch.float16: 0.03, torch.bfloat16: 0.1}
#: For types that are not listed (of eight bits); and for losses, which are means and round less.
MOST_APART, LOSSES_APART = 0.3, 0.02


#: Why a batch is not split, and why a call is not tried again.
MIXES_ROWS = (
    "not split: BatchNorm in training mode mixes the rows, as do statistics that are tracked; split_batchnorm=True splits "
    "all the same"
)
NOT_RETRIED = (
    "not retried: parameters have hooks that run once a gradient is there (an optimizer in backward); if memory ran out in "
    "backward, some weights are trained already: go on from a checkpoint"
)


def mixes_rows(module: nn.Module) -> bool:
    """Whether what a module makes of a row, or the statistics that it keeps, depends on the other rows of a pass."""
    if isinstance(module, _BatchNorm):
        return module.training or module.running_mean is None
    return isinstance(module, _InstanceNorm) and module.training and module.track_running_stats


def steps_in_backward(parameters: Sequence[Tensor]) -> bool:
    """Whether something happens as soon as a gradient is there, which cannot be undone for a second attempt."""
    return any(getattr(parameter, "_post_accumulate_grad_hooks", None) for parameter in parameters)


def objection(setting: Setting, batch: Any, parameters: Sequence[Tensor]) -> str | None:
    """Why this batch must not be split, as far as the parameters and the labels say it."""
    if any(parameter._backward_hooks for parameter in parameters):
        return "not split: parameters have hooks (Tensor.register_hook), which would see the gradients of pieces"
    if steps_in_backward(parameters):
        return "not split: parameters have hooks that run once a gradient is there (an optimizer in backward)"
    if setting.mean and setting.count is None and any(map(_ignores, tensors_of(batch))):
        return (
            f"not split: the batch has labels of {IGNORED}, which are left out of the mean: rows do not weigh the same; "
            f'give count=, such as `lambda batch: (batch["labels"] != {IGNORED}).sum()`'
        )
    return None


def tensors_of(batch: Any) -> list[Tensor]:
    """The tensors among its leaves."""
    return [leaf for leaf in leaves(batch) if isinstance(leaf, Tensor)]


def _ignores(labels: Tensor) -> bool:
    if labels.is_nested:
        return any(map(_ignores, labels.unbind()))
    return labels.dtype in (torch.int16, torch.int32, torch.int64) and bool((labels == IGNORED).any())


@dataclass(frozen=True)
class Verdict:
    """Whether batches may run in pieces, and what the user should know of it."""

    split: bool
    note: str | None = None


@dataclass
class Trial:
    """Some rows of a batch as a whole and one by one, with the gradients of both."""

    setting: Setting
    attempts: Attempts
    modules: Sequence[nn.Module]
    batch: Any
    rows: int
    plan: Plan
    entry: Entry
    free: Callable[[], None]
    #: Rows of a piece that are expected to fit: the plan's, or fewer where so many ran out of memory here.
    fitting_rows: int = 0
    _types: set[torch.dtype] = field(default_factory=set)

    def verdict(self) -> Verdict | None:
        """Whether the rows of the loss are independent; None: these cannot tell, for want of a loss or of a gradient.

        As many rows as a piece has are expected to fit; where they do not, half of them, down to two; where these do not,
        their losses alone.
        Leaves gradients, random states and buffers as on entry.
        """
        self.fitting_rows = self.plan.rows
        with resting(self.modules):
            if any(map(mixes_rows, self.modules)):
                return Verdict(True, "split without a check: BatchNorm that tracks no statistics always mixes the rows")
        most = min(max(2, self.plan.rows), MOST_ROWS)
        for count, backward in [*((count, True) for count in _halved(most)), (2, False)]:
            found = self.attempts.caught(functools.partial(self._tried, count, backward))
            self.entry.begin_again()
            self.free()
            if not isinstance(found, Failure):
                return found
            # Compiled code needs less than it does here, where it runs eagerly.
            if backward and not any(map(is_compiled, (self.setting.loss_fn, *self.modules))):
                self.fitting_rows = min(self.plan.rows, max(1, count // 2))
        square = torch.Size([self.rows, self.rows])
        if self.setting.split is pieces_of and any(leaf.shape[:2] == square for leaf in tensors_of(self.batch)):
            return Verdict(
                False,
                f"not split: which dimension of {self.rows} x {self.rows} is that of the rows cannot be told, and there is "
                "no room to try: give split= and rows=",
            )
        return Verdict(True, "split without a check: there was no room for two rows at once")

    def _tried(self, count: int, backward: bool) -> Verdict | None:
        whole, single = self._sample(count)
        try:
            pieces = weighed(self.setting, single, [1] * count, whole)
        except NotSplittable as error:
            return Verdict(False, f"not split: {error}")
        # What mixes rows and is to be split all the same would hide the rest.
        for at_rest in (True,) if any(map(mixes_rows, self.modules)) else (False, True):
            try:
                with resting(self.modules) if at_rest else contextlib.nullcontext():
                    found = self._compared([(whole, None)], pieces, backward)
            except Exception as error:
                if failure_of(error) is not None:
                    raise
                said = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
                if at_rest:
                    return Verdict(True, f"split without a check: the loss is random, and fails in eval mode ({said})")
                return Verdict(False, f"not split: loss_fn fails on some rows of a batch ({said}): give split= and rows=")
            if found is not _RANDOM:
                return found
        return _RANDOM

    def _sample(self, count: int) -> tuple[Any, list[Any]]:
        """Some rows, and the same one by one: larger pieces may weigh alike by accident.

        From the whole of the batch, because rows side by side may be alike, as when they are sorted by length; where the
        user cuts batches, the first.
        """
        if self.setting.split is not pieces_of:
            more = [self.rows - count] if self.rows > count else []
            single = cut(self.setting, self.batch, [*[1] * count, *more])[:count]
            return cut(self.setting, self.batch, [count, *more])[0], single
        places = [place * (self.rows - 1) // (count - 1) for place in range(count)]
        whole, *single = (rows_at(self.batch, self.rows, part) for part in (places, *([place] for place in places)))
        return whole, single

    def _compared(self, whole: list[Weighed], pieces: list[Weighed], backward: bool) -> Verdict | None:
        one, other = self._measured(whole, backward), self._measured(pieces, backward)
        found = _apart(one, other)
        if not math.isfinite(found):
            return None
        allowed = max((APART.get(each, MOST_APART) for each in self._types), default=MOST_APART)
        allowed = allowed if backward else LOSSES_APART
        if found <= allowed:
            return Verdict(True, None if backward else "split with the losses checked alone: for gradients was no room")
        if not _apart(one, self._measured(whole, backward)) <= allowed:
            return _RANDOM
        what = "gradients" if backward else "losses"
        # The loss may be the other of the two: pieces as they are for a sum, each of the same weight for a mean.
        weight = None if self.setting.mean else 1.0 / len(pieces)
        if _apart(one, self._measured([(piece, weight) for piece, _ in pieces], backward)) <= allowed:
            is_a, given = ("sum", "mean") if self.setting.mean else ("mean", "sum")
            said = f"not split: by the {what} of pieces the loss is a {is_a} over rows, and not a {given}"
            return Verdict(False, f'{said}: give reduction="{is_a}"')
        return Verdict(
            False,
            f"not split: pieces give other {what} than the whole ({percent(found)} apart): "
            f"the loss is no {'mean' if self.setting.mean else 'sum'} over rows that are independent of each other, or a "
            "mean over something else than rows (give count=), or what is cut is not the rows (give split= and rows=)",
        )

    def _measured(self, pieces: list[Weighed], backward: bool) -> Tensor:
        """The gradients of some parameters, or the loss, as one vector on the host."""
        self.entry.forget_gradients()
        judged = _smallest([each for module in self.modules for each in module._parameters.values() if each is not None])
        if not (backward and judged):
            with torch.no_grad(), uncompiled(), synchronising(self.setting.parallel, sync=False):
                losses = [self.setting.loss_fn(piece) * (1.0 if weight is None else weight) for piece, weight in pieces]
            return torch.stack([loss.detach().to("cpu", torch.float64).reshape(1) for loss in losses]).sum(0)
        with uncompiled(), torch.autograd.graph.saved_tensors_hooks(self._note_type, lambda kept: kept):
            self.attempts.add_up(pieces, self.plan, self.entry, sync=False)
        gradients = [torch.zeros_like(each) if each.grad is None else each.grad.to_dense() for each in judged]
        return torch.cat([gradient.detach().to("cpu", torch.float64).flatten() for gradient in gradients])

    def _note_type(self, kept: Tensor) -> Tensor:
        if kept.is_floating_point():
            self._types.add(kept.dtype)
        return kept.detach()  # The tensor itself would be held by its own graph, for good when an attempt fails.


#: What is known where there is no verdict.
UNKNOWN = Verdict(True, "split without a check: the rows that were tried had no loss or no gradient to be compared")
#: Two runs of the same rows differ, and nothing can be compared.
_RANDOM = Verdict(True, "split without a check: the loss is random, also in eval mode")


def _halved(count: int) -> list[int]:
    """The number, half of it, and so on, down to two."""
    return [count, *_halved(max(2, count // 2))] if count > 2 else [2]


def _apart(one: Tensor, other: Tensor) -> float:
    """The distance of two vectors, relative to the longer one. Two zeros say nothing: that is no number."""
    length = max(one.norm().item(), other.norm().item())
    return (one - other).norm().item() / length if length else math.nan


def _smallest(parameters: Sequence[Tensor]) -> list[Tensor]:
    """The smallest of those that are trained, at least one if there is one.

    Matrices where there are some: in the gradients of norms and biases more cancels, and rounding shows more.
    """
    trained = [each for each in dict.fromkeys(parameters) if each.requires_grad]
    chosen: list[Tensor] = []
    elements = 0
    for parameter in sorted([each for each in trained if each.ndim > 1] or trained, key=Tensor.numel):
        elements += parameter.numel()
        if chosen and elements > MOST_ELEMENTS:
            break
        chosen.append(parameter)
    return chosen


@contextlib.contextmanager
def resting(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Within, modules are in eval mode: dropout draws nothing. By the attribute: an own `train()` may do other things."""
    trained = [module for module in modules if module.training]
    try:
        for module in trained:
            module.training = False
        yield
    finally:
        for module in trained:
            module.training = True
