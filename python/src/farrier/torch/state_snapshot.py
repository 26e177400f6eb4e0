"""What a call found when it began, so that a failed attempt leaves no trace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from farrier.torch.host_rng import HostRngState


class StateSnapshot:
    """Gradients, random states and buffers as they were.

    Gradients that are there are set aside by reference and added back at the end, so that an attempt always begins with
    none: where the user zeroes with `set_to_none=True`, nothing is stored at all; where gradients are accumulated over
    several calls there is one more copy of them for the time of the call. Buffers are copied (BatchNorm's are small).
    """

    def __init__(self, leaves: Sequence[Tensor], modules: Sequence[nn.Module]) -> None:
        """`modules` are all of them, not only the roots."""
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
        """What the gradients of a call take."""
        return sum(leaf.nbytes for leaf in self._leaves if leaf.requires_grad)

    def reject_unknown_parameters(self, loss: Tensor) -> None:
        """Raises where backward would reach a parameter that the guard does not know.

        It could not take the gradients of a failed attempt from it, and they would count twice.
        """
        known_ids = {id(leaf) for leaf in self._leaves}
        unknown = [leaf for leaf in _reachable_parameters(loss) if id(leaf) not in known_ids]
        if unknown:
            shapes = ", ".join(str(tuple(leaf.shape)) for leaf in unknown[:5])
            raise ValueError(
                f"loss_fn uses {len(unknown)} parameters that are not in `model`, of shape {shapes}\n"
                "hint: give all modules that are trained, guard(..., model=[one, other])"
            )

    def reject_own_backward(self, loss: Tensor) -> None:
        """Raises where loss_fn ran backward itself, before the guard's own, or gave a loss without a graph.

        For the first piece of an attempt, which begins without gradients.
        """
        if any(leaf.grad is not None for leaf in self._leaves):
            raise ValueError(
                "loss_fn ran backward: gradients are there before the guard's own backward, and would count twice\n"
                "hint: return the loss from loss_fn and leave backward, optimizer and zero_grad out of it"
            )
        if not loss.requires_grad:
            raise ValueError(
                "loss_fn gave a loss that has no gradients: it was detached or read (.detach(), .item()), made under "
                "torch.no_grad(), or nothing that is trained is in it\n"
                "hint: return the loss itself from loss_fn, as the model gives it"
            )

    def reset(self) -> None:
        """No gradients, random states and buffers as on entry: the next attempt sees what the first one saw."""
        self.clear_gradients()
        self._rng.restore()
        # All of them: BatchNorm writes its statistics without raising their version.
        with torch.no_grad():
            for module, name, buffer, copy in self._buffers:
                module._buffers[name] = buffer
                buffer.copy_(copy)

    def clear_gradients(self) -> None:
        """Nothing of this call."""
        for leaf in self._leaves:
            leaf.grad = None

    def give_up(self) -> None:
        """Everything as it was before the call."""
        self.reset()
        self.restore_gradients()

    def restore_gradients(self) -> None:
        """The gradients of before, and nothing of this call."""
        self.clear_gradients()
        for leaf, gradient in self.gradients:
            leaf.grad = gradient

    def accumulate_gradients(self) -> None:
        """The gradients of before plus those of this call, in the tensors of before, as backward itself would do it."""
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
        """Adds the gradients of before to those of this call now, keeping the former whole.

        For a backward pass that reduces over ranks: what was gathered before must be reduced together with the rest.
        """
        with torch.no_grad():
            for leaf, previous_grad in self.gradients:
                if previous_grad is not None:
                    leaf.grad = previous_grad.clone() if leaf.grad is None else leaf.grad.add_(previous_grad)


def _reachable_parameters(loss: Tensor) -> list[Tensor]:
    """The parameters that backward gives gradients to."""
    found: list[Tensor] = []
    pending: list[Any] = [loss.grad_fn]
    visited: set[Any] = set()
    while pending:
        node = pending.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        if type(node).__name__ == "AccumulateGrad" and isinstance(node.variable, nn.Parameter):
            found.append(node.variable)
        pending += [next_node for next_node, _ in node.next_functions]
    return found


def _clone_or_offload(buffer: Tensor) -> Tensor:
    """A copy; on the host where the GPU is too full for one, which must not keep the step from being tried."""
    try:
        return buffer.detach().clone()
    except torch.OutOfMemoryError:
        return buffer.detach().to("cpu", copy=True)


class RngState:
    """The state of every source of randomness that a model is likely to use."""

    def __init__(self) -> None:
        self._host = HostRngState()
        cuda: Any = torch.cuda
        self._cuda = cuda.get_rng_state() if cuda.is_initialized() else None

    def restore(self) -> None:
        """Puts all of them back."""
        self._host.restore()
        if self._cuda is not None:
            torch.cuda.set_rng_state(self._cuda)
