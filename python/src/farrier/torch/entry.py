"""What a call found when it began, so that a failed attempt leaves no trace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from farrier.torch.generators import HostGenerators


class Entry:
    """Gradients, random states and buffers as they were.

    Gradients that are there are set aside by reference and added back at the end, so that an attempt always begins with
    none: where the user zeroes with `set_to_none=True`, nothing is stored at all; where gradients are accumulated over
    several calls there is one more copy of them for the time of the call. Buffers are copied (BatchNorm's are small).
    """

    def __init__(self, leaves: Sequence[Tensor], modules: Sequence[nn.Module]) -> None:
        """`modules` are all of them, not only the roots."""
        self._leaves = leaves
        self._random = RandomState()
        self._buffers = [
            (module, name, buffer, _copied(buffer))
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

    def refuse_strangers(self, loss: Tensor) -> None:
        """Raises where backward would reach a parameter that the guard does not know.

        It could not take the gradients of a failed attempt from it, and they would count twice.
        """
        known = {id(leaf) for leaf in self._leaves}
        strangers = [leaf for leaf in _parameters_behind(loss) if id(leaf) not in known]
        if strangers:
            shapes = ", ".join(str(tuple(leaf.shape)) for leaf in strangers[:5])
            raise ValueError(
                f"loss_fn uses {len(strangers)} parameters that are not in `model`, of shape {shapes}\n"
                "hint: give all modules that are trained, guard(..., model=[one, other])"
            )

    def refuse_backward(self, loss: Tensor) -> None:
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

    def begin_again(self) -> None:
        """No gradients, random states and buffers as on entry: the next attempt sees what the first one saw."""
        self.forget_gradients()
        self._random.restore()
        # All of them: BatchNorm writes its statistics without raising their version.
        with torch.no_grad():
            for module, name, buffer, copy in self._buffers:
                module._buffers[name] = buffer
                buffer.copy_(copy)

    def forget_gradients(self) -> None:
        """Nothing of this call."""
        for leaf in self._leaves:
            leaf.grad = None

    def give_up(self) -> None:
        """Everything as it was before the call."""
        self.begin_again()
        self.put_gradients_back()

    def put_gradients_back(self) -> None:
        """The gradients of before, and nothing of this call."""
        self.forget_gradients()
        for leaf, gradient in self.gradients:
            leaf.grad = gradient

    def add_gradients_back(self) -> None:
        """The gradients of before plus those of this call, in the tensors of before, as backward itself would do it."""
        older: list[Tensor] = []
        newer: list[Tensor] = []
        for leaf, before in self.gradients:
            made, leaf.grad = leaf.grad, before
            if made is None or before is None:
                continue
            if made.layout is torch.strided and before.layout is torch.strided:
                older.append(before)
                newer.append(made)
            else:
                leaf.grad = before + made
        with torch.no_grad():
            if older:
                torch._foreach_add_(older, newer)

    def fold_gradients_in(self) -> None:
        """Adds the gradients of before to those of this call now, keeping the former whole.

        For a backward pass that reduces over ranks: what was gathered before must be reduced together with the rest.
        """
        with torch.no_grad():
            for leaf, before in self.gradients:
                if before is not None:
                    leaf.grad = before.clone() if leaf.grad is None else leaf.grad.add_(before)


def _parameters_behind(loss: Tensor) -> list[Tensor]:
    """The parameters that backward gives gradients to."""
    found: list[Tensor] = []
    waiting: list[Any] = [loss.grad_fn]
    met: set[Any] = set()
    while waiting:
        node = waiting.pop()
        if node is None or node in met:
            continue
        met.add(node)
        if type(node).__name__ == "AccumulateGrad" and isinstance(node.variable, nn.Parameter):
            found.append(node.variable)
        waiting += [following for following, _ in node.next_functions]
    return found


def _copied(buffer: Tensor) -> Tensor:
    """A copy; on the host where the GPU is too full for one, which must not keep the step from being tried."""
    try:
        return buffer.detach().clone()
    except torch.OutOfMemoryError:
        return buffer.detach().to("cpu", copy=True)


class RandomState:
    """The state of every source of randomness that a model is likely to use."""

    def __init__(self) -> None:
        self._host = HostGenerators()
        cuda: Any = torch.cuda
        self._cuda = cuda.get_rng_state() if cuda.is_initialized() else None

    def restore(self) -> None:
        """Puts all of them back."""
        self._host.restore()
        if self._cuda is not None:
            torch.cuda.set_rng_state(self._cuda)
