"""Tools that no client may ask for: our own, by which steps of workflows and the like run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from common.contracts.jobs import JobField, Task
from common.contracts.tools import RESERVED_TOOLS
from common.json_pointer import pointer
from gateway.problems import FieldProblem, Problem

#: Where payloads name tools: the one of a `tool` job, those that a model may call.
_ONE: Final = Task.TOOL.value
_MANY: Final = "tools"


def check_tools(payload: Mapping[str, Any]) -> None:
    """Raise where a payload names one of them; nobody else is to speak for a workflow's step."""
    faults = [
        FieldProblem(
            pointer=pointer((JobField.PAYLOAD.value, *place)),
            detail=f"Tools whose names begin with {', '.join(RESERVED_TOOLS)} are Sluice's own",
        )
        for place in _reserved(payload)
    ]
    if faults:
        first = f"{faults[0].pointer}: {faults[0].detail}"
        raise Problem(
            422, "invalid_request", f"The request does not fit the schema. {first}.", faults
        )


def _reserved(payload: Mapping[str, Any]) -> Iterator[tuple[str | int, ...]]:
    if _is_reserved(payload.get(_ONE)):
        yield (_ONE,)
    names = payload.get(_MANY)
    if isinstance(names, list):
        yield from ((_MANY, at) for at, name in enumerate(names) if _is_reserved(name))


def _is_reserved(name: object) -> bool:
    return isinstance(name, str) and name.startswith(RESERVED_TOOLS)
