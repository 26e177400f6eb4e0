"""What is given to `step` and `guard`, looked at before anything runs: an error later names no argument."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer


def function_of(fn: Any, name: str, meaning: str) -> None:
    """Refuses what cannot be called, by the name of the argument."""
    if not callable(fn):
        raise TypeError(f"{name} is {kind(fn)}: give a function, {meaning}")


def functions_of_guard(count: Any, split: Any, rows: Any, ask_checkpoint: Any) -> None:
    """Refuses what is given to a guard, is not None and cannot be called."""
    for fn, name, meaning in (
        (count, "count", "count(batch) -> over how many terms its mean goes"),
        (split, "split", "split(batch, sizes) -> the pieces"),
        (rows, "rows", "rows(batch) -> how many it has"),
        (ask_checkpoint, "ask_checkpoint", "ask_checkpoint(reason)"),
    ):
        if fn is not None:
            function_of(fn, name, meaning)


def number_of(value: Any, name: str, least: int, meaning: str) -> int:
    """A whole number of at least so much; a bool is none."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}: give a whole number, {meaning}")
    if number < least:
        raise ValueError(f"{name} is {number}: give {least} or more, {meaning}")
    return number


def instance_of(value: Any, of: type, name: str) -> None:
    """Refuses what is neither None nor of that class."""
    if value is not None and not isinstance(value, of):
        raise TypeError(f"{name} is {kind(value)}: give a farrier.torch.{of.__name__}")


def trained_by(optimizers: Sequence[Optimizer], model: nn.Module) -> None:
    """Refuses optimizers that step nothing of the model: it would not be trained, and no comparison would show it."""
    mine = {id(parameter) for parameter in model.parameters()}
    theirs = [id(tensor) for each in optimizers for group in each.param_groups for tensor in group["params"]]
    if mine and optimizers and mine.isdisjoint(theirs):
        raise ValueError(
            "optimizer has no parameter of model: give the optimizer that was made of model.parameters(), after the model "
            "was put on its device"
        )


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
            f"model is {kind(model)}: give the one nn.Module that is trained; what else changes goes into also="
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
    return f"is {kind(given)}" if wrong[0] is given else f"holds {kind(wrong[0])}"


def kind(value: Any) -> str:
    """What something is, for a sentence."""
    return "None" if value is None else f"a `{type(value).__name__}`"
