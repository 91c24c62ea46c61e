"""Parses JSON responses into dataclasses; raises BadAnswer for unexpected content."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, Generic, TypeVar

from sluice.errors import BadAnswer
from sluice.transport.request import Response

M = TypeVar("M")
M_co = TypeVar("M_co", covariant=True)
#: Accepted types by field annotation. Other annotations accept any value.
_TYPES_BY_ANNOTATION: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "str | None": (str, type(None)),
    "int | None": (int, type(None)),
    "float | None": (int, float, type(None)),
    "Mapping[str, Any]": (dict,),
    "Mapping[str, Any] | None": (dict, type(None)),
    "Sequence[Any]": (list,),
    "Sequence[str]": (list,),
    "Sequence[str] | None": (list, type(None)),
}
#: The field of a model that holds the whole JSON object.
_RAW = "raw"
#: For each field: its name, the types it accepts, whether it has a default.
_FieldRules = list[tuple[str, tuple[type, ...] | None, bool]]
_rules_by_model: dict[type, _FieldRules] = {}


@dataclass(frozen=True)
class Page(Generic[M_co]):
    """One page of a listing. A short or empty page may still have a `next` cursor."""

    items: Sequence[M_co]
    next: str | None
    total: int | None = None


def raw_field() -> Any:
    """The field `raw` of a model, excluded from comparison and repr."""
    return field(default_factory=dict, repr=False, compare=False)


def parse_model(kind: type[M], data: Any) -> M:
    """Parse a JSON object into a dataclass; raises BadAnswer."""
    if not isinstance(data, dict):
        raise _mismatch(kind, "not an object")
    given: dict[str, Any] = {}
    for name, types, optional in _field_rules(kind):
        if name not in data:
            if not optional:
                raise _mismatch(kind, f"{name!r} is missing")
            continue
        value = data[name]
        if types is not None and not isinstance(value, types):
            raise _mismatch(kind, f"{name!r} is {type(value).__name__}")
        given[name] = value
    make: Callable[..., M] = kind
    return make(**given, raw=data)


def parse_models(kind: type[M], data: Any) -> list[M]:
    """Parse a JSON list of objects; raises BadAnswer."""
    if not isinstance(data, list):
        raise _mismatch(kind, "not a list")
    return [parse_model(kind, each) for each in data]


def _field_rules(kind: Any) -> _FieldRules:
    if kind not in _rules_by_model:
        _rules_by_model[kind] = [
            (each.name, _TYPES_BY_ANNOTATION.get(str(each.type)), _has_default(each))
            for each in fields(kind)
            if each.init and each.name != _RAW
        ]
    return _rules_by_model[kind]


def _has_default(each: Field[Any]) -> bool:
    return each.default is not MISSING or each.default_factory is not MISSING


def _mismatch(kind: type, reason: str) -> BadAnswer:
    return BadAnswer(
        f"unexpected response from the gateway ({kind.__name__}: {reason}); check the URL"
    )


def require(data: Any, name: str) -> Any:
    """A required member; raises BadAnswer if it is missing."""
    try:
        return data[name]
    except (KeyError, TypeError, IndexError):
        raise BadAnswer(
            f"unexpected response from the gateway: {name!r} is missing; check the URL"
        ) from None


def require_text(data: Any, name: str) -> str:
    """A required string; raises BadAnswer."""
    value = require(data, name)
    if not isinstance(value, str):
        raise BadAnswer(
            f"unexpected response from the gateway: {name!r} is not a string; check the URL"
        )
    return value


def optional_cursor(value: Any) -> str | None:
    """The cursor of the next page; None at the end of the listing."""
    if value is not None and not isinstance(value, str):
        raise BadAnswer("unexpected response from the gateway: invalid cursor; check the URL")
    return value


# -- readers of whole responses ----------------------------------------------------------------


def model_reader(kind: type[M], inside: str | None = None) -> Callable[[Response], M]:
    """A reader for responses that are one object, or contain it as the member `inside`."""

    def read(response: Response) -> M:
        data = response.json()
        return parse_model(kind, data if inside is None else require(data, inside))

    return read


def list_reader(kind: type[M], inside: str) -> Callable[[Response], list[M]]:
    """A reader for responses that contain a list as the member `inside`."""
    return lambda response: parse_models(kind, require(response.json(), inside))


def page_reader(
    kind: type[M], items: str = "items", cursor: str = "next", inside: tuple[str, ...] = ()
) -> Callable[[Response], Page[M]]:
    """A reader for pages. `inside` is the path to the object that holds the cursor."""

    def read(response: Response) -> Page[M]:
        data = response.json()
        found = parse_models(kind, require(data, items))
        for name in inside:
            data = require(data, name)
        total = data.get("total")
        following = optional_cursor(data.get(cursor)) or None
        return Page(found, following, total if isinstance(total, int) else None)

    return read


def read_job_id(response: Response) -> str:
    return require_text(response.json(), "job_id")


def read_object(response: Response) -> dict[str, Any]:
    data = response.json()
    if not isinstance(data, dict):
        raise BadAnswer("unexpected response from the gateway: not a JSON object; check the URL")
    return data


def read_nothing(response: Response) -> None:
    """A reader for responses whose body is ignored."""


def next_cursor(cursor: str | None, following: str | None) -> str | None:
    """The cursor of the next page; raises BadAnswer if it is the same as the last one."""
    if following is not None and following == cursor:
        raise BadAnswer("the gateway's listing does not end: two pages have the same cursor")
    return following
