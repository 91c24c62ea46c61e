"""The `json_pick` tool: extracts a value from a JSON document."""

from __future__ import annotations

import re
from typing import Any

from pydantic import Field, model_validator

from sluice.common import codec
from sluice.worker.features.tools.builtin.arguments import Arguments, ToolInputError
from sluice.worker.features.tools.tool import Call

MOST_CHARS = 200_000
#: An array index: no sign, no leading zero.
_INDEX = re.compile(r"\A(0|[1-9][0-9]{0,8})\Z")
_ESCAPE = re.compile(r"~(?![01])")
#: Existing names listed in the error for a missing one.
_MOST_NAMED = 20


class JsonPickArguments(Arguments):
    """Arguments of `json_pick`: a document, as value or text, and a pointer into it."""

    document: Any = Field(None, description="The JSON value.")
    text: str | None = Field(
        None, max_length=MOST_CHARS, description="Instead of `document`: JSON text."
    )
    pointer: str = Field(
        max_length=1000,
        description="RFC 6901 pointer, such as /items/0/name; empty for the whole document.",
    )

    @model_validator(mode="after")
    def _one_of_two(self) -> JsonPickArguments:
        if ("document" in self.model_fields_set) == (self.text is not None):
            raise ValueError("give either document or text")
        return self


def json_pick(call: Call, arguments: JsonPickArguments) -> Any:
    """Returns the value at a JSON pointer (RFC 6901) in a JSON document."""
    document = arguments.document
    if arguments.text is not None:
        try:
            document = codec.loads(arguments.text.encode(errors="replace"))
        except (ValueError, RecursionError) as error:
            raise ToolInputError(f"the text is not valid JSON: {error}") from None
    return pick(document, arguments.pointer)


def pick(document: Any, pointer: str) -> Any:
    """The value at a pointer. Raises ToolInputError that names the missing part."""
    if pointer and not pointer.startswith("/"):
        raise ToolInputError("a pointer is empty or begins with /")
    if _ESCAPE.search(pointer):
        raise ToolInputError("in a pointer ~ is written ~0")
    value, path = document, ""
    for part in pointer.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        value = _step(value, name, path)
        path = f"{path}/{part}"
    return value


def _step(value: Any, name: str, path: str) -> Any:
    if isinstance(value, dict):
        if name in value:
            return value[name]
        there = ", ".join(repr(key)[:50] for key in list(value)[:_MOST_NAMED])
        raise ToolInputError(
            f'at "{path}" there is no {name[:100]!r}; there are: {there or "none"}'
        )
    if isinstance(value, list):
        if _INDEX.match(name) and int(name) < len(value):
            return value[int(name)]
        raise ToolInputError(
            f'at "{path}" is an array of {len(value)}; {name[:100]!r} is not an index of it'
        )
    raise ToolInputError(f'at "{path}" is neither an object nor an array')
