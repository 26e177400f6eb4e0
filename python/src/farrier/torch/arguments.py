"""What is given to `step` and `guard`, looked at before anything runs: an error later names no argument."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer


def function_of(fn: Any, name: str, meaning: str) -> None:
    """Refuses what cannot be called, by the name of the argument."""
    if not callable(fn):
        raise TypeError(f"{name} is {_kind(fn)}: give a function, {meaning}")


def modules_of(model: Any) -> list[nn.Module]:
    """The modules that were given, one or several."""
    modules = [model] if isinstance(model, nn.Module) else _members(model)
    wrong = [each for each in modules if not isinstance(each, nn.Module)]
    if wrong or not modules:
        what = _found(model, wrong)
        raise TypeError(f"model {what}: give the nn.Module that is trained, or a list of all of them, model=[one, other]")
    return modules


def module_of(model: Any) -> None:
    """Refuses what is not one module."""
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"model is {_kind(model)}: give the one nn.Module that is trained; what else changes goes into also="
        )


def optimizers_of(optimizer: Any) -> list[Optimizer]:
    """The optimizers that were given, one or several. An empty list is a reason to run eagerly, and no error."""
    optimizers = [optimizer] if isinstance(optimizer, Optimizer) else _members(optimizer)
    wrong = [each for each in optimizers if not isinstance(each, Optimizer)]
    if wrong:
        raise TypeError(f"optimizer {_found(optimizer, wrong)}: give an optimizer of torch.optim, or a list of them")
    return optimizers


def _members(given: Any) -> list[Any]:
    """The members of what may be a sequence; what is none is its own member, and wrong."""
    if isinstance(given, Iterable) and not isinstance(given, str | dict | nn.Module):
        return list(given)
    return [given]


def _found(given: Any, wrong: Sequence[Any]) -> str:
    if not wrong:
        return "holds nothing"
    return f"is {_kind(given)}" if wrong[0] is given else f"holds {_kind(wrong[0])}"


def _kind(value: Any) -> str:
    return "None" if value is None else f"a `{type(value).__name__}`"
