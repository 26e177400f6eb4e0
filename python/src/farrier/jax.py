"""JAX: the node hears of its steps and it hears of the node.

    import farrier.jax
    farrier.jax.configure(memory_fraction=0.9)       # before JAX uses the GPU
    step = farrier.jax.step(jax.jit(train_step, donate_argnums=0), tokens=65536, loss=lambda out: out[1])
    for batch in batches:
        state, loss = step(state, batch)
        if step.checkpoint_wanted:
            save(state)
            step.saved()

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

#: An argument of which less than this could be donated is not worth a word.
MIN_DONATION_BYTES = 1 << 20


def configure(*, memory_fraction: float | None = None, preallocate: bool | None = None) -> Settings:
    """JAX's settings of GPU memory, before it uses one. What the user has set stays.

    Args:
        memory_fraction: XLA_PYTHON_CLIENT_MEM_FRACTION; JAX takes 0.75 of the GPU by itself.
        preallocate: XLA_PYTHON_CLIENT_PREALLOCATE; False takes memory as it is needed.
    """
    return settings.apply(settings.jax_memory(memory_fraction, preallocate), os.environ, sys.modules, ("jax",))


@dataclass(frozen=True)
class ArrayInfo:
    """An array that goes into a step or comes out of it. `argument` is None for one that comes out."""

    shape: tuple[int, ...]
    dtype: str
    size_bytes: int
    argument: int | str | None = None
    donated: bool = False


@dataclass(frozen=True)
class Donation:
    """Arguments whose memory could be that of the results. Only found and told: what is donated is the user's to say.

    A donated argument gives its memory to results of the same shapes and types, so that a step holds its state once and
    not twice. JAX deletes the array that was given: to use it afterwards is an error.

    Attributes:
        arguments: by place or name, the bytes that are held twice now; arguments with less than 1 MiB are left out.
    """

    args: dict[int | str, int]

    @property
    def size_bytes(self) -> int:
        """How much less the step would hold."""
        return sum(self.args.values())

    def __str__(self) -> str:
        if not self.args:
            return (
                f"nothing more to donate: no argument that is not donated has {MIN_DONATION_BYTES >> 20} MiB or more of the "
                "shapes and types that come back"
            )
        argnums = tuple(name for name in self.args if isinstance(name, int))
        argnames = tuple(name for name in self.args if isinstance(name, str))
        kwargs = [f"donate_argnums={argnums}"] if argnums else []
        kwargs += [f"donate_argnames={argnames}"] if argnames else []
        return (
            f"{self.size_bytes / (1 << 20):.0f} MiB are held twice during the step, as arguments and as results: "
            f"jax.jit(..., {', '.join(kwargs)}) lets results take the memory of these arguments. JAX then deletes what was "
            "given: go on with what comes back"
        )


def donatable(inputs: Sequence[ArrayInfo], outputs: Sequence[ArrayInfo]) -> Donation:
    """Which arguments have the shapes and types of results, are not donated, and are worth it. Pure.

    A result takes the memory of one argument: those that are donated already come first.
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
    """What a jitted function could donate and does not; None: it is not jitted, or cannot be looked at. Runs nothing."""
    jax: Any = importlib.import_module("jax")
    try:
        lowered = fn.lower(*args, **kwargs)
        inputs_info = jax.tree_util.tree_flatten_with_path(lowered.args_info)[0]
        outputs_info = jax.tree_util.tree_leaves(lowered.out_info)
        inputs = [_array_info(info, _argument(path), bool(info.donated)) for path, info in inputs_info]
        return donatable(inputs, [_array_info(info) for info in outputs_info])
    except Exception as err:  # What is wrong with the step itself shows when it is called, in the words of JAX.
        log.debug("the step cannot be looked at: %s", err)
        return None


def _argument(path: Sequence[Any]) -> int | str:
    """The first key leads to the arguments by place or to those by name, the second is the one."""
    key = path[1]
    return int(key.idx) if hasattr(key, "idx") else str(key.key)


def _array_info(info: Any, argument: int | str | None = None, donated: bool = False) -> ArrayInfo:
    shape = tuple(int(side) for side in info.shape)
    size = functools.reduce(lambda so_far, side: so_far * side, shape, 1)
    # Keys of random numbers have a type without a size that numpy knows.
    return ArrayInfo(shape, str(info.dtype), size * int(getattr(info.dtype, "itemsize", 0)), argument, donated)


class Step:
    """What `farrier.jax.step` returns: call it as the function it wraps.

    Attributes:
        count: steps that were launched, those before this process included.
        job: the connection to the agent; None before the first step.
        donation: what the step could donate and does not; None: not known (not jitted, or before the first step).
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
        """Why the agent wants a checkpoint; None: it does not. With several processes they have to agree."""
        return None if self.job is None else self.job.checkpoint_wanted

    def checkpoint_done(self, *, notify: bool = True) -> None:
        """A checkpoint of the state after the last step is on disk."""
        if self.job is not None:
            self.job.checkpoint_done(self.count, notify=notify)
        self._cadence.start(self.count, time.perf_counter())

    def checkpoint_failed(self, reason: object) -> None:
        """None could be made."""
        if self.job is not None:
            self.job.checkpoint_failed(str(reason))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """One step. Now and then it waits until the results are there."""
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
        if self.donation is not None and self.donation.args:
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
        # The first step compiled: its time is none of a step.
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
    """Wraps a (jitted) training step: the node's agent hears of it, and of memory that ran out.

    It waits for the results of the first step and then about once in `every_s` seconds, not at every step.

    Args:
        fn: the step. What it could donate and does not is logged at the first call, from 1 MiB an argument; it is not
            donated by this.
        tokens: tokens of a step of this process.
        loss: finds the loss in what the step returns; read only when it is waited for.
        first_step: steps that were done before, by the process that this one goes on for.
        every_s: seconds between two waits.
        job: None: the one of this process.
    """
    return Step(fn, tokens=tokens, loss=loss, first_step=first_step, every_s=every_s, job=job)
