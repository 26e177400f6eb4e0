"""JAX: reports steps to the node's agent and receives checkpoint requests.

    import farrier.jax
    farrier.jax.configure(memory_fraction=0.9)       # before JAX uses the GPU
    step = farrier.jax.step(jax.jit(train_step, donate_argnums=0), tokens=65536, loss=lambda out: out[1])
    for batch in batches:
        state, loss = step(state, batch)
        if step.checkpoint_wanted:
            save(state)
            step.checkpoint_done()

JAX itself is imported at the first step.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from farrier import agent, oom, settings
from farrier.cadence import Cadence
from farrier.oom import reporting
from farrier.settings import Settings

__all__ = ["ArrayInfo", "Donation", "Settings", "Step", "configure", "donation", "reporting", "step"]

log = logging.getLogger("farrier.jax")

#: Arguments that could donate less memory than this are not reported.
MIN_DONATION_BYTES = 1 << 20


def configure(*, memory_fraction: float | None = None, preallocate: bool | None = None) -> Settings:
    """Configures JAX's GPU memory, before it uses a GPU. Existing settings are kept.

    Args:
        memory_fraction: XLA_PYTHON_CLIENT_MEM_FRACTION; JAX's default is 0.75 of the GPU.
        preallocate: XLA_PYTHON_CLIENT_PREALLOCATE; False allocates on demand.
    """
    return settings.apply(settings.jax_memory(memory_fraction, preallocate), os.environ, sys.modules, ("jax",))


@dataclass(frozen=True)
class ArrayInfo:
    """An array that is passed into a step, or returned from it (then `argument` is None)."""

    shape: tuple[int, ...]
    dtype: str
    size_bytes: int
    argument: int | str | None = None
    donated: bool = False


@dataclass(frozen=True)
class Donation:
    """Arguments that could be donated. Only reported: donating is the user's decision.

    A result with the same shape and dtype reuses the memory of a donated argument. So the memory
    holds the state once instead of twice. JAX deletes the donated array; using it afterwards is an
    error.

    Attributes:
        arguments: by position or name, the bytes that are now held twice. Arguments below 1 MiB are
            omitted.
    """

    arguments: dict[int | str, int]

    @property
    def size_bytes(self) -> int:
        """How much less memory the step would need."""
        return sum(self.arguments.values())

    def __str__(self) -> str:
        if not self.arguments:
            return (
                f"nothing more to donate: no other argument has {MIN_DONATION_BYTES >> 20} MiB or more in the shapes and "
                "dtypes of results"
            )
        argnums = tuple(name for name in self.arguments if isinstance(name, int))
        argnames = tuple(name for name in self.arguments if isinstance(name, str))
        options = [f"donate_argnums={argnums}"] if argnums else []
        options += [f"donate_argnames={argnames}"] if argnames else []
        return (
            f"{self.size_bytes / (1 << 20):.0f} MiB are held twice during the step, as arguments and as results: "
            f"jax.jit(..., {', '.join(options)}) lets results reuse the memory of these arguments. JAX then deletes the "
            "arguments: continue with the results"
        )


def donatable(inputs: Sequence[ArrayInfo], outputs: Sequence[ArrayInfo]) -> Donation:
    """Finds arguments that are not donated, but have the shape and dtype of a result. Pure.

    A result can reuse the memory of one argument. Donated arguments are matched first.
    """
    free = Counter((leaf.shape, leaf.dtype) for leaf in outputs)
    free.subtract((leaf.shape, leaf.dtype) for leaf in inputs if leaf.donated)
    found: dict[int | str, int] = {}
    for leaf in inputs:
        shape_and_dtype = (leaf.shape, leaf.dtype)
        if not leaf.donated and leaf.argument is not None and free[shape_and_dtype] > 0:
            free[shape_and_dtype] -= 1
            found[leaf.argument] = found.get(leaf.argument, 0) + leaf.size_bytes
    return Donation({name: size for name, size in found.items() if size >= MIN_DONATION_BYTES})


def donation(fn: Any, *args: Any, **kwargs: Any) -> Donation | None:
    """What a jitted function could still donate. Does not run the function.

    None if the function is not jitted or cannot be inspected.
    """
    jax: Any = importlib.import_module("jax")
    try:
        lowered = fn.lower(*args, **kwargs)
        inputs_info = jax.tree_util.tree_flatten_with_path(lowered.args_info)[0]
        outputs_info = jax.tree_util.tree_leaves(lowered.out_info)
        inputs = [_array_info(info, _argument(path), bool(info.donated)) for path, info in inputs_info]
        return donatable(inputs, [_array_info(info) for info in outputs_info])
    except Exception as err:  # If the step itself has an error, JAX reports it when the step runs.
        log.debug("cannot inspect the step: %s", err)
        return None


def _argument(path: Sequence[Any]) -> int | str:
    """The argument that a path leads to. The first key only says whether it is positional."""
    key = path[1]
    return int(key.idx) if hasattr(key, "idx") else str(key.key)


def _array_info(info: Any, argument: int | str | None = None, donated: bool = False) -> ArrayInfo:
    shape = tuple(int(side) for side in info.shape)
    size = functools.reduce(lambda so_far, side: so_far * side, shape, 1)
    # PRNG keys have a dtype without an item size.
    return ArrayInfo(shape, str(info.dtype), size * int(getattr(info.dtype, "itemsize", 0)), argument, donated)


class Step:
    """Returned by `farrier.jax.step`. Call it like the function that it wraps.

    Attributes:
        count: steps launched, including those before this process.
        job: the connection to the agent; None before the first step.
        donation: what the step could still donate. None if unknown (not jitted, or before the first
            step).
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        tokens: int | None,
        loss: Callable[[Any], Any] | None,
        first_step: int,
        every_s: float,
        job: agent.Job | None,
    ) -> None:
        self.count = first_step
        self.job = job
        self.donation: Donation | None = None
        self._fn, self._tokens, self._loss = fn, tokens, loss
        self._cadence = Cadence(every_s=every_s)
        self._jax: Any = None

    @property
    def checkpoint_wanted(self) -> str | None:
        """The reason why the agent requests a checkpoint, or None.

        Several processes must agree before they save.
        """
        return None if self.job is None else self.job.checkpoint_wanted

    def checkpoint_done(self, *, notify: bool = True) -> None:
        """Reports that a checkpoint of the state after the last step is on disk."""
        if self.job is not None:
            self.job.checkpoint_done(self.count, notify=notify)
        self._cadence.start(self.count, time.perf_counter())

    def checkpoint_failed(self, reason: object) -> None:
        """Reports that writing a checkpoint failed."""
        if self.job is not None:
            self.job.checkpoint_failed(str(reason))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs one step. Waits for the results every few seconds, to measure the step time."""
        first = self._jax is None
        if first:
            self._begin(args, kwargs)
        with oom.reporting(self.job):
            result = self._fn(*args, **kwargs)
            self.count += 1
            if first or self._cadence.due(self.count):
                self._report_steps(result, compiled=first)
            elif self.job is not None:
                self.job.poll()
        return result

    def _begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._jax = importlib.import_module("jax")
        if self.job is None:
            self.job = self._new_job()
        self.job.phase("compile")
        self.donation = donation(self._fn, *args, **kwargs)
        if self.donation is not None and self.donation.arguments:
            log.warning("%s", self.donation)
        self._cadence.start(self.count, time.perf_counter())

    def _new_job(self) -> agent.Job:
        processes = self._jax.process_count()
        if "RANK" in os.environ or processes == 1:
            return agent.job()
        return agent.job(rank=self._jax.process_index(), world_size=processes)

    def _report_steps(self, result: Any, *, compiled: bool) -> None:
        self._jax.block_until_ready(result)
        seconds = self._cadence.record_sync(self.count, time.perf_counter())
        loss = None if self._loss is None else float(self._loss(result))
        if self.job is None:
            return
        if compiled:
            self.job.phase("train")
        # The first step includes compilation, so its time is not reported.
        self.job.step_end(self.count, seconds=None if compiled else seconds, tokens=self._tokens, loss=loss)


def step(
    fn: Callable[..., Any],
    *,
    tokens: int | None = None,
    loss: Callable[[Any], Any] | None = None,
    first_step: int = 0,
    every_s: float = Cadence.every_s,
    job: agent.Job | None = None,
) -> Step:
    """Wraps a (jitted) training step. Reports steps and out-of-memory errors to the node's agent.

    Waits for the results of the first step, and then about every `every_s` seconds, not at every
    step.

    Args:
        fn: the step. The first call logs which arguments of 1 MiB or more it could still donate.
            Nothing is donated automatically.
        tokens: tokens per step of this process.
        loss: returns the loss from the step's result. Called only after waiting for the result.
        first_step: when resuming, the number of steps completed before this process.
        every_s: seconds between two waits.
        job: None uses the job of this process.
    """
    return Step(fn, tokens=tokens, loss=loss, first_step=first_step, every_s=every_s, job=job)
