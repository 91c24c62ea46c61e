"""Validates request bodies of the OpenAI API; errors name the invalid member."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from sluice.gateway.features.openai.chat.request import ABOUT, UNSUPPORTED
from sluice.gateway.http.problems import FieldProblem, Problem, field_problems
from sluice.gateway.http.routing import JsonBody

Body = TypeVar("Body", bound=BaseModel)


class OpenAIBody(JsonBody[Body]):
    """A body of the OpenAI API. `refused`: members that are known, but not supported."""

    def __init__(
        self, model: type[Body], example: Mapping[str, Any], refused: Collection[str] = ()
    ) -> None:
        super().__init__(model, example)
        self._refused = refused

    def validate(self, request: Request, value: Any) -> Body:
        return parse_body(self._model, value, self._refused)


_MISSING, _UNKNOWN = "missing", "extra_forbidden"


def parse_body(model: type[Body], body: Any, refused: Collection[str] = ()) -> Body:
    """The validated body. `refused`: members that are known, but not supported."""
    try:
        return model.model_validate(body)
    except ValidationError as error:
        faults: list[Any] = error.errors(include_url=False)
    for fault in faults:
        if fault["loc"] and fault["loc"][0] in refused:
            raise _unsupported(model, fault["loc"][0])
    raise _invalid(_deepest(faults, body), body)


def _deepest(faults: list[Any], body: Any) -> Any:
    """The first error, or a deeper one inside it: for a union, that of the closest alternative."""
    located = [(_member_path(fault, body), fault) for fault in faults]
    first, _ = located[0]
    inside = [(location, fault) for location, fault in located if location[: len(first)] == first]
    return max(inside, key=lambda pair: (len(pair[0]), not _of_type(pair[1])))[1]


def _of_type(fault: Any) -> bool:
    return str(fault["type"]).endswith("_type")


def _unsupported(model: type[BaseModel], member: str) -> Problem:
    words = model.model_fields[member].description or ""
    return Problem(
        400,
        "unsupported_parameter",
        f"`{member}` is not supported. {words} Leave it out.",
        [FieldProblem(pointer=f"/{member}", detail=words)],
    )


def _invalid(fault: Mapping[str, Any], body: Any) -> Problem:
    kind = fault["type"]
    [named] = field_problems([{**fault, "loc": _member_path(fault, body)}])
    detail = f"{named.pointer or 'The body'}: {named.detail}."
    if kind == _MISSING:
        return Problem(400, "missing_required_parameter", detail, [named])
    if kind == _UNKNOWN:
        detail = f"{named.pointer} is not a known member. Leave it out."
        return Problem(400, "unknown_parameter", detail, [named])
    if kind == UNSUPPORTED:
        return Problem(400, "unsupported_value", detail, [named])
    if _of_type(fault):
        return Problem(400, "invalid_type", detail, [named])
    return Problem(400, "invalid_value", detail, [named])


def _member_path(fault: Mapping[str, Any], body: Any) -> tuple[Any, ...]:
    """The location of an error in the body, without the names of union alternatives."""
    if ABOUT in fault.get("ctx", {}):
        return (fault["ctx"][ABOUT],)
    found: list[Any] = []
    location = fault["loc"]
    for left, part in zip(reversed(range(len(location))), location):
        if _has(body, part):
            body = body[part]
        elif left or fault["type"] != _MISSING:
            continue
        found.append(part)
    return tuple(found)


def _has(value: Any, part: Any) -> bool:
    if isinstance(value, list):
        return isinstance(part, int) and part < len(value)
    return isinstance(value, dict) and part in value
