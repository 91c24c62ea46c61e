"""The OpenAPI document: FastAPI's, with the responses that this API really sends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute

from sluice.gateway.http.openapi.common_responses import (
    describe_auth,
    describe_common_errors,
    describe_openai_errors,
    describe_workflow_errors,
)
from sluice.gateway.http.openapi.tags import TAGS
from sluice.gateway.http.problems import MEDIA_TYPE, ProblemView

_JSON = "application/json"


def install(app: FastAPI) -> None:
    """Replace FastAPI's document: errors are problem+json, and only what a route really sends."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = get_openapi(
                title=app.title,
                version=app.version,
                description=app.description,
                routes=app.routes,
                tags=[{"name": name, "description": about} for name, about in TAGS.items()],
                servers=[{"url": "/", "description": "The gateway that serves this document."}],
                license_info={"name": "MIT", "identifier": "MIT"},
            )
            _name_operations(document, app.routes)
            app.openapi_schema = _corrected(document)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _name_operations(document: dict[str, Any], routes: Sequence[BaseRoute]) -> None:
    """Derive ids for code generators from the endpoints: `createJob` for `create_job`."""
    for route in routes:
        if isinstance(route, APIRoute) and route.include_in_schema:
            first, *words = route.name.split("_")
            for method in route.methods or ():
                operation = document["paths"][route.path_format][method.lower()]
                operation["operationId"] = first + "".join(map(str.capitalize, words))


def _corrected(schema: dict[str, Any]) -> dict[str, Any]:
    named = schema["components"]["schemas"]
    for path in schema["paths"].values():
        for operation in path.values():
            for holder in (operation.get("requestBody", {}), *operation["responses"].values()):
                for media in holder.get("content", {}).values():
                    for name, definition in media.get("schema", {}).pop("$defs", {}).items():
                        known = named.setdefault(name, definition)
                        assert known == definition, f"two schemas are named {name}"
            _correct_answers(operation["responses"])
    for name in _FASTAPIS_OWN:
        named.pop(name, None)
    _suit_generators(schema)
    describe_auth(schema)
    describe_common_errors(schema)
    describe_openai_errors(schema)
    describe_workflow_errors(schema)
    return schema


#: Sizes of numbers for code generators, whose usual types are too small for times and bytes.
FORMATS: Final = {"integer": "int64", "number": "double"}


#: Members of a schema that are values, not schemas.
_VALUES = ("default", "enum", "example", "examples")


def _suit_generators(node: Any, *, is_map: bool = False) -> None:
    """Add the size of numbers, and drop defaults that generated code cannot express.

    `is_map`: the keys are names, not keywords of a schema.
    """
    if isinstance(node, list):
        for each in node:
            _suit_generators(each)
    elif isinstance(node, dict):
        for key, value in node.items():
            if is_map or key not in _VALUES:
                _suit_generators(value, is_map=not is_map and key in ("properties", "schemas"))
        if not is_map and isinstance(node.get("type"), str) and node["type"] in FORMATS:
            node.setdefault("format", FORMATS[node["type"]])
        if not is_map and node.get("type") == "null" and "title" in node:
            node["enum"] = [None]  # generators have no type for it
            del node["type"]
        if not is_map and "$ref" in node and isinstance(node.get("default"), dict):
            del node["default"]  # an object, which is always part of a response


def _correct_answers(responses: dict[str, Any]) -> None:
    for code, response in list(responses.items()):
        content = response.get("content", {})
        if response["description"] == _FASTAPIS_DESCRIPTION:
            response["description"] = _SUCCESS.get(code, "Success.")
        if int(code) < 400:
            if len(content) > 1:  # FastAPI adds JSON to the declared media types
                content.pop(_JSON, None)
        elif _JSON in content:
            if not content[_JSON]["schema"].get("$ref", "").endswith(_FASTAPIS_OWN):
                response["content"] = {MEDIA_TYPE: content[_JSON]}
            elif MEDIA_TYPE in content:
                del content[_JSON]
            else:
                del responses[code]  # FastAPI adds it to every route with a parameter


_FASTAPIS_DESCRIPTION = "Successful Response"
_SUCCESS = {"201": "Created.", "202": "Accepted.", "204": "Done; no content."}
_FASTAPIS_OWN = ("HTTPValidationError", "ValidationError")


def problem_responses(**codes: str) -> dict[int | str, dict[str, Any]]:
    """Problems by status, `_404="No such job."`."""
    found: dict[int | str, dict[str, Any]] = {}
    for code, description in codes.items():
        found[int(code.removeprefix("_"))] = {
            "description": description,
            "model": ProblemView,
        }
    return found
