"""Validates values against JSON Schema (2020-12); errors are located by JSON pointer."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

from sluice.common import codec
from sluice.common.codec import json_pointer

#: Largest schema, in bytes of JSON.
MOST_BYTES = 128 * 1024
#: Number of violations reported, and length of each in characters.
MOST_FAULTS = 5
MOST_CHARS = 300
#: Number of violations from which the most relevant are chosen.
MOST_LOOKED_AT = 200
#: Keywords that distinguish one alternative of `anyOf` or `oneOf` from the others.
_DISCRIMINATORS = ("const", "enum")
#: Keywords that refer to another schema.
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")


class InvalidSchema(ValueError):
    """The schema is invalid, or refers to something outside itself."""


class SchemaViolation(NamedTuple):
    """One violation in a value: its location as a JSON pointer, and the error."""

    pointer: str
    message: str


class Schema:
    """A compiled schema. References are never fetched, and `default` values are not filled in."""

    def __init__(self, schema: Any, *, trusted: bool = False) -> None:
        """`trusted`: the schema was generated; it is compiled on first use, without a check."""
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
            raise InvalidSchema(f"the schema is not JSON: {error}") from None
        if size > MOST_BYTES:
            raise InvalidSchema(f"the schema has {size} bytes; the limit is {MOST_BYTES}")
        for reference in _references(schema):
            if not reference.startswith("#"):
                raise InvalidSchema(
                    f"the schema refers to {reference!r}; only #/… inside it is supported"
                )
        self._cached_validator = _validator(schema)

    @property
    def _validator(self) -> Any:
        if self._cached_validator is None:
            self._cached_validator = _validator(self._schema)
        return self._cached_validator

    def describe_violations(self, value: Any) -> list[str]:
        """The violations in `value`, each with its location; empty if there are none."""
        return [
            f'at "{fault.pointer}": {fault.message}'[:MOST_CHARS]
            for fault in self.find_violations(value)
        ]

    def find_violations(self, value: Any, *, closely: bool = False) -> list[SchemaViolation]:
        """Like `describe_violations`, but structured.

        `closely`: for a value that matches no alternative, explain the mismatch with the nearest.
        """
        from referencing.exceptions import Unresolvable

        try:
            errors = islice(self._validator.iter_errors(value), MOST_LOOKED_AT)
            found = sorted(errors, key=_relevance)[:MOST_FAULTS]
        except Unresolvable as error:
            return [SchemaViolation("", f"the schema has an unresolvable reference: {error}")]
        except RecursionError:
            return [SchemaViolation("", "nested too deep")]
        if closely:
            found = [_nearest(fault) for fault in found]
        return [
            SchemaViolation(json_pointer(fault.absolute_path), fault.message) for fault in found
        ]


def _validator(schema: Any) -> Any:
    # Imported lazily: this takes longer than all other imports of a worker's tools.
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
    """For a value that matches no alternative: the mismatch with the intended one, if its
    constants identify it."""
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
    """True if a constant, or the type of the whole value, rules this alternative out."""
    whole = len(cause.absolute_path) == len(fault.absolute_path)
    return cause.validator in _DISCRIMINATORS or (whole and cause.validator == "type")
