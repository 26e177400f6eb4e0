"""One attempt at a forward and backward pass, whole or in pieces."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from farrier.torch.ddp import (
    RanksOutOfSync,
    can_prepare_late,
    gradient_sync,
    gradient_versions,
    prepare_backward,
    reset_after_failure,
)
from farrier.torch.oom import OomFailure, clear_frames, parse_oom
from farrier.torch.recompute import offloading, recomputing
from farrier.torch.retry_policy import Plan
from farrier.torch.split import NotSplittable, Split
from farrier.torch.state_snapshot import StateSnapshot

Result = TypeVar("Result")
Count = Callable[[Any], "int | Tensor"]
#: A piece and its weight in the mean; None: as it is.
WeightedPiece = tuple[Any, "float | None"]


@dataclass(frozen=True)
class GuardConfig:
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


class AttemptRunner:
    """Runs plans and says how they ended."""

    def __init__(self, config: GuardConfig) -> None:
        self._setting = config
        self._versions_before_sync: list[tuple[int, int] | None] | None = None
        self._leaves_checked = False

    def run_captured(self, batch: Any) -> Tensor:
        """One whole pass inside a capture, where nothing can be tried again: memory is taken now and not at replay."""
        loss = self._setting.loss_fn(batch)
        scaled = loss if self._setting.scaler is None else self._setting.scaler.scale(loss)
        scaled.backward()
        return loss.detach()

    def run(self, batch: Any, plan: Plan, sizes: Sequence[int], snapshot: StateSnapshot) -> Tensor | OomFailure:
        """The detached loss of the whole batch, with its gradients in place; or how memory ran out.

        When this returns a failure, nothing holds on to the attempt: neither its frames nor its graph.
        """

        def attempt() -> Tensor:
            pieces = split_batch(self._setting, batch, sizes)
            return self.accumulate(
                weighted(self._setting, pieces, sizes, batch), plan, snapshot, sync=self._setting.sync_last
            )

        return self.catch_oom(attempt)

    def catch_oom(self, attempt: Callable[[], Result]) -> Result | OomFailure:
        """What the attempt gives, or how memory ran out."""
        self._versions_before_sync = None
        if self._setting.parallel is not None:  # Forward with a reduction sets it: see `broadcast_buffers_once`.
            self._setting.parallel.require_forward_param_sync = False
        try:
            return attempt()
        except Exception as error:
            failure = parse_oom(error)
            if failure is None:
                raise
            clear_frames(error)
        self._reset_reducer()
        return failure

    def _reset_reducer(self) -> None:
        wrapper = self._setting.parallel
        if wrapper is None:
            return
        before, self._versions_before_sync = self._versions_before_sync, None
        if before is None and (can_prepare_late(wrapper) or not self._setting.sync_last):
            return  # DDP was not told of a backward.
        if before is not None and before != gradient_versions(list(wrapper.parameters())):
            raise RanksOutOfSync
        reset_after_failure(wrapper)

    def accumulate(self, pieces: Sequence[WeightedPiece], plan: Plan, snapshot: StateSnapshot, *, sync: bool) -> Tensor:
        """The loss of the pieces together, detached; their gradients are added up. `sync`: the last one reduces."""
        total: Tensor | None = None
        with recomputing(self._setting.blocks) if plan.recompute else contextlib.nullcontext():
            for index, (piece, weight) in enumerate(pieces):
                loss = self._piece(piece, weight, plan, sync=sync and index == len(pieces) - 1, snapshot=snapshot)
                total = loss if total is None else total + loss
        if total is None:
            raise AssertionError("a batch has at least one piece")
        return total

    def _piece(self, piece: Any, weight: float | None, plan: Plan, *, sync: bool, snapshot: StateSnapshot) -> Tensor:
        """Forward and backward of one piece; its share of the loss, detached."""
        config = self._setting
        reducing_ddp = config.parallel if sync and config.parallel is not None else None
        if reducing_ddp is not None and not reducing_ddp.require_backward_grad_sync:
            reducing_ddp = None  # The user's own no_sync.
        prepare_late = reducing_ddp is not None and can_prepare_late(reducing_ddp)
        with gradient_sync(config.parallel, sync=reducing_ddp is not None and not prepare_late):
            with offloading(config.modules) if plan.offload else contextlib.nullcontext():
                loss = config.loss_fn(piece)
            if not isinstance(loss, Tensor) or loss.numel() != 1:
                actual = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
                raise TypeError(f"loss_fn gave {actual}: guard needs a tensor of one element, the loss of the piece")
            if not self._leaves_checked:
                snapshot.reject_own_backward(loss)
                snapshot.reject_unknown_parameters(loss)
                self._leaves_checked = True
            if weight is not None:
                loss = loss * weight
            share = loss.detach()
            if reducing_ddp is not None:
                snapshot.merge_gradients()
                self._versions_before_sync = gradient_versions(list(reducing_ddp.parameters()))
                if prepare_late:
                    prepare_backward(reducing_ddp, loss)
            scaled = loss if config.scaler is None else config.scaler.scale(loss)
            del loss
            scaled.backward()
        # A weighed share in half precision would lose digits when the shares are added.
        return share if weight is None or share.dtype is torch.float64 else share.float()


def split_batch(config: GuardConfig, batch: Any, sizes: Sequence[int]) -> list[Any]:
    """The pieces of the batch of these sizes."""
    if len(sizes) == 1:
        return [batch]
    pieces = list(config.split(batch, sizes))
    if len(pieces) != len(sizes):
        raise ValueError(f"split gave {len(pieces)} pieces where {len(sizes)} were asked for")
    return pieces


def weighted(config: GuardConfig, pieces: Sequence[Any], sizes: Sequence[int], batch: Any) -> list[WeightedPiece]:
    """The pieces that have terms, each with its weight in the mean over the batch that they are cut from.

    Raises `NotSplittable` where the counts make no mean.
    """
    if len(pieces) == 1 or not config.mean:
        return [(piece, None) for piece in pieces]
    if config.count is None:
        counts, total = list(sizes), sum(sizes)
    else:
        *counts, total = _numbers([*(config.count(piece) for piece in pieces), config.count(batch)])
    if sum(counts) != total:
        raise NotSplittable(
            f"the counts of the pieces {counts} do not add up to the batch's {total}: `count` must say over how many terms "
            "loss_fn's mean goes, of a batch and of any rows of it"
        )
    if total == 0:
        # The mean over nothing, as loss_fn makes it.
        return [(pieces[-1], None)]
    return [(piece, count / total) for piece, count in zip(pieces, counts, strict=True) if count]


def _numbers(counts: Sequence[int | Tensor]) -> list[int]:
    """Counts as numbers, waiting for the device once at most. Raises `NotSplittable` where one is not whole."""
    tensors = [count for count in counts if isinstance(count, Tensor)]
    values = iter(torch.stack([tensor.reshape(()) for tensor in tensors]).tolist() if tensors else [])
    numbers = [next(values) if isinstance(count, Tensor) else count for count in counts]
    fractional = [number for number in numbers if not float(number).is_integer()]
    if fractional:
        raise NotSplittable(f"`count` gave {fractional[0]}: it must give a number of terms, which is whole")
    return [int(number) for number in numbers]
