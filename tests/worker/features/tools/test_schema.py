"""The check of arguments: what is wrong, and where; and schemas that are none."""

from __future__ import annotations

from typing import Any

import pytest

from common.codec import json_pointer
from common.json_schema import InvalidSchema, Schema

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
    ("value", "place"),
    [
        ({"items": [1, "x"]}, 'at "/items/1": '),
        ({"items": [], "a/b~c": 1}, 'at "/a~1b~0c": '),
        ({}, "at \"\": 'items' is a required property"),
        ({"items": [], "more": 1}, "at \"\": Additional properties are not allowed ('more'"),
        ([], 'at "": '),
        (None, 'at "": '),
    ],
)
def test_a_fault_names_its_place(value: Any, place: str) -> None:
    [fault] = Schema(ORDER).describe_violations(value)
    assert fault.startswith(place)


def test_what_fits_has_no_faults_and_gets_no_defaults() -> None:
    value = {"items": [1]}
    assert Schema(ORDER).describe_violations(value) == []
    assert value == {"items": [1]}


def test_faults_are_few_and_short() -> None:
    faults = Schema(ORDER).describe_violations({"items": ["x" * 10_000] * 100})
    assert len(faults) == 5
    assert max(map(len, faults)) <= 300


@pytest.mark.parametrize(
    "reference",
    ["http://127.0.0.1:1/x.json", "file:///etc/passwd", "other.json", "https://json-schema.org/x"],
)
@pytest.mark.parametrize("keyword", ["$ref", "$dynamicRef"])
def test_nothing_is_ever_fetched(reference: str, keyword: str) -> None:
    deep = {"type": "object", "properties": {"a": {"anyOf": [{keyword: reference}]}}}
    with pytest.raises(InvalidSchema, match="only #/"):
        Schema(deep)


def test_references_inside_the_schema_work() -> None:
    schema = Schema({"$defs": {"n": {"type": "integer"}}, "items": {"$ref": "#/$defs/n"}})
    assert schema.describe_violations([1, 2]) == []
    assert schema.describe_violations([1, "2"])[0].startswith('at "/1": ')


def test_a_reference_to_nothing_is_a_fault_not_a_crash() -> None:
    [fault] = Schema({"$ref": "#/$defs/none"}).describe_violations(1)
    assert "refers to" in fault


@pytest.mark.parametrize(
    "schema",
    [
        5,
        None,
        [],
        {"type": "thing"},
        {"properties": []},
        {"required": "a"},
        {"x": float},
        {"description": "x" * 200_000},
    ],
)
def test_what_is_no_schema_is_refused(schema: Any) -> None:
    with pytest.raises(InvalidSchema):
        Schema(schema)


def test_a_schema_of_an_older_draft_is_read_as_such() -> None:
    older = {"$schema": "http://json-schema.org/draft-07/schema#", "items": [{"type": "integer"}]}
    assert Schema(older).describe_violations([1, "x"]) == []
    assert Schema(older).describe_violations(["x"]) != []


def test_a_value_that_is_nested_too_deep_is_a_fault() -> None:
    value: Any = {}
    for _ in range(5000):
        value = {"a": value}
    schema = Schema({"properties": {"a": {"$ref": "#"}}})
    assert schema.describe_violations(value) == ['at "": nested too deep']


def test_pointers_are_escaped() -> None:
    assert json_pointer(["a/b", "~", 0, ""]) == "/a~1b/~0/0/"
    assert json_pointer([]) == ""


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
    ("value", "place", "words"),
    [
        ({"type": "text"}, "/sources/0", "'text' is a required property"),
        ({"type": "file", "path": 3}, "/sources/0/path", "3 is not of type 'string'"),
        ({"type": "file", "path": "x", "y": 1}, "/sources/0", "'y' was unexpected"),
        ({"type": "nope"}, "/sources/0", "not valid under any of the given schemas"),
        (3, "/sources/0", "not valid under any of the given schemas"),
    ],
)
def test_a_close_look_names_what_keeps_it_from_what_it_is_meant_for(
    value: Any, place: str, words: str
) -> None:
    [fault] = Schema(CHOICE).find_violations({"sources": [value]}, closely=True)
    assert fault.pointer == place
    assert words in fault.message


def test_no_more_faults_are_looked_at_than_needed() -> None:
    schema = Schema({"type": "array", "items": {"type": "string"}})
    assert len(schema.find_violations([1] * 100_000)) == 5
