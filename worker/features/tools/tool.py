"""Tools: their definition, the context of a call, and their construction from a function."""

from __future__ import annotations

import inspect
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sluice.common.codec import json_pointer
from sluice.common.json_schema import InvalidSchema, Schema
from sluice.worker import registry
from sluice.worker.features.tools.errors import InvalidArguments

if TYPE_CHECKING:
    from pydantic import BaseModel


def wire_name(name: str) -> str:
    """Name of a tool in model requests, where dots are not allowed."""
    return name.replace(".", "__")


#: `tool(call, arguments)`, async or plain; a plain function runs in its own thread.
ToolFunction = Callable[..., Any]

#: Names as clients write them. A dot separates a server and its tool.
NAME = re.compile(r"\A[A-Za-z][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*\Z")
#: OpenAI's limit for function names.
LONGEST_NAME = 64
LONGEST_DESCRIPTION = 2000


@dataclass(frozen=True)
class Call:
    """One call, as passed to the tool."""

    job_id: str
    #: Idempotency key: unique to this call, and the same when it is repeated after a crash. A tool
    #: that forwards or stores it can ensure that its effect happens once.
    key: str
    #: Tenant of the job; empty if it has none.
    tenant: str = ""
    #: `time.monotonic()` value of the call's timeout.
    deadline: float = float("inf")
    _stopped: threading.Event = field(default_factory=threading.Event, repr=False)

    @property
    def remaining_s(self) -> float:
        """Seconds until the timeout."""
        return self.deadline - time.monotonic()

    @property
    def stopped(self) -> bool:
        """True after a timeout or cancellation. A plain function that loops should check it."""
        return self._stopped.is_set()

    def stop(self) -> None:
        self._stopped.set()


@dataclass(frozen=True)
class Tool:
    """A function that jobs and models may call, and its options."""

    name: str
    description: str
    #: JSON Schema of its arguments, of type object.
    parameters: dict[str, Any]
    function: ToolFunction
    is_async: bool
    schema: Schema = field(repr=False)
    #: Pydantic model of its arguments, if annotated.
    model: type[BaseModel] | None = None
    #: None for TOOL_TIMEOUT_S and TOOL_OUTPUT_BYTES.
    timeout_s: float | None = None
    output_bytes: int | None = None
    #: Safe to call twice: read-only or idempotent.
    repeatable: bool = False
    #: Safe to call twice with the same `Call.key`: the tool applies the effect once.
    takes_key: bool = False

    @property
    def wire_name(self) -> str:
        """Its name in model requests."""
        return wire_name(self.name)

    @property
    def safe_to_repeat(self) -> bool:
        """True if a call that may have run can be repeated."""
        return self.repeatable or self.takes_key

    def parse(self, arguments: Any) -> Any:
        """Validate the arguments and convert them for the function. Raises InvalidArguments."""
        if faults := self.schema.describe_violations(arguments):
            raise InvalidArguments(f"{self.name}: {'; '.join(faults)}")
        if self.model is None:
            return arguments
        from pydantic import ValidationError  # installed, because the tool has a model

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
    """Build a tool from a function `(call, arguments)`. Raises ValueError if it is incomplete.

    Name and description default to the function's. `parameters` is the JSON Schema of the
    arguments; without it they are the pydantic model in the function's annotations.
    """
    if name is None:
        name = str(getattr(function, "__name__", ""))
    if not NAME.match(name) or len(wire_name(name)) > LONGEST_NAME:
        raise ValueError(
            f"{name!r} is not a valid tool name; use letters, digits, - and _, {LONGEST_NAME} at "
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
                f"{name}: declare its arguments: parameters=JSON Schema, or annotate {second!r} "
                "with a pydantic model"
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
        raise ValueError(f"{name}: add a description or a docstring")
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
