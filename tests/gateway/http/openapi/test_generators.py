"""Rules of the OpenAPI document that make it usable by code generators."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from sluice.gateway.http.openapi.tags import TAGS
from tests.gateway.http.openapi.test_openapi import nodes

pytestmark = pytest.mark.fakeredis_only

#: First words of summaries.
VERBS = {
    *("Add", "Cancel", "Check", "Create", "Decide", "Delete", "Download", "Edit", "Execute"),
    *("Get", "Group", "List", "Pause", "Purge", "Redrive", "Remove", "Reopen", "Resume"),
    *("Revoke", "Rotate", "Search", "Sign", "Submit", "Undo", "Upload", "Watch"),
}
#: What a generator can decode as a whole. Other media types are files and streams.
JSON = re.compile(r"application/(\w+\+)?json")


def operations(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for item in document["paths"].values():
        yield from item.values()


def media_types(operation: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The media types of the request and of all responses."""
    for holder in (operation.get("requestBody", {}), *operation["responses"].values()):
        yield from holder.get("content", {}).items()


def test_summaries_are_imperative_and_unique(document: dict[str, Any]) -> None:
    summaries = [operation["summary"] for operation in operations(document)]
    assert len(set(summaries)) == len(summaries)
    for summary in summaries:
        assert summary.split()[0] in VERBS, summary
        assert not summary.endswith((".", "?")), summary


def test_operation_ids_are_unique_names_without_the_path(document: dict[str, Any]) -> None:
    ids = [operation["operationId"] for operation in operations(document)]
    assert len({each.lower() for each in ids}) == len(ids)
    for each in ids:
        assert re.fullmatch(r"[a-z]+(?:[A-Z][a-z]+)+", each), each
        assert len(each) <= 32, each
        assert not re.search(r"V1|Api|Post|Put$", each), each
    assert {"createJob", "listJobs", "getJob", "cancelJob", "watchJob", "getStatus"} <= set(ids)


def test_every_operation_has_one_tag_with_a_description(document: dict[str, Any]) -> None:
    used = {tag for operation in operations(document) for tag in operation["tags"]}
    assert all(len(operation["tags"]) == 1 for operation in operations(document))
    assert used == {tag["name"] for tag in document["tags"]} == set(TAGS)
    for tag in document["tags"]:
        assert re.fullmatch(r"[a-z]+(?:-[a-z]+)*", tag["name"])
        assert re.fullmatch(r"[A-Z].*\.", tag["description"])


def test_every_body_and_response_has_a_named_schema(document: dict[str, Any]) -> None:
    """Generators invent a name from the path for a schema without one."""
    for operation in operations(document):
        for media_type, media in media_types(operation):
            if JSON.fullmatch(media_type):
                reference = media["schema"].get("$ref", "")
                assert reference.startswith("#/components/schemas/"), operation["operationId"]
                assert set(media["schema"]) == {"$ref"}
    names = document["components"]["schemas"]
    assert all(re.fullmatch(r"[A-Z][A-Za-z]+", name) for name in names)
    assert {"CreateJobRequest", "JobView", "JobError", "ProblemView", "JobEvent"} <= set(names)


def test_all_successful_responses_of_an_operation_have_one_schema(document: dict[str, Any]) -> None:
    """Go's generator decodes each of them as the one with the lowest status."""
    different = set()
    for operation in operations(document):
        successful = [
            media["schema"]["$ref"]
            for status, answer in operation["responses"].items()
            for media_type, media in answer.get("content", {}).items()
            if status < "300" and JSON.fullmatch(media_type)
        ]
        if len(set(successful)) > 1:
            different.add(operation["operationId"])
    assert different == {"searchDocuments"}, "its 202 is an exception: the wait was too short"


def test_only_keywords_of_this_openapi_version_are_used(document: dict[str, Any]) -> None:
    """Validators reject `itemSchema`, which is of version 3.2, in a document of version 3.1."""
    assert document["openapi"].startswith("3.1.")
    for operation in operations(document):
        for _, media in media_types(operation):
            assert set(media) <= {"schema", "example", "examples", "encoding"}


def schemas(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for node in nodes(document):
        if isinstance(node.get("type"), str) or isinstance(node.get("$ref"), str):
            yield node


def test_numbers_have_their_size(document: dict[str, Any]) -> None:
    """Without it, Go's generator uses 32 bits, which times in milliseconds exceed."""
    found = [node for node in schemas(document) if node.get("type") in ("integer", "number")]
    assert len(found) > 200
    for node in found:
        assert node["format"] == {"integer": "int64", "number": "double"}[node["type"]], node


def test_generated_code_can_express_types_and_defaults(document: dict[str, Any]) -> None:
    for node in nodes(document["components"]["schemas"]):
        if isinstance(node.get("$ref"), str):
            assert not isinstance(node.get("default"), dict)
        for name, member in (node.get("properties") or {}).items():
            if isinstance(member, dict):
                assert member.get("type") != "null", name


def test_document_names_licence_and_server(document: dict[str, Any]) -> None:
    assert document["info"]["license"]["identifier"] == "MIT"
    assert document["servers"][0]["url"] == "/"
