"""Parses JSON responses into dataclasses; whatever does not fit raises BadAnswer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, Generic, TypeVar

from sluice.errors import BadAnswer
from sluice.transport.request import Response

M = TypeVar("M")
M_co = TypeVar("M_co", covariant=True)
#: The types that a field accepts, by its annotation; all other annotations accept anything.
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
#: The field of a model that has the whole object.
_RAW = "raw"
#: For each field: its name, the types it accepts, whether it has a default.
_FieldRules = list[tuple[str, tuple[type, ...] | None, bool]]
_rules_by_model: dict[type, _FieldRules] = {}


@dataclass(frozen=True)
class Page(Generic[M_co]):
    """One page of a listing; a page that is short or empty may still have a `next`."""

    items: Sequence[M_co]
    next: str | None
    total: int | None = None


def raw_field() -> Any:
    """The field `raw` of a model: neither compared nor shown."""
    return field(default_factory=dict, repr=False, compare=False)


def parse_model(kind: type[M], data: Any) -> M:
    """An object of the response as a dataclass."""
    if not isinstance(data, dict):
        raise _mismatch(kind, "it is no object")
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
    """A list of objects as dataclasses."""
    if not isinstance(data, list):
        raise _mismatch(kind, "it is no list")
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
    return BadAnswer(f"the gateway's answer is no {kind.__name__}: {reason}; check the URL")


def require(data: Any, name: str) -> Any:
    """A member that must be present."""
    try:
        return data[name]
    except (KeyError, TypeError, IndexError):
        raise BadAnswer(f"the gateway's answer has no {name!r}; check the URL") from None


def require_text(data: Any, name: str) -> str:
    """A string that must be present."""
    value = require(data, name)
    if not isinstance(value, str):
        raise BadAnswer(f"{name!r} in the gateway's answer is no text; check the URL")
    return value


def optional_cursor(value: Any) -> str | None:
    """A page's cursor, None at the end of the listing."""
    if value is not None and not isinstance(value, str):
        raise BadAnswer("the gateway's answer has no usable cursor; check the URL")
    return value


# -- readers of whole responses ----------------------------------------------------------------


def model_reader(kind: type[M], inside: str | None = None) -> Callable[[Response], M]:
    """Reads a response that is one object, or has it as the member `inside`."""

    def read(response: Response) -> M:
        data = response.json()
        return parse_model(kind, data if inside is None else require(data, inside))

    return read


def list_reader(kind: type[M], inside: str) -> Callable[[Response], list[M]]:
    """Reads a response with a list as the member `inside`."""
    return lambda response: parse_models(kind, require(response.json(), inside))


def page_reader(
    kind: type[M], items: str = "items", cursor: str = "next", inside: tuple[str, ...] = ()
) -> Callable[[Response], Page[M]]:
    """Reads a page; `inside` is the path to the object that has the cursor."""

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
    """Reads the id of the job that was made."""
    return require_text(response.json(), "job_id")


def read_object(response: Response) -> dict[str, Any]:
    """Reads any JSON object."""
    data = response.json()
    if not isinstance(data, dict):
        raise BadAnswer("the gateway's answer is no object; check the URL")
    return data


def read_nothing(response: Response) -> None:
    """For responses whose body does not matter."""


def next_cursor(cursor: str | None, following: str | None) -> str | None:
    """The cursor of the next page; raises if it is the page that was just read."""
    if following is not None and following == cursor:
        raise BadAnswer("the gateway's listing does not come to an end")
    return following
