"""The member `text`: a name of the prompt that every task accepts next to its own."""

from __future__ import annotations

from typing import Any

from pydantic import AliasChoices, Field, model_validator
from pydantic_core import PydanticCustomError

TEXT = "text"


def prompt_field(name: str, **limits: Any) -> Any:
    """The field of a prompt, which payloads call `name` or `text`."""
    return Field(validation_alias=AliasChoices(name, TEXT), **limits)


def one_prompt(name: str) -> Any:
    """A validator that accepts both names of the prompt together if their values are equal."""

    def check(value: Any) -> Any:
        if not isinstance(value, dict) or TEXT not in value:
            return value
        text, own = value[TEXT], value.get(name)
        if text is not None and own is not None and own not in (text, [text]):
            raise PydanticCustomError(
                "two_prompts", f"{name} and text are two names of the prompt; give one of them"
            )
        dropped = TEXT if text is None or own is not None else name
        return {member: each for member, each in value.items() if member != dropped}

    return model_validator(mode="before")(check)
