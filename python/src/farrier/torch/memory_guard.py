"""A forward and backward pass that does not die of memory."""

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
from farrier.torch.guard_arguments import check_user_functions, checked_row_count, parse_size_history
from farrier.torch.guard_report import DoesNotFit, GuardReport, NotCapturable, ShapeWarnings
from farrier.torch.memory_meter import MemoryMeter, meter_for
from farrier.torch.memory_reserve import MemoryReserve
from farrier.torch.module_cache import ModuleCache
from farrier.torch.oom import OomFailure
from farrier.torch.policy import verification_due
from farrier.torch.recompute import find_blocks
from farrier.torch.retry_policy import (
    ActivationMode,
    NextAttempt,
    Plan,
    RetryOptions,
    RetryStep,
    next_attempt,
    piece_sizes,
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

#: Calls of known shapes after which the device is asked again how much memory there is: it is a call to the driver.
CAPACITY_REFRESH_CALLS = 100
#: Steps in pieces between two proofs that pieces are right; the first ones are at steps 1, 2, 4, 8 ...
SPLIT_CHECK_EVERY = 1000
#: Calls between releasing the ballast and trying to take it again: time for the checkpoint that was asked for.
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
    """Makes `forward_backward(batch) -> loss` of `loss_fn(batch) -> loss`.

    It runs backward itself and leaves in `p.grad` what one backward of the whole batch would leave, within rounding. On
    out-of-memory it frees, splits the batch, recomputes activations, holds them in host memory, and at last releases the
    ballast; what fits is remembered for each shape. No batch is dropped and none is reordered.

    Args:
        loss_fn: gives the scalar loss of a batch or of some rows of it; runs no backward. Autocast belongs inside. The loss
            is a mean or a sum over rows that do not depend on each other: a contrastive loss, or one that balances
            experts over the batch, is not, and is not split.
        model: every module whose parameters get gradients in `loss_fn`; a parameter that is not there is an error.
        reduction: whether the loss is a mean or a sum over the batch.
        count: over how many terms the mean of a batch goes, as int or tensor; by default its rows. For a mean over tokens
            with some ignored: `lambda batch: (batch["labels"] != -100).sum()`. Counts are whole, and those of pieces
            add up to that of the batch; where not, the batch is not split, and the report says so. A piece of no terms is
            passed over; a batch of none gives what `loss_fn` gives (NaN).
        split: cuts unusual batches: `split(batch, sizes)` gives the pieces of these sizes, in order.
        rows: how many rows a batch has, where it cannot be told; needed with `split` for such batches.
        scaler: a `torch.amp.GradScaler`; its `scale` is applied to each piece. The loss returned is not scaled.
        split_batchnorm: split also where BatchNorm uses or tracks the statistics of the batch, which are then those of the
            pieces.
        recompute_modules: the blocks to recompute; by default the children of the model's longest list of blocks.
        floor_rows: at so few rows recomputing comes before splitting further, for rows too short to fill the GPU.
        reserve: memory to release when nothing else helps.
        request_checkpoint: called with the reason after a step that needed the ballast.
        ddp_sync: under DistributedDataParallel, gradients are reduced once a call on every rank, however many pieces each
            runs. "after": when all gradients are there; a rank may run out of memory anywhere before and try again. "last":
            in the last piece's backward, overlapped with it; running out of memory in the middle of that ends the job with
            `RanksOutOfSync`. Under the user's own `no_sync()` nothing is reduced.
        learned: what `Guard.learned_sizes()` gave in an earlier run.
        events: whom to tell; by default the node's agent.
        meter: what reads the device's memory; by default torch's counters on CUDA.

    Before the first split some rows are run whole and in two pieces, and the gradients compared: see `split_check`. What gives
    other gradients is not split, and the report says why. Splitting is refused, too, where parameters have hooks, and with
    labels of -100 and no `count`; any second attempt where hooks run once a gradient is there (an optimizer in backward).

    Rounding: pieces add up in the gradients' own type. With bfloat16 gradients each piece adds a rounding of 2^-9, as any
    gradient accumulation does. Dropout draws other masks for pieces than for the whole; a retry draws the same as if its
    plan had been the first. `torch.cuda.max_memory_allocated` begins anew in calls whose shape is not known yet.

    FSDP is refused: each forward and backward of a sharded model gathers and scatters over all ranks, so that all ranks
    must run the same number of pieces and an attempt on one rank cannot be given up alone. What it needs is a plan that all
    ranks agree on before the step (the most pieces any rank needs), and no failing attempt: split the batch to the size
    that fits on every rank, in the data loader. SyncBatchNorm on several ranks is refused for the same reason. Collectives
    of your own in `loss_fn` cannot be seen: a rank that tries again would meet the others' next one, or wait for ever.
    """
    require_function(loss_fn, "loss_fn", "loss_fn(batch) -> loss")
    modules = require_modules(model)
    require_guard_functions(count, split, rows, request_checkpoint)
    floor_rows = require_int(floor_rows, "floor_rows", 1, "the rows of the smallest piece before recomputing")
    if reduction not in ("mean", "sum"):
        raise ValueError(f"reduction is {reduction!r}: give 'mean' or 'sum', as the loss is made")
    if ddp_sync not in ("after", "last"):
        raise ValueError(f"ddp_sync is {ddp_sync!r}: give 'after' or 'last'")
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
    guard_instance = Guard(
        config, rows=checked_row_count(rows) if rows else row_count, split_batchnorm=split_batchnorm, floor_rows=floor_rows
    )
    guard_instance.reserve, guard_instance.request_checkpoint = reserve, request_checkpoint
    guard_instance.events = events if events is not None else agent
    guard_instance.meter = meter
    if learned is not None:
        guard_instance.learned = parse_size_history(learned)
    return guard_instance


class Guard:
    """Made by `guard`; called with each batch."""

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
        """Forward and backward of the batch; the detached loss of the whole of it."""
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
                # Whatever ended it: memory had run out, and the batch is not trained on.
                self._counts["lost"] = lost + (self._counts["ooms"] > ooms)
                raise

    def __repr__(self) -> str:
        name = getattr(self.config.loss_fn, "__qualname__", type(self.config.loss_fn).__name__)
        done = count_of(self._counts["calls"], "call")
        return f"<Guard of {name}: {done}, {self._counts['ooms']} out-of-memory, {self._counts['lost']} lost>"

    @property
    def report(self) -> GuardReport:
        """What was done so far, as of now; `print(guard.report)` is made for a log."""
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
        """The sizes that fit, as plain values for a checkpoint; give them to `guard(learned=...)` on resuming."""
        return self.learned.to_json()

    def _run_captured(self, batch: Any) -> Tensor:
        """A pass within a capture, or in the rehearsal of one. What does not run whole and plainly is refused."""
        shape, options = self._inspect(batch)
        plan = self.learned.plan(shape, options, self._free_bytes(self._meter().allocated()))
        if plan != options.plan(ActivationMode.PLAIN, shape.rows):
            raise NotCapturable(f"{count_of(shape.rows, 'row')} of {shape.key}", str(plan))
        return self._attempts.run_captured(batch)

    def _meter(self) -> MemoryMeter:
        self.meter = self.meter or meter_for(self._device())
        return self.meter

    def _free_bytes(self, allocated_bytes: int | None) -> int | None:
        """What is free for a call, by what the device last said of its memory."""
        return None if self._capacity_bytes is None or allocated_bytes is None else self._capacity_bytes - allocated_bytes

    def _run_with_retries(
        self, batch: Any, shape: BatchShape, options: RetryOptions, snapshot: StateSnapshot, meter: MemoryMeter
    ) -> Tensor:
        """Attempts, from the planned one up the ladder, until one ends well or none is left."""
        allocated_before = meter.allocated()
        self.learned.set_fixed_bytes(snapshot.gradient_bytes())
        already_measured = self.learned.is_measured(shape, options.plan(ActivationMode.PLAIN, shape.rows))
        if not already_measured or self._counts["calls"] % CAPACITY_REFRESH_CALLS == 0:
            self._capacity_bytes = meter.capacity()
        free_bytes = self._free_bytes(allocated_before)
        plan = self.learned.plan(shape, options, free_bytes)
        if plan.rows < shape.rows:
            pieces = self._checked_split(batch, shape, plan, snapshot, meter)
            options = replace(options, split=options.split and pieces is not None)
            plan = pieces or self.learned.plan(shape, options, free_bytes)
        tried: list[str] = []
        retry_step: RetryStep | None = None
        first_rows = plan.rows
        while True:
            sizes = piece_sizes(shape.rows, plan.rows)
            plan = replace(plan, rows=max(sizes))  # Pieces are even: what is learned is the size that ran.
            measuring = not self.learned.is_measured(shape, plan)
            if measuring:
                meter.restart_peak()
            began = time.perf_counter()
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
            # Freeing before anything else is asked: what the failed attempt held must not count.
            meter.free()
            snapshot.reset()
            attempt = self._after_failure(outcome, shape, plan, options, allocated_before, meter, retry_step)
            if attempt is not None and attempt.retry_step is RetryStep.SPLIT:
                pieces = self._checked_split(batch, shape, attempt.plan, snapshot, meter)
                options = replace(options, split=pieces is not None)
                attempt = replace(attempt, plan=pieces) if pieces is not None else next_attempt(plan, options)
            if attempt is not None and attempt.retry_step is RetryStep.RESERVE and self.reserve is not None:
                self.reserve.release()
                self._released_at_call = self._counts["calls"]
            self._retry_s += time.perf_counter() - began
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
        """Tells, learns, and says what to try next."""
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
        """The plan, where pieces give the gradients of the whole, as far as can be known; None: they do not.

        Proved when it matters, now and then. Sizes that did not fit in the proof are not tried again.
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
        pieces: int,
    ) -> None:
        need: int | None = None
        if meter is not None:
            peak = meter.peak()
            if peak is not None:
                self._peak_bytes = max(self._peak_bytes or 0, peak)
                need = peak - allocated_before if allocated_before is not None and peak > allocated_before else None
        if not plan.without_reserve:
            self.learned.record_fit(shape, plan, need)
        self._counts["split"] += pieces > 1
        if retry_step is None:
            return
        self._recovered[retry_step.value] += 1
        if retry_step is RetryStep.RESERVE:
            rows_and_shape = f"{count_of(shape.rows, 'row')} of {shape.key}"
            reason = f"a step of {rows_and_shape} needed the memory ballast: there may be no second time"
            self._notes[reason] = None
            with contextlib.suppress(Exception):
                self.events.phase("low-memory")
            if self.request_checkpoint is not None:
                self.request_checkpoint(reason)

    def _finish(self, loss: Tensor, snapshot: StateSnapshot) -> Tensor:
        """Adds what was gathered before the call, and reduces over the ranks where the last backward did not."""
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
        """The batch's shape, and what can be done with it."""
        can_split = True
        try:
            if self.config.split is split_rows:
                reject_nested(batch)
            rows = self._rows(batch)
        except NotSplittable as error:
            rows, can_split = 1, False
            self._notes[f"not split: {error}"] = None
        if not self.config.blocks:
            self._notes["not recomputed: the model has no list of blocks; name them with recompute_modules="] = None
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
        """Holds the ballast again, some calls after its release, when there is room for it and for the highest peak."""
        if self.reserve is None or self.reserve.is_held or self._released_at_call is None:
            return
        if self._counts["calls"] - self._released_at_call < REACQUIRE_AFTER_CALLS:
            return
        self._released_at_call = self._counts["calls"]
        capacity = meter.capacity()
        if capacity is None or self._peak_bytes is None or capacity - self._peak_bytes >= self.reserve.size_bytes:
            self.reserve.acquire()
