"""What can be told of a function that a user has registered."""

from __future__ import annotations

import functools
import inspect
import sys
import typing
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import BaseModel

Function = Callable[..., Any]


def is_async(function: Function) -> bool:
    """Whether calling it makes a coroutine; also behind a partial or a callable object."""
    return inspect.iscoroutinefunction(_definition(function))


def second_parameter(function: Function, named: str) -> str:
    """The name of the second of its two parameters; ValueError where there are not two."""
    try:
        _, second = inspect.signature(function).parameters
    except (TypeError, ValueError):
        raise ValueError(f"{function!r} must take {named}") from None
    return second


def model_of(function: Function, parameter: str) -> type[BaseModel] | None:
    """The pydantic model that annotates a parameter, if any."""
    try:
        annotation = typing.get_type_hints(_definition(function)).get(parameter)
    except (NameError, TypeError):  # names only imported for type checking
        return None
    return annotation if _is_model(annotation) else None


def _is_model(annotation: object) -> bool:
    # Whoever has written one has imported pydantic; a worker without any is spared it.
    # (Somebody else may be importing it just now: then this is none of its models.)
    model = getattr(sys.modules.get("pydantic.main"), "BaseModel", None)
    return model is not None and inspect.isclass(annotation) and issubclass(annotation, model)


def _definition(function: Function) -> Function:
    """The function behind a partial or a callable object."""
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.isfunction(function) or inspect.ismethod(function):
        return function
    definition: Function = type(function).__call__
    return definition
