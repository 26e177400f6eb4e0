"""Gradients over several ranks: which backward pass reduces them, and what cannot be retried."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel


class OutOfStep(RuntimeError):
    """A rank ran out of memory when the ranks were already adding up their gradients: no retry on one rank mends that."""

    def __init__(self) -> None:
        super().__init__(
            "out of memory in the middle of DistributedDataParallel's reduction: the other ranks wait for this one's "
            "buckets and cannot be asked to begin again\n"
            'hint: restart from the last checkpoint with ddp_sync="after", which reduces once the gradients are there'
        )


def parallel_of(modules: Sequence[nn.Module]) -> DistributedDataParallel | None:
    """The wrapper that reduces gradients, if there is one. A forward that communicates is refused: see `guard`."""
    for root in modules:
        for module in root.modules():
            if isinstance(module, nn.SyncBatchNorm) and _ranks_of(module.process_group) > 1:
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


def _ranks_of(group: distributed.ProcessGroup | None) -> int:
    if not distributed.is_available() or not distributed.is_initialized():
        return 1
    return distributed.get_world_size(group)


def synchronising(wrapper: DistributedDataParallel | None, *, sync: bool) -> contextlib.AbstractContextManager[None]:
    """Within, backward reduces over the ranks, or does not."""
    if wrapper is None or sync:
        return contextlib.nullcontext()
    quiet: contextlib.AbstractContextManager[None] = wrapper.no_sync()
    return quiet


@contextlib.contextmanager
def buffers_once(wrapper: DistributedDataParallel | None) -> Iterator[None]:
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
    due, broadcast = (getattr(wrapper, name, None) for name in ("_check_sync_bufs_pre_fwd", "_sync_buffers"))
    if due is None or broadcast is None:
        if wrapper.broadcast_buffers and next(wrapper.buffers(), None) is not None:
            raise TypeError(
                f"torch {torch.__version__} broadcasts buffers in a way that guard does not know\n"
                "hint: DistributedDataParallel(..., broadcast_buffers=False), or torch 2.5 to 2.11"
            )
    elif due():
        broadcast()
    try:
        yield
    finally:
        wrapper.require_forward_param_sync = wrapper.require_backward_grad_sync


def forget_attempt(wrapper: DistributedDataParallel) -> None:
    """After a failed attempt: DDP does not expect its backward.

    Without the reset, DDP would take the next backward, also one under `no_sync`, for the one it waits for, and reduce part
    of the gradients.
    """
    reset = getattr(wrapper.reducer, "_reset_state", None)
    if reset is None:
        raise OutOfStep
    reset()


def stamp(leaves: Sequence[Tensor]) -> list[tuple[int, int] | None]:
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
    parameters = [each for name, each in wrapper.module.named_parameters() if each.requires_grad and name not in ignored]
    if not parameters:
        return
    used = torch.tensor([parameter.grad is not None for parameter in parameters], dtype=torch.int32)
    used = used.to(parameters[0].device)
    distributed.all_reduce(used, distributed.ReduceOp.MAX, group=group)
    gradients: list[Tensor] = []
    for parameter, anywhere in zip(parameters, used.tolist(), strict=True):
        if anywhere and parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        if anywhere and parameter.grad is not None:
            gradients.append(parameter.grad)
    # Divided before they are added, as DDP does it: a sum of half-precision gradients could overflow.
    with torch.no_grad():
        torch._foreach_div_(gradients, float(ranks))
    works = [distributed.all_reduce(gradient, group=group, async_op=True) for gradient in gradients]
    for work in works:
        if work is not None:
            work.wait()
