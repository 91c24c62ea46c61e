"""Checks values against JSON Schema (2020-12), and says where they are wrong as a JSON pointer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from common import codec

#: Schemas beyond this are nobody's arguments.
MOST_BYTES = 128 * 1024
#: So many faults are named, each with so many characters.
MOST_FAULTS = 5
MOST_CHARS = 300
#: Keywords that lead elsewhere.
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")


class BadSchema(ValueError):
    """What is meant to be a schema is none, or leads outside of itself."""


class Schema:
    """A schema ready for use. Nothing is ever fetched; `default` is a remark, not filled in."""

    def __init__(self, schema: Any, *, trusted: bool = False) -> None:
        """`trusted`: made by a program that makes no mistakes; looked at when it is first used."""
        self._schema = schema
        self._made: Any = None
        if not trusted:
            self._check(schema)

    def _check(self, schema: Any) -> None:
        if not isinstance(schema, (dict, bool)):
            raise BadSchema("a schema is a JSON object")
        try:
            size = len(codec.dumps(schema))
        except (TypeError, ValueError, RecursionError) as error:
            raise BadSchema(f"the schema is no JSON: {error}") from None
        if size > MOST_BYTES:
            raise BadSchema(f"the schema has {size} bytes, {MOST_BYTES} at most")
        for reference in _references(schema):
            if not reference.startswith("#"):
                raise BadSchema(f"the schema refers to {reference!r}; only #/… inside it is known")
        self._made = _validator(schema)

    @property
    def _validator(self) -> Any:
        if self._made is None:
            self._made = _validator(self._schema)
        return self._made

    def faults(self, value: Any) -> list[str]:
        """What is wrong with `value`, each fault with its place; empty if nothing is."""
        from referencing.exceptions import Unresolvable

        try:
            found = sorted(self._validator.iter_errors(value), key=_relevance)
        except Unresolvable as error:
            return [f'at "": the schema refers to what it does not have: {error}'[:MOST_CHARS]]
        except RecursionError:
            return ['at "": nested too deep']
        return [_describe(fault) for fault in found[:MOST_FAULTS]]


def pointer(path: Sequence[str | int]) -> str:
    """A place in a JSON value, as RFC 6901 writes it."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)


def _validator(schema: Any) -> Any:
    # Imported when the first schema is used: it takes longer than the rest of a worker's tools.
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import validator_for
    from referencing import Registry

    kind = validator_for(schema, default=Draft202012Validator)
    try:
        kind.check_schema(schema)
    except SchemaError as error:
        raise BadSchema(f'at "{pointer(error.absolute_path)}": {error.message}') from None
    except RecursionError:
        raise BadSchema("the schema is nested too deep") from None
    return kind(schema, registry=Registry())


def _references(schema: Any) -> Iterator[str]:
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            for keyword in _REFERENCES:
                if isinstance(part.get(keyword), str):
                    yield part[keyword]
            waiting.extend(part.values())
        elif isinstance(part, list):
            waiting.extend(part)


def _relevance(fault: Any) -> tuple[int, str]:
    return len(fault.absolute_path), pointer(fault.absolute_path)


def _describe(fault: Any) -> str:
    return f'at "{pointer(fault.absolute_path)}": {fault.message}'[:MOST_CHARS]
