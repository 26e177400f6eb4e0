"""CUDA graph capture: one stream, one memory pool, and the graphs in it."""

from __future__ import annotations

import contextlib
import gc
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor

from farrier.torch.batch import rebuild, tensors
from farrier.torch.comparison import NoiseHistory
from farrier.torch.graph_policy import VerifySchedule

#: Integer types of the CUDA array interface, by their size in bytes. The interface lacks some
#: dtypes, such as bfloat16, so a tensor is passed as integers and then viewed as its own dtype.
_INTEGER_OF_BYTES = {1: "|i1", 2: "<i2", 4: "<i4", 8: "<i8"}


class Arena:
    """The stream and memory pool in which steps run and are captured.

    All graphs share the pool, and the eager runs of comparisons use it too. Graphs and eager runs
    can share this memory, because only one of them is active at a time.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.pool = torch.cuda.MemPool()
        self._graphs: list[torch.cuda.CUDAGraph] = []
        self._capture_anchor()
        # torch aborts if a pool is destroyed before its graphs, and garbage collection could
        # destroy them in any order.
        weakref.finalize(self, _release, self._graphs, [self.pool])

    def _capture_anchor(self) -> None:
        """Captures one small graph, which stays alive as long as the pool.

        torch (seen in 2.11) cannot capture into a pool whose graphs were all reset.
        """
        torch.cuda.synchronize()
        anchor = self.graph()
        with gc_disabled(), self.on_stream():
            anchor.capture_begin(cast(Any, self.pool.id), capture_error_mode="thread_local")
            torch.zeros((), device=self.device)
            anchor.capture_end()

    def graph(self) -> torch.cuda.CUDAGraph:
        """Creates a graph in this pool; it is destroyed before the pool."""
        graph = torch.cuda.CUDAGraph()
        self._graphs.append(graph)
        return graph

    def drop(self, graph: torch.cuda.CUDAGraph) -> None:
        """Resets a graph. Its memory returns to the pool."""
        graph.reset()
        self._graphs.remove(graph)

    @contextmanager
    def on_stream(self) -> Iterator[None]:
        """Inside the context, work runs on the arena's stream.

        On entry the arena's stream waits for the current stream, and on exit the current stream
        waits for the arena's. Memory still comes from the default pool.
        """
        current = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(current)
        try:
            with torch.cuda.stream(self.stream):
                yield
        finally:
            current.wait_stream(self.stream)

    @contextmanager
    def on_stream_and_pool(self) -> Iterator[None]:
        """Inside the context, work runs on the arena's stream, and memory comes from its pool.

        Backward passes run on the calling thread, because `use_mem_pool` applies only to it.
        """
        single = torch.autograd.set_multithreading_enabled(False)
        with gc_disabled(), self.on_stream(), torch.cuda.use_mem_pool(self.pool, self.device), single:
            yield


def _release(graphs: list[torch.cuda.CUDAGraph], pools: list[torch.cuda.MemPool]) -> None:
    for graph in reversed(graphs):
        graph.reset()
    graphs.clear()
    pools.clear()


@contextmanager
def gc_disabled() -> Iterator[None]:
    """Disables garbage collection.

    torch aborts if garbage collection destroys an old pool while another pool is in use.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class TensorAddress:
    """The address of a tensor inside a graph.

    It owns no memory; the contents are valid until the pool is used again.
    """

    def __init__(self, name: str, tensor: Tensor) -> None:
        self.name = name
        self.dtype = tensor.dtype
        width = tensor.element_size()
        self.__cuda_array_interface__ = {
            "version": 3,
            "data": (tensor.data_ptr(), False),
            "shape": tuple(tensor.shape),
            "strides": tuple(step * width for step in tensor.stride()),
            "typestr": _INTEGER_OF_BYTES[width],
        }

    def tensor(self, device: torch.device) -> Tensor:
        """A view of the current contents."""
        return torch.as_tensor(self, device=device).view(self.dtype)


