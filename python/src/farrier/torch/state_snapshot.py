"""Copies the state at the start of a call, so that a failed attempt leaves no side effects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from farrier.torch.host_rng import HostRngState


class StateSnapshot:
    """Gradients, RNG states and buffers at the start of a call.

    Existing gradients are set aside by reference and added back at the end, so that every attempt
    starts without gradients. After `zero_grad(set_to_none=True)` there are none. If gradients
    accumulate over several calls, two sets of gradients exist during a call. Buffers are copied;
    those of BatchNorm are small.
    """

    def __init__(self, leaves: Sequence[Tensor], modules: Sequence[nn.Module]) -> None:
        """`modules` must contain all submodules too."""
        self._leaves = leaves
        self._rng = RngState()
        self._buffers = [
            (module, name, buffer, _clone_or_offload(buffer))
            for module in modules
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]
        self.gradients = [(leaf, leaf.grad) for leaf in leaves if leaf.grad is not None]
        for leaf, _ in self.gradients:
            leaf.grad = None

    def gradient_bytes(self) -> int:
        """Bytes needed for the gradients of a call."""
        return sum(leaf.nbytes for leaf in self._leaves if leaf.requires_grad)

    def reject_unknown_parameters(self, loss: Tensor) -> None:
        """Raises if backward would reach a parameter that the guard does not know.

        The guard could not remove a failed attempt's gradients from that parameter, and they would
        count twice.
        """
        known_ids = {id(leaf) for leaf in self._leaves}
        unknown = [leaf for leaf in _reachable_parameters(loss) if id(leaf) not in known_ids]
        if unknown:
            shapes = ", ".join(str(tuple(leaf.shape)) for leaf in unknown[:5])
            raise ValueError(
                f"loss_fn uses {len(unknown)} parameters outside `model`, of shape {shapes}\n"
                "hint: pass every trained module, guard(..., model=[one, other])"
            )

    def reject_own_backward(self, loss: Tensor) -> None:
        """Raises if loss_fn ran backward itself, or returned a loss without an autograd graph.

        Call it for the first micro-batch of an attempt, when no gradients may exist yet.
        """
        if any(leaf.grad is not None for leaf in self._leaves):
            raise ValueError(
                "loss_fn ran backward: gradients exist before the guard's own backward and would count twice\n"
                "hint: return the loss from loss_fn; leave backward, optimizer and zero_grad out of it"
            )
        if not loss.requires_grad:
            raise ValueError(
                "loss_fn returned a loss without gradients: it was detached or read (.detach(), .item()), computed under "
                "torch.no_grad(), or depends on no trained parameter\n"
                "hint: return the loss itself from loss_fn, as the model computes it"
            )

    def reset(self) -> None:
        """Clears gradients and restores RNG states and buffers for the next attempt."""
        self.clear_gradients()
        self._rng.restore()
        # Copy all buffers, not only those whose version changed: BatchNorm updates its statistics
        # without incrementing their version.
        with torch.no_grad():
            for module, name, buffer, copy in self._buffers:
                module._buffers[name] = buffer
                buffer.copy_(copy)

    def clear_gradients(self) -> None:
        """Removes the gradients of this call."""
        for leaf in self._leaves:
            leaf.grad = None

    def give_up(self) -> None:
        """Restores everything to its state before the call."""
        self.reset()
        self.restore_gradients()

    def restore_gradients(self) -> None:
        """Removes this call's gradients and restores the previous ones."""
        self.clear_gradients()
        for leaf, gradient in self.gradients:
            leaf.grad = gradient

    def release(self) -> None:
        """Drops all tensors. The snapshot cannot be used afterwards.

        This frees their memory even if the caller keeps an exception, whose frames reference the
        snapshot.
        """
        del self._rng, self._buffers, self.gradients

    def accumulate_gradients(self) -> None:
        """Adds this call's gradients to the previous ones in place, as backward would."""
        previous: list[Tensor] = []
        current: list[Tensor] = []
        for leaf, previous_grad in self.gradients:
            current_grad, leaf.grad = leaf.grad, previous_grad
            if current_grad is None or previous_grad is None:
                continue
            if current_grad.layout is torch.strided and previous_grad.layout is torch.strided:
                previous.append(previous_grad)
                current.append(current_grad)
            else:
                leaf.grad = previous_grad + current_grad
        with torch.no_grad():
            if previous:
                torch._foreach_add_(previous, current)

    def merge_gradients(self) -> None:
        """Adds the previous gradients to this call's, leaving the previous tensors unchanged.

        Needed before a backward pass that reduces over ranks: gradients that were accumulated
        before must be reduced with the new ones.
        """
        with torch.no_grad():
            for leaf, previous_grad in self.gradients:
                if previous_grad is not None:
                    leaf.grad = previous_grad.clone() if leaf.grad is None else leaf.grad.add_(previous_grad)


def _reachable_parameters(loss: Tensor) -> list[Tensor]:
    """Returns the parameters that backward gives gradients to."""
    parameters: list[Tensor] = []
    pending: list[Any] = [loss.grad_fn]
    visited: set[Any] = set()
    while pending:
        node = pending.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        if type(node).__name__ == "AccumulateGrad" and isinstance(node.variable, nn.Parameter):
            parameters.append(node.variable)
        pending += [next_node for next_node, _ in node.next_functions]
    return parameters


def _clone_or_offload(buffer: Tensor) -> Tensor:
    """Copies a buffer, to the host if the GPU is too full."""
    try:
        return buffer.detach().clone()
    except torch.OutOfMemoryError:
        return buffer.detach().to("cpu", copy=True)


class RngState:
    """State of every RNG that a model is likely to use."""

    def __init__(self) -> None:
        self._host = HostRngState()
        cuda: Any = torch.cuda
        self._cuda = cuda.get_rng_state() if cuda.is_initialized() else None

    def restore(self) -> None:
        """Restores the state of all these RNGs."""
        self._host.restore()
        if self._cuda is not None:
            torch.cuda.set_rng_state(self._cuda)
