"""Validates arguments of `step` and `guard`, because later errors would not name the argument."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer


def require_function(fn: Any, name: str, meaning: str) -> None:
    """Raises an error that names the argument, unless `fn` is callable."""
    if not callable(fn):
        raise TypeError(f"{name} is {type_name(fn)}: pass a function, {meaning}")


def require_guard_functions(count: Any, split: Any, rows: Any, request_checkpoint: Any) -> None:
    """Raises unless each of the guard's optional functions is None or callable."""
    for fn, name, meaning in (
        (count, "count", "count(batch) -> the number of terms in its mean"),
        (split, "split", "split(batch, sizes) -> the micro-batches"),
        (rows, "rows", "rows(batch) -> the number of rows"),
        (request_checkpoint, "request_checkpoint", "request_checkpoint(reason)"),
    ):
        if fn is not None:
            require_function(fn, name, meaning)


def require_int(value: Any, name: str, minimum: int, meaning: str) -> int:
    """Returns the value as an integer. Rejects bool, and integers below `minimum`."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}: pass an integer, {meaning}")
    if number < minimum:
        raise ValueError(f"{name} is {number}: pass {minimum} or more, {meaning}")
    return number


def require_instance(value: Any, cls: type, name: str) -> None:
    """Raises unless the value is None or of that class."""
    if value is not None and not isinstance(value, cls):
        raise TypeError(f"{name} is {type_name(value)}: pass a farrier.torch.{cls.__name__}")


def require_trains(optimizers: Sequence[Optimizer], model: nn.Module) -> None:
    """Raises if no optimizer steps a parameter of the model.

    A comparison of graph and eager step would not detect that.
    """
    model_ids = {id(parameter) for parameter in model.parameters()}
    optimizer_ids = [id(tensor) for each in optimizers for group in each.param_groups for tensor in group["params"]]
    if model_ids and optimizers and model_ids.isdisjoint(optimizer_ids):
        raise ValueError(
            "optimizer has no parameter of model: pass the optimizer created from model.parameters() after the model was "
            "moved to its device"
        )


def require_modules(model: Any) -> list[nn.Module]:
    """Returns the given module, or the given modules, as a list."""
    modules = [model] if isinstance(model, nn.Module) else _members(model)
    invalid = [each for each in modules if not isinstance(each, nn.Module)]
    if invalid or not modules:
        problem = _describe_invalid(model, invalid)
        raise TypeError(f"model {problem}: pass the trained nn.Module, or a list of all of them, model=[one, other]")
    return modules


def require_module(model: Any) -> None:
    """Raises unless `model` is a single module."""
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"model is {type_name(model)}: pass the one trained nn.Module; other state that changes goes into extra_state="
        )


def require_optimizers(optimizer: Any) -> list[Optimizer]:
    """Returns the given optimizer, or the given optimizers, as a list.

    An empty list is valid: the step then runs eagerly.
    """
    optimizers = [optimizer] if isinstance(optimizer, Optimizer) else _members(optimizer)
    invalid = [each for each in optimizers if not isinstance(each, Optimizer)]
    if invalid:
        raise TypeError(
            f"optimizer {_describe_invalid(optimizer, invalid)}: pass an optimizer of torch.optim, or a list of them"
        )
    return optimizers


def _members(value: Any) -> list[Any]:
    """Returns the members of a sequence.

    Any other value becomes the only member, so that the caller reports it as invalid.
    """
    if isinstance(value, Iterable) and not isinstance(value, str | dict | nn.Module):
        return list(value)
    return [value]


def _describe_invalid(value: Any, invalid: Sequence[Any]) -> str:
    if not invalid:
        return "is empty"
    return f"is {type_name(value)}" if invalid[0] is value else f"contains {type_name(invalid[0])}"


def type_name(value: Any) -> str:
    """Names the type of a value, for an error message."""
    return "None" if value is None else f"a `{type(value).__name__}`"