class CapturedStep:
    """One step captured as a graph, for one batch shape."""

    def __init__(self, arena: Arena, batch: Any) -> None:
        self.arena = arena
        self.replays = 0
        self.last_used_call = 0
        self.schedule = VerifySchedule(None)
        self.noise_history: NoiseHistory | None = None
        self.gradient_addresses: list[TensorAddress] = []
        self._graph = arena.graph()
        self._batch = to_device(batch, arena.device, copy=True)
        self._inputs = tensors(self._batch)
        self._result: Any = None

    def capture(self, fn: Callable[[Any], Any]) -> None:
        """Records the step without running it.

        The capture mode is `thread_local`, so that a data loader thread may allocate pinned memory
        at the same time.
        """
        arena, pool = self.arena, cast(Any, self.arena.pool.id)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        with gc_disabled(), arena.on_stream():
            try:
                self._graph.capture_begin(pool, capture_error_mode="thread_local")
                self._result = detach(fn(self._batch))
            except BaseException:
                self._end_failed_capture(pool)
                raise
            try:
                self._graph.capture_end()
            except RuntimeError:
                _reset_after_failed_capture(arena.device, pool)
                raise

    def _end_failed_capture(self, pool: Any) -> None:
        try:
            self._graph.capture_end()
        except RuntimeError:  # Not raised: the error that ended the capture says more.
            _reset_after_failed_capture(self.arena.device, pool)

    def record_gradients(self, gradients: list[tuple[str, Tensor]]) -> None:
        """Records the gradients' addresses.

        Called during capture, when the optimizer receives the gradients.
        """
        self.gradient_addresses += [TensorAddress(name, gradient) for name, gradient in gradients]

    def replay(self, batch: Any, *, wait: bool = False) -> None:
        """Runs the step on a batch of the captured shape.

        With `wait`, it blocks until the batch is copied (see `PinnedReuseDetector`).
        """
        for name, tensor in tensors(batch).items():
            self._inputs[name].copy_(tensor, non_blocking=not wait)
        self._graph.replay()

    def replayed_gradients(self) -> Iterator[tuple[str, Tensor]]:
        """Yields the gradients of the last replay."""
        for address in self.gradient_addresses:
            yield address.name, address.tensor(self.arena.device)

    @property
    def result(self) -> Any:
        """A copy of the step's result; the next replay overwrites the original."""
        return rebuild(self._result, lambda _, leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf)

    def reset(self) -> None:
        """Frees the graph."""
        self.arena.drop(self._graph)
        self._result = None


def _reset_after_failed_capture(device: torch.device, pool: Any) -> None:
    """Undoes what torch (seen in 2.11) leaves behind when a capture fails.

    The allocator still allocates from the capture's pool, and the random number generator still
    counts as captured. Releasing the pool resets the allocator, and an empty capture resets the
    generator.
    """
    index = torch.cuda.current_device() if device.index is None else device.index
    memory: Any = torch.cuda.memory
    with contextlib.suppress(RuntimeError):
        memory._cuda_endAllocateToPool(index, pool)
        memory._cuda_releasePool(index, pool)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that the graph is empty; that is intended.
        empty = torch.cuda.CUDAGraph()
        empty.capture_begin()
        empty.capture_end()
        empty.reset()


class ContextLost(RuntimeError):
    """A CUDA error has made the CUDA context unusable for the rest of the process."""

    def __init__(self, err: BaseException) -> None:
        first = str(err).partition("\n")[0]
        super().__init__(f"the CUDA context is lost after an error in the step ({first}): restart from the last checkpoint")


def raise_if_context_lost(err: BaseException) -> None:
    """Raises `ContextLost` if the CUDA context no longer works."""
    if isinstance(err, ContextLost):
        raise err
    try:
        torch.cuda.synchronize()
    except RuntimeError as lost:
        raise ContextLost(err) from lost


def to_device(batch: Any, device: torch.device, *, copy: bool = False) -> Any:
    """Moves the batch's tensors to the device."""

    def move(_: str, leaf: Any) -> Any:
        return leaf.to(device, non_blocking=True, copy=copy) if isinstance(leaf, Tensor) else leaf

    return rebuild(batch, move)


def detach(result: Any) -> Any:
    """Drops the autograd graph, which would keep every activation alive."""
    return rebuild(result, lambda _, leaf: leaf.detach() if isinstance(leaf, Tensor) else leaf)
