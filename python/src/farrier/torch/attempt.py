"""One attempt at a forward and backward pass, whole or in micro-batches."""

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
#: A micro-batch and the weight of its loss in the mean of the batch. None if the loss is not
#: weighted.
WeightedMicroBatch = tuple[Any, "float | None"]


@dataclass(frozen=True)
class GuardConfig:
    """The user's choices, which apply to all calls."""

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
    """Runs plans, and returns the loss or the out-of-memory failure."""

    def __init__(self, config: GuardConfig) -> None:
        self._config = config
        self._versions_before_sync: list[tuple[int, int] | None] | None = None
        self._leaves_checked = False

    def run_captured(self, batch: Any) -> Tensor:
        """Runs forward and backward of the whole batch once, while a CUDA graph is captured.

        There is no retry: if memory runs out, the capture fails. Replays cannot run out of memory,
        because the capture has already allocated their memory.
        """
        loss = self._config.loss_fn(batch)
        scaled = loss if self._config.scaler is None else self._config.scaler.scale(loss)
        scaled.backward()
        return loss.detach()

    def run(self, batch: Any, plan: Plan, sizes: Sequence[int], snapshot: StateSnapshot) -> Tensor | OomFailure:
        """Returns the detached loss, with gradients in place, or the out-of-memory failure.

        After a failure, the frames and the autograd graph of the attempt are released, so that
        nothing keeps its memory alive.
        """

        def attempt() -> Tensor:
            micro_batches = split_batch(self._config, batch, sizes)
            return self.accumulate(
                weighted(self._config, micro_batches, sizes, batch), plan, snapshot, sync=self._config.sync_last
            )

        return self.catch_oom(attempt)

    def catch_oom(self, attempt: Callable[[], Result]) -> Result | OomFailure:
        """Returns the attempt's result, or the out-of-memory failure."""
        self._versions_before_sync = None
        if self._config.parallel is not None:
            # If this is True, the next forward pass broadcasts buffers. A failed attempt may have
            # set it, but `broadcast_buffers_once` has already broadcast them for this call.
            self._config.parallel.require_forward_param_sync = False
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
        wrapper = self._config.parallel
        if wrapper is None:
            return
        before, self._versions_before_sync = self._versions_before_sync, None
        if before is None and (can_prepare_late(wrapper) or not self._config.sync_last):
            return  # DDP was not prepared for a backward pass.
        if before is not None and before != gradient_versions(list(wrapper.parameters())):
            raise RanksOutOfSync
        reset_after_failure(wrapper)

    def accumulate(
        self, micro_batches: Sequence[WeightedMicroBatch], plan: Plan, snapshot: StateSnapshot, *, sync: bool
    ) -> Tensor:
        """Accumulates the gradients of all micro-batches, and returns their detached loss.

        With `sync`, the last micro-batch reduces the gradients over the ranks.
        """
        total: Tensor | None = None
        with recomputing(self._config.blocks) if plan.recompute else contextlib.nullcontext():
            for index, (micro_batch, weight) in enumerate(micro_batches):
                loss = self._run_micro_batch(
                    micro_batch, weight, plan, sync=sync and index == len(micro_batches) - 1, snapshot=snapshot
                )
                total = loss if total is None else total + loss
        if total is None:
            raise AssertionError("a batch has at least one micro-batch")
        return total

    def _run_micro_batch(
        self, micro_batch: Any, weight: float | None, plan: Plan, *, sync: bool, snapshot: StateSnapshot
    ) -> Tensor:
        """Runs forward and backward of one micro-batch. Returns its detached share of the loss."""
        config = self._config
        reducing_ddp = config.parallel if sync and config.parallel is not None else None
        if reducing_ddp is not None and not reducing_ddp.require_backward_grad_sync:
            reducing_ddp = None  # The user has called `no_sync()`.
        prepare_late = reducing_ddp is not None and can_prepare_late(reducing_ddp)
        with gradient_sync(config.parallel, sync=reducing_ddp is not None and not prepare_late):
            with offloading(config.modules) if plan.offload else contextlib.nullcontext():
                loss = config.loss_fn(micro_batch)
            if not isinstance(loss, Tensor) or loss.numel() != 1:
                actual = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
                raise TypeError(f"loss_fn returned {actual}: guard needs the loss as a tensor of one element")
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
        # Adding weighted shares in half precision would lose digits.
        return share if weight is None or share.dtype is torch.float64 else share.float()


def split_batch(config: GuardConfig, batch: Any, sizes: Sequence[int]) -> list[Any]:
    """Splits the batch into micro-batches of these sizes."""
    if len(sizes) == 1:
        return [batch]
    micro_batches = list(config.split(batch, sizes))
    if len(micro_batches) != len(sizes):
        raise ValueError(f"split returned {len(micro_batches)} micro-batches, expected {len(sizes)}")
    return micro_batches


def weighted(
    config: GuardConfig, micro_batches: Sequence[Any], sizes: Sequence[int], batch: Any
) -> list[WeightedMicroBatch]:
    """Returns each micro-batch with its weight: its share of the terms in the batch's mean.

    Micro-batches without terms are omitted. The weights are None if the loss is a sum, or if there
    is only one micro-batch. Raises `NotSplittable` if the counts of the micro-batches do not add up
    to the count of the batch.
    """
    if len(micro_batches) == 1 or not config.mean:
        return [(micro_batch, None) for micro_batch in micro_batches]
    if config.count is None:
        counts, total = list(sizes), sum(sizes)
    else:
        *counts, total = _numbers([*(config.count(micro_batch) for micro_batch in micro_batches), config.count(batch)])
    if sum(counts) != total:
        raise NotSplittable(
            f"`count` returned {counts} for the micro-batches, which do not add up to the {total} that it returned for the "
            "whole batch: it must return the number of terms in loss_fn's mean, for any subset of the batch's rows"
        )
    if total == 0:
        # No micro-batch has a term. Run one of them without a weight, so that the result is the
        # value that `loss_fn` itself returns for a mean over no terms.
        return [(micro_batches[-1], None)]
    return [(micro_batch, count / total) for micro_batch, count in zip(micro_batches, counts, strict=True) if count]


def _numbers(counts: Sequence[int | Tensor]) -> list[int]:
    """Reads counts with at most one device sync.

    Raises `NotSplittable` if one is not an integer.
    """
    tensors = [count for count in counts if isinstance(count, Tensor)]
    values = iter(torch.stack([tensor.reshape(()) for tensor in tensors]).tolist() if tensors else [])
    numbers = [next(values) if isinstance(count, Tensor) else count for count in counts]
    fractional = [number for number in numbers if not float(number).is_integer()]
    if fractional:
        raise NotSplittable(f"`count` returned {fractional[0]}: it must return an integer number of terms")
    return [int(number) for number in numbers]
