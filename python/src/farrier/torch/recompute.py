"""Activation recomputation and offloading to host memory."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

#: Smaller saved tensors stay on the device, because all of them together are small, and every copy
#: has a constant cost.
LARGE_BYTES = 1 << 20


def find_blocks(modules: Sequence[nn.Module]) -> list[nn.Module]:
    """Returns the blocks to recompute: the children of the longest ModuleList or Sequential.

    Decoders and encoders have such a list of blocks. Of two equally long lists the first is used.
    """
    lists = [
        list(module)
        for root in modules
        for module in root.modules()
        if isinstance(module, (nn.ModuleList, nn.Sequential)) and len(module) > 1
    ]
    # A Sequential of single layers saves little: prefer lists whose children have children.
    lists.sort(key=lambda blocks: (any(True for child in blocks for _ in child.children()), len(blocks)), reverse=True)
    return lists[0] if lists else []


def compile_disabled() -> contextlib.AbstractContextManager[Any]:
    """Inside the context, compiled code runs eagerly."""
    set_stance: Any = getattr(torch.compiler, "set_stance", None)
    # If the compiler was never loaded, nothing is compiled. Loading it here would take seconds.
    if set_stance is None or "torch._dynamo" not in sys.modules:
        return contextlib.nullcontext()
    stance: contextlib.AbstractContextManager[Any] = set_stance("force_eager")
    return stance


def is_compiled(target: Any) -> bool:
    """Whether a module or function is known to be compiled."""
    return getattr(target, "_compiled_call_impl", None) is not None or hasattr(target, "_torchdynamo_orig_callable")


@contextlib.contextmanager
def recomputing(blocks: Sequence[nn.Module]) -> Iterator[None]:
    """Inside the context, each block keeps only its inputs, and backward recomputes the rest.

    Code compiled with `torch.compile(model)` or `model.compile()` runs eagerly inside: a compiled
    graph decides itself what to keep, and this attempt should not have to wait for a compilation.
    That needs torch 2.6; on 2.5 a compiled model still runs compiled code and recomputes nothing.
    The forward methods are restored on exit, also after an error.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(compile_disabled())
        for block in dict.fromkeys(blocks):
            own_forward = block.__dict__.get("forward")
            block.__dict__["forward"] = _recomputed(block, block.forward)
            stack.callback(_restore_forward, block, own_forward)
        yield


def _restore_forward(block: nn.Module, own_forward: Any) -> None:
    if own_forward is None:
        del block.__dict__["forward"]
    else:
        block.__dict__["forward"] = own_forward


def _recomputed(block: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        passes = 0

        def forward_once(*args: Any, **kwargs: Any) -> Any:
            nonlocal passes
            passes += 1
            # The second pass must not update running statistics again.
            with scratch_buffers(block) if passes > 1 else contextlib.nullcontext():
                return forward(*args, **kwargs)

        return checkpoint(forward_once, *args, use_reentrant=False, preserve_rng_state=True, **kwargs)

    return run


@contextlib.contextmanager
def scratch_buffers(block: nn.Module) -> Iterator[None]:
    """Inside the context, the block writes to copies of its buffers, which are dropped on exit."""
    buffers = [(module, name, buffer) for module in block.modules() for name, buffer in module._buffers.items()]
    try:
        for module, name, buffer in buffers:
            if buffer is not None:
                module._buffers[name] = buffer.detach().clone()
        yield
    finally:
        for module, name, buffer in buffers:
            module._buffers[name] = buffer


@contextlib.contextmanager
def offloading(
    modules: Sequence[nn.Module], *, large_bytes: int = LARGE_BYTES, device_type: str = "cuda"
) -> Iterator[None]:
    """Inside the context, large saved activations are kept in pinned host memory until backward.

    Weights stay saved by reference, because copying them would free no memory. Copies are ordered
    by the current stream.
    """
    weights = {parameter.untyped_storage().data_ptr() for root in modules for parameter in root.parameters()}

    def pack(tensor: Tensor) -> Tensor | tuple[torch.device, Tensor]:
        offload = (
            tensor.device.type == device_type
            and tensor.layout is torch.strided
            and tensor.nbytes >= large_bytes
            and tensor.untyped_storage().data_ptr() not in weights
        )
        if not offload:
            # Detached, because a saved tensor and its autograd graph would otherwise reference each
            # other, and would never be freed if an attempt fails.
            return tensor.detach()
        pinned = tensor.device.type == "cuda"
        host = torch.empty_like(tensor, device="cpu", pin_memory=pinned, requires_grad=False)
        host.copy_(tensor.detach(), non_blocking=pinned)
        return tensor.device, host

    def unpack(packed: Tensor | tuple[torch.device, Tensor]) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        device, host = packed
        return host.to(device, non_blocking=True)

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        yield
