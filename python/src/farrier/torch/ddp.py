"""Gradients over several ranks: which backward pass reduces them, and what cannot be retried."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel


class RanksOutOfSync(RuntimeError):
    """A rank ran out of memory when the ranks were already adding up their gradients: no retry on one rank mends that."""

    def __init__(self) -> None:
        super().__init__(
            "out of memory in the middle of DistributedDataParallel's reduction: the other ranks wait for this one's "
            "buckets and cannot be asked to begin again\n"
            'hint: restart from the last checkpoint with ddp_sync="after", which reduces once the gradients are there'
        )


def find_guardable_ddp(modules: Sequence[nn.Module]) -> DistributedDataParallel | None:
    """The wrapper that reduces gradients, if there is one. A forward that communicates is refused: see `guard`."""
    for root in modules:
        for module in root.modules():
            if isinstance(module, nn.SyncBatchNorm) and _group_size(module.process_group) > 1:
                raise TypeError(
                    "guard cannot wrap a model with SyncBatchNorm on several ranks: each forward adds up statistics over "
                    "all ranks, so that a rank cannot try again alone\n"
                    "hint: use BatchNorm, or a norm that does not mix rows; or split to a size that fits on every rank"
                )
            if type(module).__name__ in ("FullyShardedDataParallel", "FSDPModule") or any(
                base.__name__ == "FSDPModule" for base in type(module).__mro__
            ):
                raise TypeError(
                    "guard cannot wrap an FSDP model: each forward gathers weights from all ranks, so that a rank cannot "
                    "run other pieces than the rest\n"
                    "hint: split to a size that fits on every rank, or reshard; see the docstring of farrier.torch.guard"
                )
    wrappers = [module for module in modules if isinstance(module, DistributedDataParallel)]
    if len(wrappers) > 1:
        raise TypeError("guard takes one DistributedDataParallel model: give the one that loss_fn calls")
    return wrappers[0] if wrappers else None


def _group_size(group: distributed.ProcessGroup | None) -> int:
    if not distributed.is_available() or not distributed.is_initialized():
        return 1
    return distributed.get_world_size(group)


def gradient_sync(wrapper: DistributedDataParallel | None, *, sync: bool) -> contextlib.AbstractContextManager[None]:
    """Within, backward reduces over the ranks, or does not."""
    if wrapper is None or sync:
        return contextlib.nullcontext()
    no_sync: contextlib.AbstractContextManager[None] = wrapper.no_sync()
    return no_sync


@contextlib.contextmanager
def broadcast_buffers_once(wrapper: DistributedDataParallel | None) -> Iterator[None]:
    """Broadcasts the buffers now, where DDP would in its next forward, and not within, however often forward is run.

    A rank may fail before its forward or run it several times, and the other ranks take part in one broadcast. Afterwards
    DDP is as after one forward: the next step broadcasts again, unless the user accumulates under `no_sync`.
    """
    if wrapper is None:
        yield
        return
    if hasattr(wrapper, "buffer_hook"):
        raise TypeError(
            "the model has a hook for its buffers (_register_buffer_comm_hook), which guard does not run\n"
            "hint: construct DistributedDataParallel without it"
        )
    # Private to torch, and in all of 2.5 to 2.11.
    is_due, broadcast = (getattr(wrapper, name, None) for name in ("_check_sync_bufs_pre_fwd", "_sync_buffers"))
    if is_due is None or broadcast is None:
        if wrapper.broadcast_buffers and next(wrapper.buffers(), None) is not None:
            raise TypeError(
                f"torch {torch.__version__} broadcasts buffers in a way that guard does not know\n"
                "hint: DistributedDataParallel(..., broadcast_buffers=False), or torch 2.5 to 2.11"
            )
    elif is_due():
        broadcast()
    try:
        yield
    finally:
        wrapper.require_forward_param_sync = wrapper.require_backward_grad_sync


def can_prepare_late(wrapper: DistributedDataParallel) -> bool:
    """Whether DDP can be told of the backward that reduces right before it, and not by its forward.

    A forward that fails has then told it of nothing. What it makes of a graph that stays the same, or in Python, it does in
    forward.
    """
    return not (wrapper.static_graph or any(getattr(wrapper, name, False) for name in _IN_PYTHON))


#: Where DDP reduces without its reducer in C++ (torch 2.5 to 2.11).
_IN_PYTHON = ("_use_python_reducer", "_delay_all_reduce_all_params")


def prepare_backward(wrapper: DistributedDataParallel, loss: Tensor) -> None:
    """The next backward, from this loss, reduces: what DDP's forward says outside of `no_sync`."""
    reducer = cast(Any, wrapper.reducer)
    reducer.prepare_for_backward([loss] if wrapper.find_unused_parameters else [])


def reset_after_failure(wrapper: DistributedDataParallel) -> None:
    """After a failed attempt that DDP was told of: it does not expect its backward any more.

    Without the reset, DDP would take the next backward, also one under `no_sync`, for the one it waits for, and reduce part
    of the gradients. But after it, DDP orders its buckets anew, by a broadcast of which the other ranks know nothing: where
    they have done so already, all that is left is to end.
    """
    reset = getattr(wrapper.reducer, "_reset_state", None)
    buckets_rebuilt = (
        getattr(wrapper, "_has_rebuilt_buckets", True) and distributed.get_world_size(wrapper.process_group) > 1
    )
    if reset is None or buckets_rebuilt:
        raise RanksOutOfSync
    reset()


def gradient_versions(leaves: Sequence[Tensor]) -> list[tuple[int, int] | None]:
    """Changes whenever a gradient is made or added to."""
    return [None if leaf.grad is None else (id(leaf.grad), leaf.grad._version) for leaf in leaves]


def average_gradients(wrapper: DistributedDataParallel) -> None:
    """Averages the gradients over the ranks, now that they are all there.

    A parameter without gradient on this rank, but with one on another, counts as zero here; one without anywhere stays
    without, as in DDP. Those that DDP was told to ignore are the user's own.
    """
    if getattr(wrapper, "_comm_hooks", None):
        raise TypeError(
            "the model has a communication hook, which a reduction after backward would pass over\n"
            'hint: guard(..., ddp_sync="last") lets DDP reduce with its hook'
        )
    group = wrapper.process_group
    ranks = distributed.get_world_size(group)
    ignored = wrapper.parameters_to_ignore
    parameters = [
        parameter
        for name, parameter in wrapper.module.named_parameters()
        if parameter.requires_grad and name not in ignored
    ]
    if not parameters:
        return
    has_gradient = torch.tensor([parameter.grad is not None for parameter in parameters], dtype=torch.int32)
    has_gradient = has_gradient.to(parameters[0].device)
    distributed.all_reduce(has_gradient, distributed.ReduceOp.MAX, group=group)
    gradients: list[Tensor] = []
    for parameter, on_any_rank in zip(parameters, has_gradient.tolist(), strict=True):
        if on_any_rank and parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        if on_any_rank and parameter.grad is not None:
            gradients.append(parameter.grad)
    # Divided before they are added, as DDP does it: a sum of half-precision gradients could overflow.
    with torch.no_grad():
        torch._foreach_div_(gradients, float(ranks))
    handles = [distributed.all_reduce(gradient, group=group, async_op=True) for gradient in gradients]
    for handle in handles:
        if handle is not None:
            handle.wait()
