"""The OpenAPI document: FastAPI's, with the responses that this API really sends."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from sluice.gateway.http.openapi.common_responses import (
    describe_auth,
    describe_common_errors,
    describe_openai_errors,
    describe_workflow_errors,
)
from sluice.gateway.http.problems import MEDIA_TYPE, ProblemView

_JSON = "application/json"


def install(app: FastAPI) -> None:
    """Replace FastAPI's document: errors are problem+json, and only what a route really sends."""

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
            if len(content) > 1:  # FastAPI adds JSON to the declared media types
                content.pop(_JSON, None)
        elif _JSON in content:
            if not content[_JSON]["schema"].get("$ref", "").endswith(_FASTAPIS_OWN):
                response["content"] = {MEDIA_TYPE: content[_JSON]}
            elif MEDIA_TYPE in content:
                del content[_JSON]
            else:
                del responses[code]  # FastAPI adds it to every route with a parameter


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
