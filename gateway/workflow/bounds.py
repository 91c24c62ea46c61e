"""How much a request may hold, looked at before each part of it is: one fault instead of many."""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel, ConfigDict, field_validator, model_validator
from pydantic_core import PydanticCustomError

#: No object of ours has so many members.
MOST_MEMBERS: Final = 64


class Bounded(BaseModel):
    """A part of a request that has the members it declares, and no others."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _few_members(cls, value: Any) -> Any:
        return _checked(value, MOST_MEMBERS)


def at_most(most: int, *members: str) -> Any:
    """For a model: these members, objects each, have so many entries at most."""

    def check(value: Any) -> Any:
        return _checked(value, most)

    return field_validator(*members, mode="before")(check)


def _checked(value: Any, most: int) -> Any:
    if isinstance(value, dict) and len(value) > most:
        raise PydanticCustomError(
            "too_long",
            "Input should have at most {most} members, not {count}",
            {"most": most, "count": len(value)},
        )
    return value
