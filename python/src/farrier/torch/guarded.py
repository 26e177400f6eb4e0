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
from farrier.plural import counted
from farrier.torch.arguments import function_of, functions_of_guard, modules_of, number_of
from farrier.torch.attempt import Attempts, Count, Setting
from farrier.torch.ballast import Ballast
from farrier.torch.entry import Entry
from farrier.torch.events import Events
from farrier.torch.first_batch import learned_of, rows_checked, try_functions
from farrier.torch.guard_report import DoesNotFit, GuardReport, RunsInPieces, Warnings
from farrier.torch.ladder import Means, Mode, Plan, Rung, Step, climb, piece_sizes, worth_retrying
from farrier.torch.learned import Learned, Shape
from farrier.torch.meter import Meter, meter_of
from farrier.torch.oom import Failure
from farrier.torch.parallel import average_gradients, buffers_once, parallel_of
from farrier.torch.policy import verification_due
from farrier.torch.proof import MIXES_ROWS, NOT_RETRIED, UNKNOWN, Trial, Verdict, mixes_rows, objection, steps_in_backward
from farrier.torch.recompute import blocks_of
from farrier.torch.split import NotSplittable, Split, describe, gradient_leaves, pieces_of, refuse_nested, row_count
from farrier.torch.walk import Walk

#: Calls of known shapes after which the device is asked again how much memory there is: it is a call to the driver.
ASK_CAPACITY_EVERY = 100
#: Steps in pieces between two proofs that pieces are right; the first ones are at steps 1, 2, 4, 8 ...
PROVE_EVERY = 1000
#: Calls between releasing the ballast and trying to take it again: time for the checkpoint that was asked for.
RETAKE_AFTER = 20


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
    ballast: Ballast | None = None,
    ask_checkpoint: Callable[[str], object] | None = None,
    ddp_sync: Literal["after", "last"] = "after",
    learned: Mapping[str, Any] | None = None,
    events: Events | None = None,
    meter: Meter | None = None,
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
        ballast: memory to release when nothing else helps.
        ask_checkpoint: called with the reason after a step that needed the ballast.
        ddp_sync: under DistributedDataParallel, gradients are reduced once a call on every rank, however many pieces each
            runs. "after": when all gradients are there; a rank may run out of memory anywhere before and try again. "last":
            in the last piece's backward, overlapped with it; running out of memory in the middle of that ends the job with
            `OutOfStep`. Under the user's own `no_sync()` nothing is reduced.
        learned: what `Guard.learned_sizes()` gave in an earlier run.
        events: whom to tell; by default the node's agent.
        meter: what reads the device's memory; by default torch's counters on CUDA.

    Before the first split some rows are run whole and in two pieces, and the gradients compared: see `proof`. What gives
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
    function_of(loss_fn, "loss_fn", "loss_fn(batch) -> loss")
    modules = modules_of(model)
    functions_of_guard(count, split, rows, ask_checkpoint)
    floor_rows = number_of(floor_rows, "floor_rows", 1, "the rows of the smallest piece before recomputing")
    if reduction not in ("mean", "sum"):
        raise ValueError(f"reduction is {reduction!r}: give 'mean' or 'sum', as the loss is made")
    if ddp_sync not in ("after", "last"):
        raise ValueError(f"ddp_sync is {ddp_sync!r}: give 'after' or 'last'")
    setting = Setting(
        loss_fn=loss_fn,
        modules=modules,
        blocks=list(recompute_modules) if recompute_modules is not None else blocks_of(modules),
        mean=reduction == "mean",
        count=count,
        split=split or pieces_of,
        scaler=scaler,
        parallel=parallel_of(modules),
        sync_last=ddp_sync == "last",
    )
    made = Guard(
        setting, rows=rows_checked(rows) if rows else row_count, split_batchnorm=split_batchnorm, floor_rows=floor_rows
    )
    made.ballast, made.ask_checkpoint = ballast, ask_checkpoint
    made.events = events if events is not None else agent
    made.meter = meter
    if learned is not None:
        made.learned = learned_of(learned)
    return made


