"""Checks values against JSON Schema (2020-12), and says where they are wrong as a JSON pointer."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

from common import codec
from common.codec import json_pointer

#: Schemas beyond this are nobody's arguments.
MOST_BYTES = 128 * 1024
#: So many faults are named, each with so many characters.
MOST_FAULTS = 5
MOST_CHARS = 300
#: So many are looked at for the most relevant ones.
MOST_LOOKED_AT = 200
#: Keywords that tell one choice of several from the others.
_DISCRIMINATORS = ("const", "enum")
#: Keywords that lead elsewhere.
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")


class InvalidSchema(ValueError):
    """What is meant to be a schema is none, or leads outside of itself."""


class SchemaViolation(NamedTuple):
    """Something wrong in a value: where, as a JSON pointer, and what."""

    pointer: str
    message: str


class Schema:
    """A schema ready for use. Nothing is ever fetched; `default` is a remark, not filled in."""

    def __init__(self, schema: Any, *, trusted: bool = False) -> None:
        """`trusted`: made by a program that makes no mistakes; looked at when it is first used."""
        self._schema = schema
        self._cached_validator: Any = None
        if not trusted:
            self._check(schema)

    def _check(self, schema: Any) -> None:
        if not isinstance(schema, (dict, bool)):
            raise InvalidSchema("a schema is a JSON object")
        try:
            size = len(codec.dumps(schema))
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidSchema(f"the schema is no JSON: {error}") from None
        if size > MOST_BYTES:
            raise InvalidSchema(f"the schema has {size} bytes, {MOST_BYTES} at most")
        for reference in _references(schema):
            if not reference.startswith("#"):
                raise InvalidSchema(
                    f"the schema refers to {reference!r}; only #/… inside it is known"
                )
        self._cached_validator = _validator(schema)

    @property
    def _validator(self) -> Any:
        if self._cached_validator is None:
            self._cached_validator = _validator(self._schema)
        return self._cached_validator

    def describe_violations(self, value: Any) -> list[str]:
        """What is wrong with `value`, each fault with its place; empty if nothing is."""
        return [
            f'at "{fault.pointer}": {fault.message}'[:MOST_CHARS]
            for fault in self.find_violations(value)
        ]

    def find_violations(self, value: Any, *, closely: bool = False) -> list[SchemaViolation]:
        """The same in parts. `closely`: of what fits no choice, why it does not fit the nearest."""
        from referencing.exceptions import Unresolvable

        try:
            errors = islice(self._validator.iter_errors(value), MOST_LOOKED_AT)
            found = sorted(errors, key=_relevance)[:MOST_FAULTS]
        except Unresolvable as error:
            return [SchemaViolation("", f"the schema refers to what it does not have: {error}")]
        except RecursionError:
            return [SchemaViolation("", "nested too deep")]
        if closely:
            found = [_nearest(fault) for fault in found]
        return [
            SchemaViolation(json_pointer(fault.absolute_path), fault.message) for fault in found
        ]


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
        raise InvalidSchema(f'at "{json_pointer(error.absolute_path)}": {error.message}') from None
    except RecursionError:
        raise InvalidSchema("the schema is nested too deep") from None
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
    return len(fault.absolute_path), json_pointer(fault.absolute_path)


def _nearest(fault: Any) -> Any:
    """Of a value that fits none of several schemas: what keeps it from the one that it is meant
    for, where that can be told by its constants."""
    choices: dict[Any, list[Any]] = {}
    for cause in fault.context or ():
        choices.setdefault(cause.schema_path[0], []).append(cause)
    meant = [
        causes
        for causes in choices.values()
        if not any(_is_other_choice(cause, fault) for cause in causes)
    ]
    if len(meant) != 1:
        return fault
    return _nearest(min(meant[0], key=_relevance))


def _is_other_choice(cause: Any, fault: Any) -> bool:
    """Whether it is of another choice: by a constant, or because it is no such thing at all."""
    whole = len(cause.absolute_path) == len(fault.absolute_path)
    return cause.validator in _DISCRIMINATORS or (whole and cause.validator == "type")
