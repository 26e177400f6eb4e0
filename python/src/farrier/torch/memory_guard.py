"""A forward and backward pass that is retried with less memory after an out-of-memory error."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from farrier import agent
from farrier.formatting import count_of
from farrier.torch.arguments import require_function, require_guard_functions, require_int, require_modules
from farrier.torch.attempt import AttemptRunner, Count, GuardConfig
from farrier.torch.ddp import average_gradients, broadcast_buffers_once, find_guardable_ddp
from farrier.torch.event_sink import EventSink
from farrier.torch.graph_policy import verification_due
from farrier.torch.guard_arguments import check_user_functions, checked_row_count, parse_size_history
from farrier.torch.guard_report import DoesNotFit, GuardReport, NotCapturable, ShapeWarnings
from farrier.torch.memory_meter import MemoryMeter, meter_for
from farrier.torch.memory_reserve import MemoryReserve
from farrier.torch.module_cache import ModuleCache
from farrier.torch.oom import OomFailure
from farrier.torch.recompute import find_blocks
from farrier.torch.retry_policy import (
    ActivationMode,
    NextAttempt,
    Plan,
    RetryOptions,
    RetryStep,
    micro_batch_sizes,
    next_attempt,
    worth_retrying,
)
from farrier.torch.size_history import BatchShape, SizeHistory
from farrier.torch.split import NotSplittable, Split, batch_shape, gradient_leaves, reject_nested, row_count, split_rows
from farrier.torch.split_check import (
    MIXES_ROWS_NOTE,
    NO_RETRY_NOTE,
    NOT_COMPARABLE,
    SplitCheck,
    SplitVerdict,
    has_post_accumulate_hooks,
    mixes_rows,
    split_refusal,
)
from farrier.torch.state_snapshot import StateSnapshot

#: For shapes that are already measured, the device's capacity is read again after this many calls,
#: because reading it is a driver call.
CAPACITY_REFRESH_CALLS = 100
#: Split steps between two checks of split gradients. The first checks are at split steps 1, 2, 4,
#: 8 and so on.
SPLIT_CHECK_EVERY = 1000
#: The reserve is reacquired this many calls after its release, so that the requested checkpoint can
#: be saved first.
REACQUIRE_AFTER_CALLS = 20


def guard(
    loss_fn: Callable[[Any], Tensor],
    *,
    model: nn.Module | Sequence[nn.Module],
    reduction: Literal["mean", "sum"] = "mean",
    count: Count | None = None,
    split: Split | None = None,
    rows: Callable[[Any], int] | None = None,
    scaler: Any = None,
    split_batchnorm: bool = False,
    recompute_modules: Sequence[nn.Module] | None = None,
    floor_rows: int = 1,
    reserve: MemoryReserve | None = None,
    request_checkpoint: Callable[[str], object] | None = None,
    ddp_sync: Literal["after", "last"] = "after",
    learned: Mapping[str, Any] | None = None,
    events: EventSink | None = None,
    meter: MemoryMeter | None = None,
) -> Guard:
    """Turns `loss_fn(batch) -> loss` into `forward_backward(batch) -> loss`.

    `forward_backward` runs backward itself. The gradients in `p.grad` are then the same, up to
    rounding, as after one backward pass of the whole batch. After an out-of-memory error it tries
    these measures in order: free cached memory, split the batch into micro-batches, recompute
    activations, offload them to host memory, and release the memory reserve. It remembers the sizes
    that fit for each shape. No batch is dropped or reordered.

    Args:
        loss_fn: returns the scalar loss of a batch or of some of its rows, and does not call
            `backward`. Autocast belongs inside it. The loss must be a mean or a sum over
            independent rows. A contrastive loss, or a loss that balances experts over the batch,
            is neither: a batch with such a loss is never split.
        model: all modules whose parameters get gradients in `loss_fn`. It is an error if another
            parameter gets one.
        reduction: whether the loss is a mean or a sum over the batch.
        count: returns the number of terms in the mean of a batch, as int or tensor; by default that
            is the number of rows. For a mean over tokens of which some are ignored:
            `lambda batch: (batch["labels"] != -100).sum()`. Counts must be integers, and the counts
            of the micro-batches must add up to the count of the batch. Otherwise the batch is not
            split, and the report says so. A micro-batch without terms is skipped. For a batch
            without terms, the result is what `loss_fn` returns (NaN).
        split: splits unusual batches: `split(batch, sizes)` returns micro-batches of these sizes,
            in order.
        rows: returns the number of rows of a batch. Required together with `split` for batches
            whose number of rows cannot be inferred.
        scaler: a `torch.amp.GradScaler`; its `scale` is applied to each micro-batch. The returned
            loss is not scaled.
        split_batchnorm: also split if BatchNorm uses or tracks batch statistics. The statistics are
            then computed over micro-batches.
        recompute_modules: the blocks to recompute; by default the children of the model's longest
            list of blocks.
        floor_rows: micro-batches of at most this many rows are recomputed before they are split
            further. Set it if fewer rows would not fill the GPU.
        reserve: memory to release when nothing else helps.
        request_checkpoint: called with the reason after a step that needed the reserve.
        ddp_sync: under DistributedDataParallel, gradients are reduced once per call on every rank,
            however many micro-batches each rank runs. "after" reduces when all gradients exist; a
            rank may run out of memory at any point before that, and retry. "last" reduces during
            the backward pass of the last micro-batch; running out of memory in that pass ends the
            job with `RanksOutOfSync`. Inside the user's own `no_sync()` nothing is reduced.
        learned: the return value of `Guard.learned_sizes()` from an earlier run.
        events: receives out-of-memory events and phases; the node's agent by default.
        meter: reads the device's memory; by default torch's counters on CUDA.

    Before the first split, the guard runs some rows together and one by one, and compares the
    gradients (see `split_check`). If they differ, the batch is not split, and the report says why.
    A batch is also not split if parameters have hooks, or if it has labels of -100 and `count` is
    not given. Nothing is retried if hooks run as soon as a gradient is accumulated (an optimizer
    that steps during backward).

    Rounding: micro-batches accumulate in the gradients' own dtype. With bfloat16 gradients each
    micro-batch adds a rounding of 2^-9, as in any gradient accumulation. Dropout draws other masks
    for micro-batches than for the whole batch. A retry draws the same masks as if it had been the
    first attempt. A call with a shape that is not measured yet resets
    `torch.cuda.max_memory_allocated`.

    FSDP is rejected. Each forward and backward pass of a sharded model runs collectives over all
    ranks, so all ranks must run the same number of micro-batches, and one rank cannot abandon an
    attempt alone. All ranks would have to agree before the step on the largest number of
    micro-batches that any rank needs, and no attempt could fail. Split the batch in the data loader
    instead, to a size that fits on every rank. SyncBatchNorm on several ranks is rejected for the
    same reason. The guard cannot detect your own collectives in `loss_fn`: a rank that retries
    would pair with the next collective of the other ranks, or hang.
    """
    require_function(loss_fn, "loss_fn", "loss_fn(batch) -> loss")
    modules = require_modules(model)
    require_guard_functions(count, split, rows, request_checkpoint)
    floor_rows = require_int(floor_rows, "floor_rows", 1, "the rows of the smallest micro-batch before recomputing")
    if reduction not in ("mean", "sum"):
        raise ValueError(f"reduction is {reduction!r}: pass 'mean' or 'sum', whichever loss_fn computes")
    if ddp_sync not in ("after", "last"):
        raise ValueError(f"ddp_sync is {ddp_sync!r}: pass 'after' or 'last'")
    config = GuardConfig(
        loss_fn=loss_fn,
        modules=modules,
        blocks=list(recompute_modules) if recompute_modules is not None else find_blocks(modules),
        mean=reduction == "mean",
        count=count,
        split=split or split_rows,
        scaler=scaler,
        parallel=find_guardable_ddp(modules),
        sync_last=ddp_sync == "last",
    )
    instance = Guard(
        config, rows=checked_row_count(rows) if rows else row_count, split_batchnorm=split_batchnorm, floor_rows=floor_rows
    )
    instance.reserve, instance.request_checkpoint = reserve, request_checkpoint
    instance.events = events if events is not None else agent
    instance.meter = meter
    if learned is not None:
        instance.learned = parse_size_history(learned)
    return instance


class Guard:
    """Created by `guard`. Call it with each batch."""

    def __init__(self, config: GuardConfig, *, rows: Callable[[Any], int], split_batchnorm: bool, floor_rows: int) -> None:
        self.config = config
        self.learned = SizeHistory()
        self.reserve: MemoryReserve | None = None
        self.request_checkpoint: Callable[[str], object] | None = None
        self.events: EventSink = agent
        self.meter: MemoryMeter | None = None
        self._attempts = AttemptRunner(config)
        self._module_cache = ModuleCache(config.modules)
        self._rows, self._split_batchnorm, self._floor_rows = rows, split_batchnorm, floor_rows
        self._counts: Counter[str] = Counter()
        self._recovered: Counter[str] = Counter()
        self._notes: dict[str, None] = {}
        self._warnings = ShapeWarnings()
        self._retry_s = 0.0
        self._peak_bytes: int | None = None
        self._released_at_call: int | None = None
        self._capacity_bytes: int | None = None
        self._split_verdict: SplitVerdict | None = None
        self._checked_this_call = False

    def __call__(self, batch: Any) -> Tensor:
        """Runs forward and backward. Returns the detached loss of the whole batch."""
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            return self._run_captured(batch)
        self._counts["calls"] += 1
        self._checked_this_call = False
        ooms, lost = self._counts["ooms"], self._counts["lost"]
        meter = self._meter()
        self._reacquire_reserve(meter)
        shape, options = self._inspect(batch)
        if self._counts["calls"] == 1:
            check_user_functions(self.config, batch, options, self._rows)
        with broadcast_buffers_once(self.config.parallel):
            snapshot = StateSnapshot(
                [*self._module_cache.parameters(), *gradient_leaves(batch)], self._module_cache.modules()
            )
            try:
                return self._run_with_retries(batch, shape, options, snapshot, meter)
            except BaseException:
                snapshot.restore_gradients()
                snapshot.release()
                # If the call has run out of memory, its batch counts as lost, whatever this error
                # is.
                self._counts["lost"] = lost + (self._counts["ooms"] > ooms)
                raise

    def __repr__(self) -> str:
        name = getattr(self.config.loss_fn, "__qualname__", type(self.config.loss_fn).__name__)
        done = count_of(self._counts["calls"], "call")
        return f"<Guard of {name}: {done}, {self._counts['ooms']} out-of-memory, {self._counts['lost']} lost>"

    @property
    def report(self) -> GuardReport:
        """Current statistics; `print(guard.report)` is made for a log."""
        safe = {
            f"{key} ({mode.value})": record.safe_rows
            for (key, mode), record in self.learned.shapes.items()
            if record.safe_rows
        }
        return GuardReport(
            calls=self._counts["calls"],
            split_calls=self._counts["split"],
            ooms=self._counts["ooms"],
            lost=self._counts["lost"],
            recovered=dict(self._recovered),
            retry_s=self._retry_s,
            safe_rows=safe,
            peak_bytes=self._peak_bytes,
            notes=list(self._notes),
        )

    def learned_sizes(self) -> dict[str, Any]:
        """The sizes that fit, as plain values to store in a checkpoint.

        Pass them to `guard(learned=...)` when the run resumes.
        """
        return self.learned.to_json()

    def _run_captured(self, batch: Any) -> Tensor:
        """Runs one pass inside a capture or its dry run.

        Raises `NotCapturable` unless the plan is one plain pass of the whole batch.
        """
        shape, options = self._inspect(batch)
        plan = self.learned.plan(shape, options, self._free_bytes(self._meter().allocated()))
        if plan != options.plan(ActivationMode.PLAIN, shape.rows):
            raise NotCapturable(f"{count_of(shape.rows, 'row')} of {shape.key}", str(plan))
        return self._attempts.run_captured(batch)

    def _meter(self) -> MemoryMeter:
        self.meter = self.meter or meter_for(self._device())
        return self.meter

    def _free_bytes(self, allocated_bytes: int | None) -> int | None:
        """Bytes that a call may allocate, by the capacity that was last read from the device."""
        return None if self._capacity_bytes is None or allocated_bytes is None else self._capacity_bytes - allocated_bytes

    def _run_with_retries(
        self, batch: Any, shape: BatchShape, options: RetryOptions, snapshot: StateSnapshot, meter: MemoryMeter
    ) -> Tensor:
        """Attempts the plan, then each step of the retry policy, until one succeeds."""
        allocated_before = meter.allocated()
        self.learned.set_fixed_bytes(snapshot.gradient_bytes())
        already_measured = self.learned.is_measured(shape, options.plan(ActivationMode.PLAIN, shape.rows))
        if not already_measured or self._counts["calls"] % CAPACITY_REFRESH_CALLS == 0:
            self._capacity_bytes = meter.capacity()
        free_bytes = self._free_bytes(allocated_before)
        plan = self.learned.plan(shape, options, free_bytes)
        if plan.rows < shape.rows:
            split_plan = self._checked_split(batch, shape, plan, snapshot, meter)
            options = replace(options, split=options.split and split_plan is not None)
            plan = split_plan or self.learned.plan(shape, options, free_bytes)
        tried: list[str] = []
        retry_step: RetryStep | None = None
        first_rows = plan.rows
        while True:
            sizes = micro_batch_sizes(shape.rows, plan.rows)
            plan = replace(plan, rows=max(sizes))  # Micro-batches are evenly sized; record the size that ran.
            measuring = not self.learned.is_measured(shape, plan)
            if measuring:
                meter.restart_peak()
            start_s = time.perf_counter()
            try:
                outcome = self._attempts.run(batch, plan, sizes, snapshot)
            except NotSplittable as error:
                self._notes[f"not split: {error}"] = None
                options = replace(options, split=False)
                plan = self.learned.plan(shape, options, free_bytes)
                snapshot.reset()
                continue
            if not isinstance(outcome, OomFailure):
                self._record_success(shape, plan, retry_step, allocated_before, meter if measuring else None, len(sizes))
                self._warnings.warn_once(first_rows, shape.key, retry_step, plan, len(sizes))
                return self._finish(outcome, snapshot)
            # Free first, so that memory of the failed attempt does not count as allocated.
            meter.free()
            snapshot.reset()
            attempt = self._after_failure(outcome, shape, plan, options, allocated_before, meter, retry_step)
            if attempt is not None and attempt.retry_step is RetryStep.SPLIT:
                split_plan = self._checked_split(batch, shape, attempt.plan, snapshot, meter)
                options = replace(options, split=split_plan is not None)
                attempt = replace(attempt, plan=split_plan) if split_plan is not None else next_attempt(plan, options)
            if attempt is not None and attempt.retry_step is RetryStep.RESERVE and self.reserve is not None:
                self.reserve.release()
                self._released_at_call = self._counts["calls"]
            self._retry_s += time.perf_counter() - start_s
            tried.append(f"{retry_step.value if retry_step else 'as planned'} ({plan}): {outcome.message}")
            if attempt is None:
                snapshot.give_up()
                raise self._does_not_fit_error(tried, shape, outcome, meter) from None
            retry_step, plan = attempt.retry_step, attempt.plan

    def _after_failure(
        self,
        failure: OomFailure,
        shape: BatchShape,
        plan: Plan,
        options: RetryOptions,
        allocated_before: int | None,
        meter: MemoryMeter,
        retry_step: RetryStep | None,
    ) -> NextAttempt | None:
        """Reports and records the failure, and returns the next attempt."""
        self._counts["ooms"] += 1
        with contextlib.suppress(Exception):
            self.events.oom(
                failure.requested_bytes,
                retry_step=retry_step.value if retry_step else "none",
                rows=plan.rows,
                shape=shape.key,
            )
        capacity, now = meter.capacity(), meter.allocated()
        self._capacity_bytes = capacity
        garbage = None if allocated_before is None or now is None else allocated_before - now
        may_fit = worth_retrying(failure.requested_bytes, failure.allocated_bytes, capacity, garbage)
        free_bytes = None if capacity is None or now is None else capacity - now
        retry = may_fit and retry_step is None
        if not retry:
            fragmented = may_fit and failure.allocated_bytes is not None
            self.learned.record_failure(shape, plan, free_bytes, fragmented=fragmented)
        fitting = self.learned.expected_fitting_rows(shape, plan.mode, free_bytes) if free_bytes is not None else None
        if has_post_accumulate_hooks(self._module_cache.parameters()):
            self._notes[NO_RETRY_NOTE] = None
            return None
        return next_attempt(plan, options, retry_same=retry, expected_fitting_rows=fitting)

    def _checked_split(
        self, batch: Any, shape: BatchShape, plan: Plan, snapshot: StateSnapshot, meter: MemoryMeter
    ) -> Plan | None:
        """Returns the plan unless micro-batches would give other gradients than the whole batch.

        Returns None otherwise. The check runs before the first split, and is repeated now and then.
        The returned plan avoids sizes that did not fit during the check.
        """
        refusal = split_refusal(self.config, batch, self._module_cache.parameters())
        if refusal is None and not self._split_batchnorm and any(map(mixes_rows, self._module_cache.modules())):
            refusal = MIXES_ROWS_NOTE
        was_approved = self._split_verdict is not None and self._split_verdict.split
        recheck_due = (
            was_approved and not self._checked_this_call and verification_due(self._counts["split"] + 1, SPLIT_CHECK_EVERY)
        )
        if refusal is None and (self._split_verdict is None or recheck_due):
            self._checked_this_call = True
            check = SplitCheck(
                self.config, self._attempts, self._module_cache.modules(), batch, shape.rows, plan, snapshot, meter.free
            )
            self._split_verdict = check.run()
            plan = replace(plan, rows=max(min(plan.rows, self._floor_rows), check.expected_fitting_rows))
        verdict = (self._split_verdict or NOT_COMPARABLE) if refusal is None else SplitVerdict(False, refusal)
        if verdict.note is not None:
            self._notes[verdict.note] = None
        return plan if verdict.split else None

    def _record_success(
        self,
        shape: BatchShape,
        plan: Plan,
        retry_step: RetryStep | None,
        allocated_before: int | None,
        meter: MemoryMeter | None,
        micro_batch_count: int,
    ) -> None:
        need: int | None = None
        if meter is not None:
            peak = meter.peak()
            if peak is not None:
                self._peak_bytes = max(self._peak_bytes or 0, peak)
                need = peak - allocated_before if allocated_before is not None and peak > allocated_before else None
        if not plan.without_reserve:
            self.learned.record_fit(shape, plan, need)
        self._counts["split"] += micro_batch_count > 1
        if retry_step is None:
            return
        self._recovered[retry_step.value] += 1
        if retry_step is RetryStep.RESERVE:
            rows_and_shape = f"{count_of(shape.rows, 'row')} of {shape.key}"
            reason = f"a step of {rows_and_shape} needed the memory reserve: the next out-of-memory may be fatal"
            self._notes[reason] = None
            with contextlib.suppress(Exception):
                self.events.phase("low-memory")
            if self.request_checkpoint is not None:
                self.request_checkpoint(reason)

    def _finish(self, loss: Tensor, snapshot: StateSnapshot) -> Tensor:
        """Adds earlier gradients, and reduces over ranks unless the last backward pass did so."""
        wrapper = self.config.parallel
        if wrapper is None or not wrapper.require_backward_grad_sync:
            snapshot.accumulate_gradients()
        elif not self.config.sync_last:
            snapshot.accumulate_gradients()
            average_gradients(wrapper)
        return loss

    def _does_not_fit_error(
        self, tried: Sequence[str], shape: BatchShape, failure: OomFailure, meter: MemoryMeter
    ) -> DoesNotFit:
        return DoesNotFit(
            tried,
            shape=f"{count_of(shape.rows, 'row')} of {shape.key}",
            requested_bytes=failure.requested_bytes,
            allocated_bytes=failure.allocated_bytes,
            capacity_bytes=meter.capacity(),
            not_tried=[note for note in self._notes if note.startswith("not ")],
        )

    def _inspect(self, batch: Any) -> tuple[BatchShape, RetryOptions]:
        """Returns the batch's shape and the available retry options."""
        can_split = True
        try:
            if self.config.split is split_rows:
                reject_nested(batch)
            rows = self._rows(batch)
        except NotSplittable as error:
            rows, can_split = 1, False
            self._notes[f"not split: {error}"] = None
        if not self.config.blocks:
            self._notes["not recomputed: the model has no list of blocks; pass them as recompute_modules="] = None
        options = RetryOptions(
            rows=rows,
            split=can_split and rows > 1,
            recompute=bool(self.config.blocks),
            reserve=self.reserve is not None and self.reserve.is_held,
            floor_rows=self._floor_rows,
        )
        return batch_shape(batch, rows), options

    def _device(self) -> torch.device:
        return next((parameter.device for parameter in self._module_cache.parameters()), torch.device("cpu"))

    def _reacquire_reserve(self, meter: MemoryMeter) -> None:
        """Reacquires the reserve some calls after its release, if there is enough memory."""
        if self.reserve is None or self.reserve.is_held or self._released_at_call is None:
            return
        if self._counts["calls"] - self._released_at_call < REACQUIRE_AFTER_CALLS:
            return
        self._released_at_call = self._counts["calls"]
        capacity = meter.capacity()
        if capacity is None or self._peak_bytes is None or capacity - self._peak_bytes >= self.reserve.size_bytes:
            self.reserve.acquire()
