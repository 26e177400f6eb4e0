"""Gradient reduction under DistributedDataParallel, and models that the guard cannot retry."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel


class RanksOutOfSync(RuntimeError):
    """A rank ran out of memory during gradient reduction, and cannot retry without the others."""

    def __init__(self) -> None:
        super().__init__(
            "out of memory during DistributedDataParallel's reduction: the other ranks wait for this rank's buckets and "
            "cannot restart\n"
            'hint: restart from the last checkpoint with ddp_sync="after", which reduces once all gradients exist'
        )


def find_guardable_ddp(modules: Sequence[nn.Module]) -> DistributedDataParallel | None:
    """Returns the DDP wrapper, if any.

    Raises for models whose forward pass communicates with other ranks (see `guard`).
    """
    for root in modules:
        for module in root.modules():
            if isinstance(module, nn.SyncBatchNorm) and _group_size(module.process_group) > 1:
                raise TypeError(
                    "guard cannot wrap a model with SyncBatchNorm on several ranks: each forward reduces statistics over "
                    "all ranks, so one rank cannot retry alone\n"
                    "hint: use BatchNorm, or a norm that does not mix rows; or split to a size that fits on every rank"
                )
            if type(module).__name__ in ("FullyShardedDataParallel", "FSDPModule") or any(
                base.__name__ == "FSDPModule" for base in type(module).__mro__
            ):
                raise TypeError(
                    "guard cannot wrap an FSDP model: each forward all-gathers weights, so all ranks must run the same "
                    "micro-batches\n"
                    "hint: split to a size that fits on every rank, or reshard; see the docstring of farrier.torch.guard"
                )
    wrappers = [module for module in modules if isinstance(module, DistributedDataParallel)]
    if len(wrappers) > 1:
        raise TypeError("guard takes one DistributedDataParallel model: pass the one that loss_fn calls")
    return wrappers[0] if wrappers else None


def _group_size(group: distributed.ProcessGroup | None) -> int:
    if not distributed.is_available() or not distributed.is_initialized():
        return 1
    return distributed.get_world_size(group)


def gradient_sync(wrapper: DistributedDataParallel | None, *, sync: bool) -> contextlib.AbstractContextManager[None]:
    """Inside the context, backward passes reduce gradients only if `sync` is True."""
    if wrapper is None or sync:
        return contextlib.nullcontext()
    no_sync: contextlib.AbstractContextManager[None] = wrapper.no_sync()
    return no_sync


@contextlib.contextmanager
def broadcast_buffers_once(wrapper: DistributedDataParallel | None) -> Iterator[None]:
    """Broadcasts buffers on entry, if DDP would do so in its next forward pass, but not inside.

    Every rank must take part in exactly one broadcast per call. But a rank may fail before its
    forward pass, or run several forward passes. On exit, DDP is in the same state as after one
    forward pass: it broadcasts again in the next call, unless the user accumulates gradients under
    `no_sync`.
    """
    if wrapper is None:
        yield
        return
    if hasattr(wrapper, "buffer_hook"):
        raise TypeError(
            "the model has a buffer hook (_register_buffer_comm_hook), which guard does not run\n"
            "hint: construct DistributedDataParallel without it"
        )
    # Private torch API, present in 2.5 to 2.11.
    is_due, broadcast = (getattr(wrapper, name, None) for name in ("_check_sync_bufs_pre_fwd", "_sync_buffers"))
    if is_due is None or broadcast is None:
        if wrapper.broadcast_buffers and next(wrapper.buffers(), None) is not None:
            raise TypeError(
                f"guard does not know how torch {torch.__version__} broadcasts buffers\n"
                "hint: DistributedDataParallel(..., broadcast_buffers=False), or torch 2.5 to 2.11"
            )
    elif is_due():
        broadcast()
    try:
        yield
    finally:
        wrapper.require_forward_param_sync = wrapper.require_backward_grad_sync


def can_prepare_late(wrapper: DistributedDataParallel) -> bool:
    """Whether DDP can be prepared right before the backward pass that reduces.

    Then DDP expects no backward pass if the forward pass fails. With a static graph, or if DDP
    reduces in Python, DDP has to be prepared in the forward pass.
    """
    return not (wrapper.static_graph or any(getattr(wrapper, name, False) for name in _IN_PYTHON))


#: Attributes that are True if DDP reduces in Python and not in its C++ reducer (torch 2.5 to 2.11).
_IN_PYTHON = ("_use_python_reducer", "_delay_all_reduce_all_params")


def prepare_backward(wrapper: DistributedDataParallel, loss: Tensor) -> None:
    """Makes the next backward pass from this loss reduce gradients.

    DDP's forward pass does the same outside `no_sync`.
    """
    reducer = cast(Any, wrapper.reducer)
    reducer.prepare_for_backward([loss] if wrapper.find_unused_parameters else [])


def reset_after_failure(wrapper: DistributedDataParallel) -> None:
    """Resets DDP after a failed attempt, so that it no longer expects a backward pass.

    Without the reset, DDP would mistake the next backward pass, even one under `no_sync`, for the
    expected one, and reduce some of the gradients. If DDP has already rebuilt its buckets, it
    rebuilds them again after a reset, with a broadcast that the other ranks do not expect. In that
    case this raises `RanksOutOfSync`, and the job has to end.
    """
    reset = getattr(wrapper.reducer, "_reset_state", None)
    buckets_rebuilt = (
        getattr(wrapper, "_has_rebuilt_buckets", True) and distributed.get_world_size(wrapper.process_group) > 1
    )
    if reset is None or buckets_rebuilt:
        raise RanksOutOfSync
    reset()


def gradient_versions(leaves: Sequence[Tensor]) -> list[tuple[int, int] | None]:
    """Returns one value per tensor, which changes when its gradient is created or written."""
    return [None if leaf.grad is None else (id(leaf.grad), leaf.grad._version) for leaf in leaves]


def average_gradients(wrapper: DistributedDataParallel) -> None:
    """Averages the complete gradients over the ranks.

    If a parameter has a gradient only on other ranks, its gradient on this rank counts as zero. A
    parameter without a gradient on any rank gets none, as in DDP. Parameters that DDP ignores are
    not changed.
    """
    if getattr(wrapper, "_comm_hooks", None):
        raise TypeError(
            "the model has a communication hook, which a reduction after backward would bypass\n"
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
    # Divide before adding, as DDP does: a sum of half-precision gradients could overflow.
    with torch.no_grad():
        torch._foreach_div_(gradients, float(ranks))
    handles = [distributed.all_reduce(gradient, group=group, async_op=True) for gradient in gradients]
    for handle in handles:
        if handle is not None:
            handle.wait()
