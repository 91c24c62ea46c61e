"""Whether options fit what a step declares, before they are kept for it.

A worker's schema runs here, on the gateway's event loop, on what clients send: its patterns must
take linear time, so no repetition in a repetition, as in `(a+)+`. What else may take long is tried
on few parts only.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, NamedTuple

from common import codec
from common.contracts.workflow import WorkflowError
from common.json_schema import MOST_CHARS, BadSchema, Fault, Schema
from common.workflow import memory_first
from common.workflow.definition import StepDefinition
from gateway.workflow.envelope import WorkflowProblem
from gateway.workflow.error_view import ErrorItem, field_of

#: Members and elements in one step's options: a schema is tried on each of them, on the event loop.
MOST_PARTS: Final = 20_000
#: The same where the schema has keywords that look at parts several times, or at pairs of them.
MOST_COSTLY_PARTS: Final = 500
COSTLY: Final = frozenset(
    (
        *("pattern", "patternProperties", "propertyNames", "uniqueItems", "contains"),
        *("$ref", "$dynamicRef", "$recursiveRef", "anyOf", "oneOf", "allOf", "not", "if"),
        *("dependentSchemas", "dependencies", "unevaluatedItems", "unevaluatedProperties"),
    )
)
#: Of a step's schema.
MOST_SCHEMA_BYTES: Final = 64 * 1024
#: Of a message that shows a long value, what is wrong with it is at its end.
_TAIL: Final = 200


def checked_options(step: StepDefinition, options: Any, member: str) -> bytes:
    """Options as they are kept, JSON; a 422 says which member does not fit, and why.

    `member`: where the request has them; empty for the request itself.
    """
    if not isinstance(options, dict):
        raise _refused(member, [Fault("", "Input should be an object")])
    declared = None
    if step.options_schema is not None:
        declared = _declared(codec.dumps(step.options_schema))
    most = MOST_PARTS if declared is None else declared.most_parts
    if _too_many(options, most):
        raise _refused(member, [Fault("", f"more than {most} members and elements")])
    if declared is not None:
        if declared.schema is None:
            fault = Fault("", f"the step's own declaration is of no use: {declared.trouble}")
            raise _refused(member, [fault])
        if faults := declared.schema.look(options, closely=True):
            raise _refused(member, faults)
    return codec.dumps(options)


class _Declared(NamedTuple):
    """What became of a step's schema; None, and why, of one that is of no use."""

    schema: Schema | None
    most_parts: int = MOST_PARTS
    trouble: str = ""


@lru_cache(maxsize=256)
def _declared(raw: bytes) -> _Declared:
    if len(raw) > MOST_SCHEMA_BYTES:
        told = f"the schema has {len(raw)} bytes, {MOST_SCHEMA_BYTES} at most"
        return _Declared(None, trouble=told)
    value = codec.loads(raw)
    try:
        schema = Schema(value)
    except BadSchema as error:
        return _Declared(None, trouble=str(error))
    # Of the shipped ones it is known that they take no longer than their size.
    costly = raw not in _SHIPPED and _is_costly(value)
    return _Declared(schema, MOST_COSTLY_PARTS if costly else MOST_PARTS)


def _is_costly(schema: Any) -> bool:
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            if not COSTLY.isdisjoint(part):
                return True
            waiting.extend(part.values())
        elif isinstance(part, list):
            waiting.extend(part)
    return False


_SHIPPED: Final = {codec.dumps(step.options_schema) for step in memory_first.DEFINITION.steps}


def _too_many(options: dict[str, Any], most: int) -> bool:
    """Counted without recursion, and no further than needed."""
    level: list[Any] = [options]
    count = 0
    while level and count <= most:
        inner: list[Any] = []
        for part in level:
            children = part.values() if isinstance(part, dict) else part
            count += len(children)
            if count > most:
                return True
            inner += [child for child in children if isinstance(child, (dict, list))]
        level = inner
    return False


def _refused(member: str, faults: list[Fault]) -> WorkflowProblem:
    items = [
        ErrorItem(
            code=WorkflowError.INVALID.value,
            message=_short(fault.message),
            field=_place(member, fault.pointer),
        )
        for fault in faults
    ]
    first, *more = items
    message = f"{first.field}: {first.message}"
    return WorkflowProblem(422, WorkflowError.INVALID, message, first.field, more=more)


def _place(member: str, pointer: str) -> str:
    inside = field_of(pointer[:MOST_CHARS])
    if inside is None or not member:
        return inside or member
    return f"{member}{inside}" if inside.startswith("[") else f"{member}.{inside}"


def _short(message: str) -> str:
    return message if len(message) <= MOST_CHARS else f"…{message[-_TAIL:]}"
