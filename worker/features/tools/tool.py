"""What a tool is, what it is told about a call, and how it is made from a function."""

from __future__ import annotations

import inspect
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from common.codec import json_pointer
from common.json_schema import InvalidSchema, Schema
from worker import registry
from worker.features.tools.errors import InvalidArguments

if TYPE_CHECKING:
    from pydantic import BaseModel


def wire_name(name: str) -> str:
    """A tool's name among the functions of a model, where dots are not allowed."""
    return name.replace(".", "__")


#: `tool(call, arguments)`, async or plain; a plain one runs in a thread of its own.
ToolFunction = Callable[..., Any]

#: Names as clients write them. A dot stands between a server and its tool.
NAME = re.compile(r"\A[A-Za-z][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*\Z")
#: OpenAI's limit for the name of a function.
LONGEST_NAME = 64
LONGEST_DESCRIPTION = 2000


@dataclass(frozen=True)
class Call:
    """One call of a tool, as the tool sees it."""

    job_id: str
    #: The same whenever this call is made again after a crash, and no other's: a tool that hands
    #: it on, or remembers it, can make sure that its effect happens once.
    key: str
    #: Whose job it is; empty for nobody's.
    tenant: str = ""
    #: `time.monotonic()` value at which nobody waits for the tool any more.
    deadline: float = float("inf")
    _stopped: threading.Event = field(default_factory=threading.Event, repr=False)

    @property
    def remaining_s(self) -> float:
        """Seconds until nobody waits for the tool any more."""
        return self.deadline - time.monotonic()

    @property
    def stopped(self) -> bool:
        """Whether nobody waits any more. A plain function that loops should look."""
        return self._stopped.is_set()

    def stop(self) -> None:
        self._stopped.set()


@dataclass(frozen=True)
class Tool:
    """A function that jobs and models may call, and on what terms."""

    name: str
    description: str
    #: JSON Schema of its arguments, an object.
    parameters: dict[str, Any]
    function: ToolFunction
    is_async: bool
    schema: Schema = field(repr=False)
    #: The pydantic model that its arguments become, if it names one.
    model: type[BaseModel] | None = None
    #: None: as TOOL_TIMEOUT_S and TOOL_OUTPUT_BYTES say.
    timeout_s: float | None = None
    output_bytes: int | None = None
    #: It may be called twice: it changes nothing, or the second time nothing more.
    repeatable: bool = False
    #: It may be called twice with the same `ToolCall.key`, and sees to it that the effect happens
    #: once.
    takes_key: bool = False

    @property
    def wire_name(self) -> str:
        """Its name among the functions of a model."""
        return wire_name(self.name)

    @property
    def safe_to_repeat(self) -> bool:
        """Whether a call that may have been made can be made again."""
        return self.repeatable or self.takes_key

    def parse(self, arguments: Any) -> Any:
        """The arguments as the function wants them; InvalidArguments says what is wrong."""
        if faults := self.schema.describe_violations(arguments):
            raise InvalidArguments(f"{self.name}: {'; '.join(faults)}")
        if self.model is None:
            return arguments
        from pydantic import ValidationError  # there is a model, so it is there

        try:
            return self.model.model_validate(arguments)
        except ValidationError as error:
            faults = [
                f'at "{json_pointer(fault["loc"])}": {fault["msg"].removeprefix("Value error, ")}'
                for fault in error.errors()
            ]
            raise InvalidArguments(f"{self.name}: {'; '.join(faults)}") from None


def make_tool(
    function: ToolFunction,
    *,
    name: str | None = None,
    description: str | None = None,
    parameters: dict[str, Any] | None = None,
    timeout_s: float | None = None,
    output_bytes: int | None = None,
    repeatable: bool = False,
    takes_key: bool = False,
) -> Tool:
    """A tool of a function `(call, arguments)`; ValueError says what it lacks.

    Its name and description are the function's own, unless given. `parameters` is the schema of
    its arguments; without, they are a pydantic model, named in the function's annotations.
    """
    if name is None:
        name = str(getattr(function, "__name__", ""))
    if not NAME.match(name) or len(wire_name(name)) > LONGEST_NAME:
        raise ValueError(
            f"{name!r} is no name for a tool; write letters, digits, - and _, {LONGEST_NAME} at "
            "most"
        )
    try:
        second = registry.second_parameter(function, "(call, arguments)")
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    model = None if parameters is not None else registry.parameter_model(function, second)
    if parameters is None:
        if model is None:
            raise ValueError(
                f"{name}: say what it takes: parameters=JSON Schema, or annotate {second!r} with "
                "a pydantic model"
            )
        parameters = model.model_json_schema()
    if parameters.get("type") != "object":
        raise ValueError(f'{name}: the schema of its arguments must be of "type": "object"')
    try:
        schema = Schema(parameters, trusted=model is not None)
    except InvalidSchema as error:
        raise ValueError(f"{name}: {error}") from None
    if timeout_s is not None and not timeout_s > 0:
        raise ValueError(f"{name}: timeout_s must be more than 0, not {timeout_s}")
    if description is None:
        description = inspect.cleandoc(getattr(function, "__doc__", "") or "")
    if not description:
        raise ValueError(f"{name}: say what it does, in a description or a docstring")
    return Tool(
        name=name,
        description=description[:LONGEST_DESCRIPTION],
        parameters=parameters,
        function=function,
        is_async=registry.is_async(function),
        schema=schema,
        model=model,
        timeout_s=timeout_s,
        output_bytes=output_bytes,
        repeatable=repeatable,
        takes_key=takes_key,
    )
