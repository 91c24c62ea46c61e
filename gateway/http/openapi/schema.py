"""How routes are served that read their request themselves, and what OpenAPI needs to know then.

FastAPI's dependency machinery costs several times what a submit costs in Redis. These routes keep
FastAPI's routing, error handling and documentation, and skip the rest; a test compares their
answers with those of a plain FastAPI route over the same model.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from gateway.http.openapi.common_responses import (
    describe_auth,
    describe_common_errors,
    describe_openai_errors,
    describe_workflow_errors,
)
from gateway.http.problems import MEDIA_TYPE, ProblemView

_JSON = "application/json"


def direct_route(base: type[APIRoute]) -> type[APIRoute]:
    """A route class that hands the request straight to the endpoint."""

    class DirectRoute(base):  # type: ignore[misc, valid-type]
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            endpoint: Callable[[Request], Coroutine[Any, Any, Response]] = self.endpoint
            return endpoint

    return DirectRoute


def install(app: FastAPI) -> None:
    """Make the page say problem+json for errors, and only what a route really answers."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _corrected(
                get_openapi(
                    title=app.title,
                    version=app.version,
                    description=app.description,
                    routes=app.routes,
                )
            )
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _corrected(schema: dict[str, Any]) -> dict[str, Any]:
    named = schema["components"]["schemas"]
    for path in schema["paths"].values():
        for operation in path.values():
            body = operation.get("requestBody", {}).get("content", {}).get(_JSON, {})
            for name, definition in body.get("schema", {}).pop("$defs", {}).items():
                named.setdefault(name, definition)
            _correct_answers(operation["responses"])
    for name in _FASTAPIS_OWN:
        named.pop(name, None)
    describe_auth(schema)
    describe_common_errors(schema)
    describe_openai_errors(schema)
    describe_workflow_errors(schema)
    return schema


def _correct_answers(responses: dict[str, Any]) -> None:
    for code, response in list(responses.items()):
        content = response.get("content", {})
        if int(code) < 400:
            if len(content) > 1:  # FastAPI adds JSON to whatever a route declares
                content.pop(_JSON, None)
        elif _JSON in content:
            if content[_JSON]["schema"].get("$ref", "").endswith(_FASTAPIS_OWN):
                del responses[code]  # said of every route with a parameter
            else:
                response["content"] = {MEDIA_TYPE: content[_JSON]}


_FASTAPIS_OWN = ("HTTPValidationError", "ValidationError")


def header_parameter(name: str, description: str, example: str) -> dict[str, Any]:
    """A request header that a route reads itself."""
    return {
        "name": name,
        "in": "header",
        "required": False,
        "description": description,
        "schema": {"type": "string"},
        "example": example,
    }


def path_parameter(name: str, description: str, example: str) -> dict[str, Any]:
    """A part of the path that a route reads itself."""
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": description,
        "schema": {"type": "string"},
        "example": example,
    }


def query_parameter(name: str, description: str) -> dict[str, Any]:
    """A part of the query that a route reads itself."""
    return {
        "name": name,
        "in": "query",
        "required": False,
        "description": description,
        "schema": {"type": "string"},
    }


def request_body(
    model: type[BaseModel], example: dict[str, Any], *, required: bool = True
) -> dict[str, Any]:
    """A JSON body that a route reads itself."""
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    return {"required": required, "content": {_JSON: {"schema": schema, "example": example}}}


def problem_responses(**codes: str) -> dict[int | str, dict[str, Any]]:
    """Problems by status, `_404="No such job."`."""
    found: dict[int | str, dict[str, Any]] = {}
    for code, description in codes.items():
        found[int(code.removeprefix("_"))] = {
            "description": description,
            "model": ProblemView,
        }
    return found