class Guard:
    """Made by `guard`; called with each batch."""

    def __init__(self, setting: Setting, *, rows: Callable[[Any], int], split_batchnorm: bool, floor_rows: int) -> None:
        self.setting = setting
        self.learned = Learned()
        self.ballast: Ballast | None = None
        self.ask_checkpoint: Callable[[str], object] | None = None
        self.events: Events = agent
        self.meter: Meter | None = None
        self._attempts = Attempts(setting)
        self._walk = Walk(setting.modules)
        self._rows, self._split_batchnorm, self._floor_rows = rows, split_batchnorm, floor_rows
        self._counts: Counter[str] = Counter()
        self._saved: Counter[str] = Counter()
        self._notes: dict[str, None] = {}
        self._warnings = Warnings()
        self._retry_s = 0.0
        self._peak_bytes: int | None = None
        self._released_at: int | None = None
        self._capacity_bytes: int | None = None
        self._verdict: Verdict | None = None
        self._proven_now = False

    def __call__(self, batch: Any) -> Tensor:
        """Forward and backward of the batch; the detached loss of the whole of it."""
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            return self._captured(batch)
        self._counts["calls"] += 1
        self._proven_now = False
        ooms, lost = self._counts["ooms"], self._counts["lost"]
        meter = self._meter()
        self._retake_ballast(meter)
        shape, means = self._look_at(batch)
        if self._counts["calls"] == 1:
            try_functions(self.setting, batch, means, self._rows)
        with buffers_once(self.setting.parallel):
            entry = Entry([*self._walk.parameters(), *gradient_leaves(batch)], self._walk.modules())
            try:
                return self._climb(batch, shape, means, entry, meter)
            except BaseException:
                entry.put_gradients_back()
                # Whatever ended it: memory had run out, and the batch is not trained on.
                self._counts["lost"] = lost + (self._counts["ooms"] > ooms)
                raise

    def __repr__(self) -> str:
        name = getattr(self.setting.loss_fn, "__qualname__", type(self.setting.loss_fn).__name__)
        done = counted(self._counts["calls"], "call")
        return f"<Guard of {name}: {done}, {self._counts['ooms']} out-of-memory, {self._counts['lost']} lost>"

    @property
    def report(self) -> GuardReport:
        """What was done so far, as of now; `print(guard.report)` is made for a log."""
        safe = {
            f"{key} ({mode.value})": seen.safe_rows for (key, mode), seen in self.learned.shapes.items() if seen.safe_rows
        }
        return GuardReport(
            calls=self._counts["calls"],
            split_calls=self._counts["split"],
            ooms=self._counts["ooms"],
            lost=self._counts["lost"],
            saved=dict(self._saved),
            retry_s=self._retry_s,
            safe_rows=safe,
            peak_bytes=self._peak_bytes,
            notes=list(self._notes),
        )

    def learned_sizes(self) -> dict[str, Any]:
        """The sizes that fit, as plain values for a checkpoint; give them to `guard(learned=...)` on resuming."""
        return self.learned.to_json()

    def _captured(self, batch: Any) -> Tensor:
        """A pass within a capture, or in the rehearsal of one. What does not run whole and plainly is refused."""
        shape, means = self._look_at(batch)
        plan = self.learned.plan(shape, means, self._room(self._meter().allocated()))
        if plan != means.plan(Mode.PLAIN, shape.rows):
            raise RunsInPieces(f"{counted(shape.rows, 'row')} of {shape.key}", str(plan))
        return self._attempts.captured(batch)

    def _meter(self) -> Meter:
        self.meter = self.meter or meter_of(self._device())
        return self.meter

    def _room(self, allocated_bytes: int | None) -> int | None:
        """What is free for a call, by what the device last said of its memory."""
        return None if self._capacity_bytes is None or allocated_bytes is None else self._capacity_bytes - allocated_bytes

    def _climb(self, batch: Any, shape: Shape, means: Means, entry: Entry, meter: Meter) -> Tensor:
        """Attempts, from the planned one up the ladder, until one ends well or none is left."""
        base = meter.allocated()
        self.learned.fix(entry.gradient_bytes())
        known = self.learned.measured(shape, means.plan(Mode.PLAIN, shape.rows))
        if not known or self._counts["calls"] % ASK_CAPACITY_EVERY == 0:
            self._capacity_bytes = meter.capacity()
        room = self._room(base)
        plan = self.learned.plan(shape, means, room)
        if plan.rows < shape.rows:
            pieces = self._proven(batch, shape, plan, entry, meter)
            means = replace(means, split=means.split and pieces is not None)
            plan = pieces or self.learned.plan(shape, means, room)
        tried: list[str] = []
        rung: Rung | None = None
        first_rows = plan.rows
        while True:
            sizes = piece_sizes(shape.rows, plan.rows)
            plan = replace(plan, rows=max(sizes))  # Pieces are even: what is learned is the size that ran.
            measuring = not self.learned.measured(shape, plan)
            if measuring:
                meter.restart_peak()
            began = time.perf_counter()
            try:
                outcome = self._attempts.run(batch, plan, sizes, entry)
            except NotSplittable as error:
                self._notes[f"not split: {error}"] = None
                means = replace(means, split=False)
                plan = self.learned.plan(shape, means, room)
                entry.begin_again()
                continue
            if not isinstance(outcome, Failure):
                self._ended_well(shape, plan, rung, base, meter if measuring else None, len(sizes))
                self._warnings.saved(first_rows, shape.key, rung, plan, len(sizes))
                return self._finish(outcome, entry)
            # Freeing before anything else is asked: what the failed attempt held must not count.
            meter.free()
            entry.begin_again()
            step = self._after_failure(outcome, shape, plan, means, base, meter, rung)
            if step is not None and step.rung is Rung.SPLIT:
                pieces = self._proven(batch, shape, step.plan, entry, meter)
                means = replace(means, split=pieces is not None)
                step = replace(step, plan=pieces) if pieces is not None else climb(plan, means)
            if step is not None and step.rung is Rung.BALLAST and self.ballast is not None:
                self.ballast.release()
                self._released_at = self._counts["calls"]
            self._retry_s += time.perf_counter() - began
            tried.append(f"{rung.value if rung else 'as planned'} ({plan}): {outcome.message}")
            if step is None:
                entry.give_up()
                raise self._does_not_fit(tried, shape, outcome, meter) from None
            rung, plan = step.rung, step.plan

    def _after_failure(
        self, failure: Failure, shape: Shape, plan: Plan, means: Means, base: int | None, meter: Meter, rung: Rung | None
    ) -> Step | None:
        """Tells, learns, and says what to try next."""
        self._counts["ooms"] += 1
        with contextlib.suppress(Exception):
            self.events.oom(failure.wanted_bytes, rung=rung.value if rung else "none", rows=plan.rows, shape=shape.key)
        capacity, now = meter.capacity(), meter.allocated()
        self._capacity_bytes = capacity
        garbage = None if base is None or now is None else base - now
        perhaps = worth_retrying(failure.wanted_bytes, failure.allocated_bytes, capacity, garbage)
        room = None if capacity is None or now is None else capacity - now
        retry = perhaps and rung is None
        if not retry:
            fragmented = perhaps and failure.allocated_bytes is not None
            self.learned.failed(shape, plan, room, fragmented=fragmented)
        fitting = self.learned.fitting_rows(shape, plan.mode, room) if room is not None else None
        if steps_in_backward(self._walk.parameters()):
            self._notes[NOT_RETRIED] = None
            return None
        return climb(plan, means, retry_same=retry, fitting_rows=fitting)

    def _proven(self, batch: Any, shape: Shape, plan: Plan, entry: Entry, meter: Meter) -> Plan | None:
        """The plan, where pieces give the gradients of the whole, as far as can be known; None: they do not.

        Proved when it matters, now and then. Sizes that did not fit in the proof are not tried again.
        """
        why = objection(self.setting, batch, self._walk.parameters())
        if why is None and not self._split_batchnorm and any(map(mixes_rows, self._walk.modules())):
            why = MIXES_ROWS
        agreed = self._verdict is not None and self._verdict.split
        again = agreed and not self._proven_now and verification_due(self._counts["split"] + 1, PROVE_EVERY)
        if why is None and (self._verdict is None or again):
            self._proven_now = True
            trial = Trial(self.setting, self._attempts, self._walk.modules(), batch, shape.rows, plan, entry, meter.free)
            self._verdict = trial.verdict()
            plan = replace(plan, rows=max(min(plan.rows, self._floor_rows), trial.fitting_rows))
        found = (self._verdict or UNKNOWN) if why is None else Verdict(False, why)
        if found.note is not None:
            self._notes[found.note] = None
        return plan if found.split else None

    def _ended_well(
        self, shape: Shape, plan: Plan, rung: Rung | None, base: int | None, meter: Meter | None, pieces: int
    ) -> None:
        need: int | None = None
        if meter is not None:
            peak = meter.peak()
            if peak is not None:
                self._peak_bytes = max(self._peak_bytes or 0, peak)
                need = peak - base if base is not None and peak > base else None
        if not plan.without_ballast:
            self.learned.fitted(shape, plan, need)
        self._counts["split"] += pieces > 1
        if rung is None:
            return
        self._saved[rung.value] += 1
        if rung is Rung.BALLAST:
            of = f"{counted(shape.rows, 'row')} of {shape.key}"
            reason = f"a step of {of} needed the memory ballast: there may be no second time"
            self._notes[reason] = None
            with contextlib.suppress(Exception):
                self.events.phase("low-memory")
            if self.ask_checkpoint is not None:
                self.ask_checkpoint(reason)

    def _finish(self, loss: Tensor, entry: Entry) -> Tensor:
        """Adds what was gathered before the call, and reduces over the ranks where the last backward did not."""
        wrapper = self.setting.parallel
        if wrapper is None or not wrapper.require_backward_grad_sync:
            entry.add_gradients_back()
        elif not self.setting.sync_last:
            entry.add_gradients_back()
            average_gradients(wrapper)
        return loss

    def _does_not_fit(self, tried: Sequence[str], shape: Shape, failure: Failure, meter: Meter) -> DoesNotFit:
        return DoesNotFit(
            tried,
            shape=f"{counted(shape.rows, 'row')} of {shape.key}",
            wanted_bytes=failure.wanted_bytes,
            allocated_bytes=failure.allocated_bytes,
            capacity_bytes=meter.capacity(),
            impossible=[note for note in self._notes if note.startswith("not ")],
        )

    def _look_at(self, batch: Any) -> tuple[Shape, Means]:
        """The batch's shape, and what can be done with it."""
        can_split = True
        try:
            if self.setting.split is pieces_of:
                refuse_nested(batch)
            rows = self._rows(batch)
        except NotSplittable as error:
            rows, can_split = 1, False
            self._notes[f"not split: {error}"] = None
        if not self.setting.blocks:
            self._notes["not recomputed: the model has no list of blocks; name them with recompute_modules="] = None
        means = Means(
            rows=rows,
            split=can_split and rows > 1,
            recompute=bool(self.setting.blocks),
            ballast=self.ballast is not None and self.ballast.held,
            floor_rows=self._floor_rows,
        )
        return describe(batch, rows), means

    def _device(self) -> torch.device:
        return next((parameter.device for parameter in self._walk.parameters()), torch.device("cpu"))

    def _retake_ballast(self, meter: Meter) -> None:
        """Holds the ballast again, some calls after its release, when there is room for it and for the highest peak."""
        if self.ballast is None or self.ballast.held or self._released_at is None:
            return
        if self._counts["calls"] - self._released_at < RETAKE_AFTER:
            return
        self._released_at = self._counts["calls"]
        capacity = meter.capacity()
        if capacity is None or self._peak_bytes is None or capacity - self._peak_bytes >= self.ballast.size_bytes:
            self.ballast.take()
