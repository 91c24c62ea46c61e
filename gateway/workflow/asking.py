"""From a request to what was asked for: checked, named, with the place of each fault."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from common.workflow.definition import StepDefinition
from gateway import problems

_Model = TypeVar("_Model", bound=BaseModel)
#: No item has a longer number.
_MOST_DIGITS: Final = 10


def validated(model: type[_Model], body: Any, within: str = "") -> _Model:
    """A request; raises a 422 that names the member. `within`: of which member it is."""
    try:
        return model.model_validate(body)
    except ValidationError as error:
        raise problems.misfit(error, within) from None


def without(body: Any, *members: str) -> Any:
    """A body without what does not make it another request."""
    if not isinstance(body, Mapping):
        return body
    return {name: value for name, value in body.items() if name not in members}


def item_id_of(step: StepDefinition, name: str | int) -> str:
    """`p_001`, also where just its number was given."""
    if isinstance(name, str) and not _is_number(name):
        return name
    return f"{step.prefix}_{int(name):03d}"


def _is_number(name: str) -> bool:
    return len(name) <= _MOST_DIGITS and name.isascii() and name.isdecimal()
