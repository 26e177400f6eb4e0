"""One attempt at a forward and backward pass, whole or in pieces."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from farrier.torch.entry import Entry
from farrier.torch.ladder import Plan
from farrier.torch.oom import Failure, failure_of, let_go
from farrier.torch.parallel import OutOfStep, forget_attempt, stamp, synchronising
from farrier.torch.recompute import offloading, recomputing
from farrier.torch.split import Split

Count = Callable[[Any], "int | Tensor"]


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
        self._before_reduction = None
        try:
            return self._run(batch, plan, sizes, entry)
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

    def _run(self, batch: Any, plan: Plan, sizes: Sequence[int], entry: Entry) -> Tensor:
        setting = self._setting
        pieces, weights = self._weighed(batch, sizes)
        total: Tensor | None = None
        with recomputing(setting.blocks) if plan.recompute else contextlib.nullcontext():
            for place, (piece, weight) in enumerate(zip(pieces, weights, strict=True)):
                sync = setting.sync_last and place == len(pieces) - 1
                loss = self._piece(piece, weight, plan, sync=sync, entry=entry)
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

    def _weighed(self, batch: Any, sizes: Sequence[int]) -> tuple[list[Any], list[float | None]]:
        """The pieces that have terms, each with its weight in the mean."""
        if len(sizes) == 1:
            return [batch], [None]
        setting = self._setting
        pieces = list(setting.split(batch, sizes))
        if len(pieces) != len(sizes):
            raise ValueError(f"split gave {len(pieces)} pieces where {len(sizes)} were asked for")
        if not setting.mean:
            return pieces, [None] * len(pieces)
        if setting.count is None:
            counts, whole = list(sizes), sum(sizes)
        else:
            *counts, whole = _numbers([*(setting.count(piece) for piece in pieces), setting.count(batch)])
        if sum(counts) != whole:
            raise ValueError(
                f"the counts of the pieces {counts} do not add up to the batch's {whole}: the mean would be wrong\n"
                "hint: `count` must say over how many terms loss_fn's mean goes, of a batch and of any rows of it"
            )
        if whole == 0:
            # The mean over nothing, as loss_fn makes it.
            return pieces[-1:], [None]
        kept = [(piece, terms / whole) for piece, terms in zip(pieces, counts, strict=True) if terms]
        return [piece for piece, _ in kept], [weight for _, weight in kept]


def _numbers(counts: Sequence[int | Tensor]) -> list[int]:
    """Counts as numbers, waiting for the device once at most."""
    tensors = [count for count in counts if isinstance(count, Tensor)]
    read = iter(torch.stack([tensor.reshape(()) for tensor in tensors]).tolist() if tensors else [])
    return [int(next(read)) if isinstance(count, Tensor) else int(count) for count in counts]
