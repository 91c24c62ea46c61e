"""The form of values between a worker and its pool processes: JSON, which runs no code when read.

JSON has no tuples, bytes, sets and objects. They are written as an object with one member, which
names the kind. Dataclasses, named tuples and enums are written with the name of their class; the
reader decides which classes it accepts. A worker accepts only those that the function's return
annotation mentions, because the process may be under the control of the file that it reads.
"""

from __future__ import annotations

import base64
import collections.abc
import dataclasses
import importlib
import json
import types
import typing
from collections.abc import Callable
from enum import Enum
from typing import Any, Final, Literal, Union

_SEQUENCES: Final[dict[str, type]] = {"tuple": tuple, "set": set, "frozenset": frozenset}
_NAMES: Final = {value: name for name, value in _SEQUENCES.items()}
_BYTES, _DICT, _ENUM, _OBJECT = "bytes", "dict", "enum", "object"
_UNIONS: Final = (Union, getattr(types, "UnionType", Union))


class NotPlain(ValueError):
    """The value has no plain form, or its plain form is invalid."""


def dumps(value: Any) -> bytes:
    """Raises NotPlain."""
    try:
        return json.dumps(_encoded(value), separators=(",", ":")).encode()
    except RecursionError:
        raise NotPlain("the value is nested too deeply") from None
    except NotPlain:
        raise
    except ValueError as error:  # an integer with thousands of digits
        raise NotPlain(str(error)) from None


def loads(raw: bytes, class_of: Callable[[str], type]) -> Any:
    """The value. `class_of` returns the class of a name; it and this raise NotPlain."""
    try:
        return _decoded(json.loads(raw), class_of)
    except RecursionError:
        raise NotPlain("the value is nested too deeply") from None
    except NotPlain:
        raise
    except Exception as error:  # not JSON, of another form, or refused by a constructor
        raise NotPlain(f"{type(error).__name__}: {error}") from None


def name_of(value: Any) -> str:
    """Name of a module-level class or function; raises NotPlain for any other."""
    module = getattr(value, "__module__", None) or ""
    name = f"{module}:{getattr(value, '__qualname__', '')}"
    try:
        found = find(name)
    except Exception:
        found = None
    if found is not value:
        raise NotPlain(f"{value!r} is not a class or function of a module")
    return name


def find(name: str) -> Any:
    """Import what `name_of` named. Only for names that come from the worker."""
    module, _, path = name.partition(":")
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found


def no_class(name: str) -> type:
    """For values in which no class is accepted."""
    raise NotPlain(f"an object of the class {name[:200]!r} is not accepted")


def _encoded(value: Any) -> Any:
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if kind is list:
        return [_encoded(each) for each in value]
    if kind in _NAMES:
        return {_NAMES[kind]: [_encoded(each) for each in value]}
    if kind is bytes:
        return {_BYTES: base64.b64encode(value).decode()}
    if kind is dict:
        return {_DICT: [[_encoded(key), _encoded(each)] for key, each in value.items()]}
    if isinstance(value, Enum):
        return {_ENUM: [name_of(kind), _encoded(value.value)]}
    if dataclasses.is_dataclass(kind) or _is_named_tuple(kind):
        values = [_encoded(getattr(value, name)) for name in _field_names(kind)]
        return {_OBJECT: [name_of(kind), values]}
    raise NotPlain(
        f"{kind.__name__} is not None, bool, int, float, str, bytes, list, tuple, set, dict, enum, "
        "dataclass or named tuple"
    )


def _decoded(plain: Any, class_of: Callable[[str], type]) -> Any:
    if isinstance(plain, list):
        return [_decoded(each, class_of) for each in plain]
    if not isinstance(plain, dict):
        return plain
    [(kind, content)] = plain.items()
    if kind == _BYTES:
        return base64.b64decode(content, validate=True)
    if kind in _SEQUENCES:
        return _SEQUENCES[kind](_decoded(each, class_of) for each in content)
    if kind == _DICT:
        return {_decoded(key, class_of): _decoded(each, class_of) for key, each in content}
    if kind == _ENUM:
        name, value = content
        enum = class_of(name)
        if not issubclass(enum, Enum):
            raise NotPlain(f"{name} is not an enum")
        return enum(_decoded(value, class_of))
    if kind == _OBJECT:
        name, values = content
        of_class = class_of(name)
        names = _field_names(of_class)
        if len(names) != len(values):
            raise NotPlain(f"{name} has {len(names)} fields, not {len(values)}")
        return of_class(**dict(zip(names, (_decoded(each, class_of) for each in values))))
    raise NotPlain(f"unknown kind {kind[:200]!r}")


def _field_names(kind: type) -> list[str]:
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind) if field.init]
    return list(getattr(kind, "_fields", ()))


def _is_named_tuple(kind: type) -> bool:
    return issubclass(kind, tuple) and hasattr(kind, "_fields")


# -- annotations -----------------------------------------------------------------------------------


def return_annotation(function: Callable[..., Any]) -> Any:
    """Any if there is none, or if it cannot be resolved."""
    return _hints(function).get("return", Any)


def classes_in(annotation: Any) -> dict[str, type]:
    """By name: dataclasses, named tuples and enums of an annotation and of their fields."""
    found: dict[str, type] = {}
    waiting = [annotation]
    while waiting:
        each = waiting.pop()
        waiting += typing.get_args(each)
        if isinstance(each, type) and typing.get_origin(each) is None and _is_class_of_fields(each):
            name = f"{each.__module__}:{each.__qualname__}"
            if name not in found:
                found[name] = each
                waiting += _hints(each).values()
    return found


def fits(value: Any, annotation: Any) -> bool:
    """True if a value has the type of an annotation, also in its items and fields."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is None:
        return value is None
    if origin in _UNIONS:
        return any(fits(value, each) for each in arguments)
    if origin is Literal:
        return any(value == each and type(value) is type(each) for each in arguments)
    if origin is typing.Annotated:
        return fits(value, arguments[0])
    if isinstance(origin, type):
        return isinstance(value, origin) and _items_fit(value, origin, arguments)
    if annotation is Any or not isinstance(annotation, type):
        return True  # Any and the like: what has a plain form is harmless
    if annotation in (int, float):
        numbers = (int,) if annotation is int else (int, float)
        return isinstance(value, numbers) and not isinstance(value, bool)
    if not isinstance(value, annotation):
        return False
    hints = _hints(annotation) if _is_class_of_fields(annotation) else {}
    return all(
        fits(getattr(value, name), hints.get(name, Any)) for name in _field_names(annotation)
    )


def _items_fit(value: Any, origin: type, arguments: tuple[Any, ...]) -> bool:
    if isinstance(value, collections.abc.Mapping):
        key, item = arguments if len(arguments) == 2 else (Any, Any)
        return all(fits(name, key) and fits(each, item) for name, each in value.items())
    if origin is tuple and Ellipsis not in arguments:
        return len(value) == len(arguments) and all(map(fits, value, arguments))
    if isinstance(value, (list, tuple, set, frozenset)) and arguments:
        return all(fits(each, arguments[0]) for each in value)
    return True


def _is_class_of_fields(kind: type) -> bool:
    return dataclasses.is_dataclass(kind) or _is_named_tuple(kind) or issubclass(kind, Enum)


def _hints(value: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(value)
    except Exception:  # such as a name that is imported for type checkers only
        return {}
