"""Validation of arguments: messages with locations, and invalid schemas."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.common.codec import json_pointer
from sluice.common.json_schema import InvalidSchema, Schema

ORDER = {
    "type": "object",
    "properties": {
        "items": {"type": "array", "items": {"type": "integer"}},
        "a/b~c": {"type": "string"},
        "size": {"type": "integer", "default": 3},
    },
    "required": ["items"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("value", "location"),
    [({"items": [1, "x"]}, 'at "/items/1": '), ({"items": [], "a/b~c": 1}, 'at "/a~1b~0c": '),
     ({}, "at \"\": 'items' is a required property"),
     ({"items": [], "more": 1}, "at \"\": Additional properties are not allowed ('more'"),
     ([], 'at "": '), (None, 'at "": ')],
)  # fmt: skip
def test_a_violation_names_its_location(value: Any, location: str) -> None:
    [fault] = Schema(ORDER).describe_violations(value)
    assert fault.startswith(location)


def test_violations_are_limited_in_number_and_length() -> None:
    value = {"items": [1]}
    assert Schema(ORDER).describe_violations(value) == []
    assert value == {"items": [1]}
    faults = Schema(ORDER).describe_violations({"items": ["x" * 10_000] * 100_000})
    assert len(faults) == 5
    assert max(map(len, faults)) <= 300
    assert json_pointer(["a/b", "~", 0, ""]) == "/a~1b/~0/0/"
    assert json_pointer([]) == ""


@pytest.mark.parametrize(
    "schema",
    [5, None, [], {"type": "thing"}, {"properties": []}, {"required": "a"}, {"x": float},
     {"description": "x" * 200_000}],
)  # fmt: skip
def test_invalid_schemas_are_refused(schema: Any) -> None:
    with pytest.raises(InvalidSchema):
        Schema(schema)


def test_a_schema_of_an_older_draft_is_read_as_such() -> None:
    older = {"$schema": "http://json-schema.org/draft-07/schema#", "items": [{"type": "integer"}]}
    assert Schema(older).describe_violations([1, "x"]) == []
    assert Schema(older).describe_violations(["x"]) != []


def test_a_deeply_nested_value_is_refused() -> None:
    value: Any = {}
    for _ in range(5000):
        value = {"a": value}
    schema = Schema({"properties": {"a": {"$ref": "#"}}})
    assert schema.describe_violations(value) == ['at "": nested too deep']


CHOICE = {
    "type": "object",
    "properties": {
        "sources": {
            "type": "array",
            "items": {
                "oneOf": [
                    {
                        "type": "object",
                        "properties": {"type": {"const": kind}, member: {"type": "string"}},
                        "required": ["type", member],
                        "additionalProperties": False,
                    }
                    for kind, member in (("text", "text"), ("file", "path"))
                ]
            },
        }
    },
}


@pytest.mark.parametrize(
    ("value", "location", "words"),
    [
        ({"type": "text"}, "/sources/0", "'text' is a required property"),
        ({"type": "file", "path": 3}, "/sources/0/path", "3 is not of type 'string'"),
        ({"type": "file", "path": "x", "y": 1}, "/sources/0", "'y' was unexpected"),
        ({"type": "nope"}, "/sources/0", "not valid under any of the given schemas"),
        (3, "/sources/0", "not valid under any of the given schemas"),
    ],
)
def test_unions_report_the_closest_alternative(value: Any, location: str, words: str) -> None:
    [fault] = Schema(CHOICE).find_violations({"sources": [value]}, closely=True)
    assert fault.pointer == location
    assert words in fault.message


@pytest.mark.parametrize("keyword", ["$ref", "$dynamicRef"])
def test_references_stay_inside_the_schema(keyword: str) -> None:
    remote = ("http://127.0.0.1:1/x.json", "https://json-schema.org/x")
    for reference in (*remote, "file:///etc/passwd", "other.json"):
        deep = {"type": "object", "properties": {"a": {"anyOf": [{keyword: reference}]}}}
        with pytest.raises(InvalidSchema, match="only #/"):
            Schema(deep)
    schema = Schema({"$defs": {"n": {"type": "integer"}}, "items": {keyword: "#/$defs/n"}})
    assert schema.describe_violations([1, 2]) == []
    assert schema.describe_violations([1, "2"])[0].startswith('at "/1": ')
    [fault] = Schema({keyword: "#/$defs/none"}).describe_violations(1)
    assert "unresolvable reference" in fault
