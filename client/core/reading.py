"""JSON into the dataclasses of our models; what does not fit is a BadAnswer, never a surprise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any, TypeVar

from client.core.calls import Answer
from client.errors import BadAnswer

M = TypeVar("M")
#: By the words of an annotation; anything else is taken as it comes.
_CHECKS: dict[str, tuple[type, ...]] = {
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
RAW = "raw"


_Plan = list[tuple[str, tuple[type, ...] | None, bool]]
_plans: dict[type, _Plan] = {}


def _plan(kind: Any) -> _Plan:
    if kind not in _plans:
        _plans[kind] = _made_plan(kind)
    return _plans[kind]


def _made_plan(kind: Any) -> _Plan:
    return [
        (each.name, _CHECKS.get(str(each.type)), _has_default(each))
        for each in fields(kind)
        if each.init and each.name != RAW
    ]


def _has_default(each: Any) -> bool:
    return each.default is not MISSING or each.default_factory is not MISSING


def model(kind: type[M], told: Any) -> M:
    """One object of the answer."""
    if not isinstance(told, dict):
        raise _misfit(kind, "it is no object")
    given: dict[str, Any] = {}
    for name, check, optional in _plan(kind):
        if name not in told:
            if not optional:
                raise _misfit(kind, f"{name!r} is missing")
            continue
        value = told[name]
        if check is not None and not isinstance(value, check):
            raise _misfit(kind, f"{name!r} is {type(value).__name__}")
        given[name] = value
    make: Callable[..., M] = kind
    return make(**given, raw=told)


def models(kind: type[M], told: Any) -> list[M]:
    """A list of them."""
    if not isinstance(told, list):
        raise _misfit(kind, "it is no list")
    return [model(kind, each) for each in told]


def member(told: Any, name: str) -> Any:
    """A member that must be there."""
    try:
        return told[name]
    except (KeyError, TypeError, IndexError):
        raise BadAnswer(f"the gateway's answer has no {name!r}; check the URL") from None


def text_member(told: Any, name: str) -> str:
    """The same, of text."""
    value = member(told, name)
    if not isinstance(value, str):
        raise BadAnswer(f"{name!r} in the gateway's answer is no text; check the URL")
    return value


def reading(kind: type[M], inside: str | None = None) -> Callable[[Answer], M]:
    """Reads an answer that is one object, or has it as a member."""

    def read(answer: Answer) -> M:
        told = answer.json()
        return model(kind, told if inside is None else member(told, inside))

    return read


def reading_list(kind: type[M], inside: str) -> Callable[[Answer], list[M]]:
    """Reads an answer with a list as a member."""
    return lambda answer: models(kind, member(answer.json(), inside))


def raw_object(answer: Answer) -> dict[str, Any]:
    """Any object."""
    told = answer.json()
    if not isinstance(told, dict):
        raise BadAnswer("the gateway's answer is no object; check the URL")
    return told


def nothing(answer: Answer) -> None:
    """For answers without a body."""


def _misfit(kind: type, why: str) -> BadAnswer:
    return BadAnswer(f"the gateway's answer is no {kind.__name__}: {why}; check the URL")
