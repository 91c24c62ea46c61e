"""What OpenAPI says of routes that read their request themselves, and how they are served.

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
from starlette.requests import Request
from starlette.responses import Response

from common.contracts.jobs import JobField
from gateway.models import EXAMPLE_REQUEST, CreateJobRequest
from gateway.problems import MEDIA_TYPE, ProblemView

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
    for path in schema["paths"].values():
        for operation in path.values():
            for code, response in operation["responses"].items():
                content = response.get("content", {})
                if int(code) >= 400 and _JSON in content:
                    response["content"] = {MEDIA_TYPE: content[_JSON]}
                elif len(content) > 1:  # FastAPI adds JSON to whatever a route declares
                    content.pop(_JSON, None)
    return schema


def _header(name: str, description: str, example: str) -> dict[str, Any]:
    return {
        "name": name,
        "in": "header",
        "required": False,
        "description": description,
        "schema": {"type": "string"},
        "example": example,
    }


_PREFER = _header("Prefer", "RFC 7240: seconds to wait for the job before answering.", "wait=10")
_JOB_ID = {
    "name": JobField.JOB_ID.value,
    "in": "path",
    "required": True,
    "description": "The id from the submission's answer.",
    "schema": {"type": "string"},
    "example": "6f1c0f0e-8f0a-4a51-9a55-0d4a6c4f2b7e",
}


def _problems(**codes: str) -> dict[int | str, dict[str, Any]]:
    found: dict[int | str, dict[str, Any]] = {}
    for code, description in codes.items():
        found[int(code.removeprefix("_"))] = {
            "description": description,
            "model": ProblemView,
        }
    return found


CREATE_JOB: dict[str, Any] = {
    "responses": {
        200: {"description": "With `Prefer: wait`: the job has ended, and this is it."},
        **_problems(
            _400="The body is no JSON, or nested too deep; or the Idempotency-Key is malformed.",
            _413="The body or the payload is too long.",
            _415="The body is not declared as JSON.",
            _422="The body does not fit the schema, or the key came with another request.",
            _429="The queue is full; Retry-After says when to come back.",
            _503="Redis does not answer; Retry-After says when to come back.",
        ),
    },
    "openapi_extra": {
        "parameters": [
            _header(
                "Idempotency-Key",
                "Any unique text; the same request under the same key makes one job only.",
                "order-1742",
            ),
            _PREFER,
        ],
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {
                    "schema": CreateJobRequest.model_json_schema(
                        ref_template="#/components/schemas/{model}"
                    ),
                    "example": EXAMPLE_REQUEST,
                }
            },
        },
    },
}

READ_JOB: dict[str, Any] = {
    "responses": {
        304: {"description": "Unchanged since the version named in If-None-Match."},
        **_problems(_404="No such job, or no longer.", _503="Redis does not answer."),
    },
    "openapi_extra": {
        "parameters": [
            _JOB_ID,
            _PREFER,
            _header("If-None-Match", "An ETag from an earlier answer.", '"0123456789abcdef"'),
        ]
    },
}

WATCH_JOB: dict[str, Any] = {
    "responses": {
        200: {
            "description": "The job's events from the beginning, or after Last-Event-ID, until "
            "`done`, `error` or `canceled`.",
            "content": {
                "text/event-stream": {
                    "schema": {"type": "string"},
                    "example": "retry: 1000\nevent: hello\ndata: {…}\n\n"
                    "id: 1760000000000-0\nevent: queued\n"
                    'data: {"type":"queued","ts":1760000000000,"step":"gateway.enqueue",'
                    '"data":{}}\n\n',
                },
                "application/x-ndjson": {"schema": {"type": "string"}},
            },
        },
        204: {"description": "Nothing comes after Last-Event-ID: the job has ended."},
        **_problems(
            _400="Last-Event-ID is no stream id.",
            _404="No such job, or no longer.",
            _406="Neither text/event-stream nor application/x-ndjson is accepted.",
            _503="Redis does not answer, or too many streams are open.",
        ),
    },
    "openapi_extra": {
        "parameters": [
            _JOB_ID,
            _header("Last-Event-ID", "Resume after this event.", "1760000000000-0"),
            {
                "name": "last_event_id",
                "in": "query",
                "required": False,
                "description": "The same, for clients that cannot set headers.",
                "schema": {"type": "string"},
            },
        ]
    },
}
