"""One attempt at a forward and backward pass, whole or in pieces."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from farrier.torch.entry import Entry
from farrier.torch.ladder import Plan
from farrier.torch.oom import Failure, failure_of, let_go
from farrier.torch.parallel import OutOfStep, forget_attempt, stamp, synchronising
from farrier.torch.recompute import offloading, recomputing
from farrier.torch.split import NotSplittable, Split

Result = TypeVar("Result")
Count = Callable[[Any], "int | Tensor"]
#: A piece and its weight in the mean; None: as it is.
Weighed = tuple[Any, "float | None"]


@dataclass(frozen=True)
class Setting:
    """What the user decided, for all calls."""

    loss_fn: Callable[[Any], Tensor]
    modules: Sequence[nn.Module]
    blocks: Sequence[nn.Module]
    mean: bool
    count: Count | None
    split: Split
    scaler: Any
    parallel: DistributedDataParallel | None
    sync_last: bool


class Attempts:
    """Runs plans and says how they ended."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._before_reduction: list[tuple[int, int] | None] | None = None
        self._leaves_known = False

    def captured(self, batch: Any) -> Tensor:
        """One whole pass inside a capture, where nothing can be tried again: memory is taken now and not at replay."""
        loss = self._setting.loss_fn(batch)
        scaled = loss if self._setting.scaler is None else self._setting.scaler.scale(loss)
        scaled.backward()
        return loss.detach()

    def run(self, batch: Any, plan: Plan, sizes: Sequence[int], entry: Entry) -> Tensor | Failure:
        """The detached loss of the whole batch, with its gradients in place; or how memory ran out.

        When this returns a failure, nothing holds on to the attempt: neither its frames nor its graph.
        """

        def attempt() -> Tensor:
            pieces = cut(self._setting, batch, sizes)
            return self.add_up(weighed(self._setting, pieces, sizes, batch), plan, entry, sync=self._setting.sync_last)

        return self.caught(attempt)

    def caught(self, attempt: Callable[[], Result]) -> Result | Failure:
        """What the attempt gives, or how memory ran out."""
        self._before_reduction = None
        if self._setting.parallel is not None:  # Forward with a reduction sets it: see `buffers_once`.
            self._setting.parallel.require_forward_param_sync = False
        try:
            return attempt()
        except Exception as error:
            failure = failure_of(error)
            if failure is None:
                raise
            let_go(error)
        self._leave_reduction()
        return failure

    def _leave_reduction(self) -> None:
        wrapper = self._setting.parallel
        if wrapper is None:
            return
        before, self._before_reduction = self._before_reduction, None
        if before is not None and before != stamp(list(wrapper.parameters())):
            raise OutOfStep
        forget_attempt(wrapper)

    def add_up(self, pieces: Sequence[Weighed], plan: Plan, entry: Entry, *, sync: bool) -> Tensor:
        """The loss of the pieces together, detached; their gradients are added up. `sync`: the last one reduces."""
        total: Tensor | None = None
        with recomputing(self._setting.blocks) if plan.recompute else contextlib.nullcontext():
            for place, (piece, weight) in enumerate(pieces):
                loss = self._piece(piece, weight, plan, sync=sync and place == len(pieces) - 1, entry=entry)
                total = loss if total is None else total + loss
        if total is None:
            raise AssertionError("a batch has at least one piece")
        return total

    def _piece(self, piece: Any, weight: float | None, plan: Plan, *, sync: bool, entry: Entry) -> Tensor:
        """Forward and backward of one piece; its share of the loss, detached."""
        setting = self._setting
        with synchronising(setting.parallel, sync=sync):
            with offloading(setting.modules) if plan.offload else contextlib.nullcontext():
                loss = setting.loss_fn(piece)
            if not isinstance(loss, Tensor) or loss.numel() != 1:
                what = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
                raise TypeError(f"loss_fn gave {what}: guard needs a tensor of one element, the loss of the piece")
            if not self._leaves_known:
                entry.refuse_backward(loss)
                entry.refuse_strangers(loss)
                self._leaves_known = True
            if weight is not None:
                loss = loss * weight
            share = loss.detach()
            if setting.parallel is not None and sync and setting.parallel.require_backward_grad_sync:
                entry.fold_gradients_in()
                self._before_reduction = stamp(list(setting.parallel.parameters()))
            scaled = loss if setting.scaler is None else setting.scaler.scale(loss)
            del loss
            scaled.backward()
        # A weighed share in half precision would lose digits when the shares are added.
        return share if weight is None or share.dtype is torch.float64 else share.float()


def cut(setting: Setting, batch: Any, sizes: Sequence[int]) -> list[Any]:
    """The pieces of the batch of these sizes."""
    if len(sizes) == 1:
        return [batch]
    pieces = list(setting.split(batch, sizes))
    if len(pieces) != len(sizes):
        raise ValueError(f"split gave {len(pieces)} pieces where {len(sizes)} were asked for")
    return pieces


def weighed(setting: Setting, pieces: Sequence[Any], sizes: Sequence[int], batch: Any) -> list[Weighed]:
    """The pieces that have terms, each with its weight in the mean over the batch that they are cut from.

    Raises `NotSplittable` where the counts make no mean.
    """
    if len(pieces) == 1 or not setting.mean:
        return [(piece, None) for piece in pieces]
    if setting.count is None:
        counts, whole = list(sizes), sum(sizes)
    else:
        *counts, whole = _numbers([*(setting.count(piece) for piece in pieces), setting.count(batch)])
    if sum(counts) != whole:
        raise NotSplittable(
            f"the counts of the pieces {counts} do not add up to the batch's {whole}: `count` must say over how many terms "
            "loss_fn's mean goes, of a batch and of any rows of it"
        )
    if whole == 0:
        # The mean over nothing, as loss_fn makes it.
        return [(pieces[-1], None)]
    return [(piece, terms / whole) for piece, terms in zip(pieces, counts, strict=True) if terms]


def _numbers(counts: Sequence[int | Tensor]) -> list[int]:
    """Counts as numbers, waiting for the device once at most. Raises `NotSplittable` where one is not whole."""
    tensors = [count for count in counts if isinstance(count, Tensor)]
    read = iter(torch.stack([tensor.reshape(()) for tensor in tensors]).tolist() if tensors else [])
    numbers = [next(read) if isinstance(count, Tensor) else count for count in counts]
    broken = [number for number in numbers if not float(number).is_integer()]
    if broken:
        raise NotSplittable(f"`count` gave {broken[0]}: it must give a number of terms, which is whole")
    return [int(number) for number in numbers]
