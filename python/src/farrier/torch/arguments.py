"""What is given to `step` and `guard`, looked at before anything runs: an error later names no argument."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer


def require_function(fn: Any, name: str, meaning: str) -> None:
    """Refuses what cannot be called, by the name of the argument."""
    if not callable(fn):
        raise TypeError(f"{name} is {type_name(fn)}: give a function, {meaning}")


def require_guard_functions(count: Any, split: Any, rows: Any, request_checkpoint: Any) -> None:
    """Refuses what is given to a guard, is not None and cannot be called."""
    for fn, name, meaning in (
        (count, "count", "count(batch) -> over how many terms its mean goes"),
        (split, "split", "split(batch, sizes) -> the pieces"),
        (rows, "rows", "rows(batch) -> how many it has"),
        (request_checkpoint, "ask_checkpoint", "ask_checkpoint(reason)"),
    ):
        if fn is not None:
            require_function(fn, name, meaning)


def require_int(value: Any, name: str, least: int, meaning: str) -> int:
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


def require_instance(value: Any, cls: type, name: str) -> None:
    """Refuses what is neither None nor of that class."""
    if value is not None and not isinstance(value, cls):
        raise TypeError(f"{name} is {type_name(value)}: give a farrier.torch.{cls.__name__}")


def require_trains(optimizers: Sequence[Optimizer], model: nn.Module) -> None:
    """Refuses optimizers that step nothing of the model: it would not be trained, and no comparison would show it."""
    model_ids = {id(parameter) for parameter in model.parameters()}
    optimizer_ids = [id(tensor) for each in optimizers for group in each.param_groups for tensor in group["params"]]
    if model_ids and optimizers and model_ids.isdisjoint(optimizer_ids):
        raise ValueError(
            "optimizer has no parameter of model: give the optimizer that was made of model.parameters(), after the model "
            "was put on its device"
        )


def require_modules(model: Any) -> list[nn.Module]:
    """The modules that were given, one or several."""
    modules = [model] if isinstance(model, nn.Module) else _members(model)
    invalid = [each for each in modules if not isinstance(each, nn.Module)]
    if invalid or not modules:
        what = _describe_invalid(model, invalid)
        raise TypeError(f"model {what}: give the nn.Module that is trained, or a list of all of them, model=[one, other]")
    return modules


def require_module(model: Any) -> None:
    """Refuses what is not one module."""
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"model is {type_name(model)}: give the one nn.Module that is trained; what else changes goes into extra_state="
        )


def require_optimizers(optimizer: Any) -> list[Optimizer]:
    """The optimizers that were given, one or several. An empty list is a reason to run eagerly, and no error."""
    optimizers = [optimizer] if isinstance(optimizer, Optimizer) else _members(optimizer)
    invalid = [each for each in optimizers if not isinstance(each, Optimizer)]
    if invalid:
        raise TypeError(
            f"optimizer {_describe_invalid(optimizer, invalid)}: give an optimizer of torch.optim, or a list of them"
        )
    return optimizers


def _members(value: Any) -> list[Any]:
    """The members of what may be a sequence; what is none is its own member, and wrong."""
    if isinstance(value, Iterable) and not isinstance(value, str | dict | nn.Module):
        return list(value)
    return [value]


def _describe_invalid(value: Any, invalid: Sequence[Any]) -> str:
    if not invalid:
        return "holds nothing"
    return f"is {type_name(value)}" if invalid[0] is value else f"holds {type_name(invalid[0])}"


def type_name(value: Any) -> str:
    """What something is, for a sentence."""
    return "None" if value is None else f"a `{type(value).__name__}`"
