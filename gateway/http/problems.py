"""RFC 9457 problems: every error of the API has the same format, a stable code and a remedy.

The OpenAI API and the workflow API render the same problems in their own formats.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field, ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Receive, Scope, Send

from sluice.common import codec
from sluice.common.codec import json_pointer
from sluice.common.errors import CorruptKey, NotReplicated, StoreUnavailable
from sluice.common.observability import logs
from sluice.common.text import plural
from sluice.gateway.auth.callers import SCOPE_KEY, Caller
from sluice.gateway.http import error_formats as workflow_errors
from sluice.gateway.http.error_formats import openai_error_view
from sluice.gateway.http.paths import is_openai, is_workflow, workflow_job_id_in

log = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"
_JSON = "application/json"
#: Key in the ASGI scope for the code of the problem in the response.
PROBLEM_CODE = "sluice.problem"
#: Most errors that a response lists, and most characters of each name in a pointer.
MOST_FAULTS = 20
MOST_NAME_CHARS = 64


class FieldProblem(BaseModel):
    """One error in a request."""

    pointer: str = Field(description="JSON pointer to the invalid value.", examples=["/ttl_s"])
    detail: str = Field(description="What is wrong with it.")


class ProblemView(BaseModel):
    """An error in the format of RFC 9457."""

    type: str = Field(examples=["urn:sluice:problem:job_not_found"])
    title: str = Field(examples=["Not Found"])
    status: int = Field(examples=[404])
    code: str = Field(description="Stable name of the error.", examples=["job_not_found"])
    detail: str = Field(description="What is wrong, and what to do.")
    instance: str = Field(description="The path of the request.", examples=["/v1/jobs/x"])
    request_id: str = Field(description="The X-Request-Id of the response, to quote in a report.")
    errors: list[FieldProblem] | None = None


def problem_response(description: str) -> dict[str, Any]:
    """A problem in the OpenAPI document."""
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemView"}}}
    return {"description": description, "content": content}


@dataclass
class Problem(Exception):
    """An error response, raised anywhere below a route."""

    status: int
    code: str
    detail: str
    errors: Sequence[FieldProblem] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    #: Added to the detail for operators only: it may name the address of Redis.
    cause: str = ""

    def response(self, scope: Scope) -> Response:
        """The response to a request."""
        path: str = scope["path"]
        if self.cause:
            return self._explained(scope.get(SCOPE_KEY)).response(scope)
        if is_openai(path):
            pointer = self.errors[0].pointer if self.errors else ""
            view = openai_error_view(self.status, self.code, self.detail, pointer)
            raw = codec.dumps(view.model_dump())
            return _ProblemResponse(self.code, raw, self.status, self.headers, _JSON)
        if is_workflow(path):
            raw = self.envelope(path)
            return _ProblemResponse(self.code, raw, self.status, self.headers, _JSON)
        body = self.body(path, logs.request_id.get())
        return _ProblemResponse(self.code, body, self.status, self.headers, MEDIA_TYPE)

    def _explained(self, caller: Caller | None) -> Problem:
        """The problem with its cause, or where to find it."""
        is_operator = caller is not None and caller.sees_all
        cause = self.cause if is_operator else "the gateway's log has it under this request id"
        return replace(self, detail=f"{self.detail} Cause: {cause}.", cause="")

    def envelope(self, path: str) -> bytes:
        """The problem in the format of the workflow API."""
        code = workflow_errors.workflow_code(self.code)
        items = [
            workflow_errors.ErrorItem(
                code=code, message=fault.detail, field=workflow_errors.member_path(fault.pointer)
            )
            for fault in self.errors
        ] or [workflow_errors.ErrorItem(code=code, message=self.detail)]
        return workflow_errors.workflow_envelope(workflow_job_id_in(path), items, self.detail)

    def body(self, path: str, request_id: str) -> bytes:
        view = ProblemView(
            type=f"urn:sluice:problem:{self.code}",
            title=HTTPStatus(self.status).phrase,
            status=self.status,
            code=self.code,
            detail=self.detail,
            instance=path,
            request_id=request_id,
            errors=list(self.errors) or None,
        )
        return codec.dumps(view.model_dump(exclude_none=True))


class _ProblemResponse(Response):
    """Stores the code in the scope, for the metrics."""

    def __init__(
        self, code: str, body: bytes, status: int, headers: Mapping[str, str], media_type: str
    ) -> None:
        super().__init__(body, status, headers, media_type)
        self._code = code

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[PROBLEM_CODE] = self._code
        await super().__call__(scope, receive, send)


def retry_headers(seconds: float) -> dict[str, str]:
    """Retry-After in whole seconds, and the same in milliseconds."""
    return {
        "Retry-After": str(max(1, round(seconds))),
        "Retry-After-Ms": str(max(1, round(seconds * 1000))),
    }


def store_unavailable(cause: str) -> Problem:
    """Redis is unreachable or refuses the command. The cause is logged under the request id."""
    log.warning("Redis does not accept a request: %s", cause)
    return Problem(
        503,
        "store_unavailable",
        "Redis does not accept the request at the moment. With an Idempotency-Key the request can "
        "be repeated safely.",
        headers=retry_headers(2.0),
        cause=cause.rstrip("."),
    )


def gateway_stopping() -> Problem:
    """The server cancels requests that delay its shutdown; the client should retry."""
    return Problem(
        503,
        "store_unavailable",
        "This gateway is stopping. With an Idempotency-Key the request can be repeated safely.",
        headers=retry_headers(2.0),
    )


def not_replicated(detail: str) -> Problem:
    """Redis stored the change, but too few replicas confirmed it in time."""
    return Problem(
        503,
        "not_replicated",
        f"Redis stored the request, but too few replicas confirmed it in time ({detail}). The "
        "request may be executed or lost. Repeat it with its Idempotency-Key.",
        headers=retry_headers(1.0),
    )


def problem_of(error: Exception) -> Problem | None:
    """The problem of an expected error; None for an unexpected one."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, NotReplicated):
        return not_replicated(str(error))
    if isinstance(error, StoreUnavailable):
        return store_unavailable(str(error))
    if isinstance(error, CorruptKey):
        return Problem(503, "store_corrupt", f"Redis refuses the change: {error}")
    return None


def field_problems(errors: Sequence[Mapping[str, object]]) -> list[FieldProblem]:
    """pydantic's errors as JSON pointers and messages; inputs are never echoed."""
    found = []
    for error in errors:
        location = error["loc"]
        assert isinstance(location, tuple)
        detail = _IN_JSON.get(str(error["type"]), str(error["msg"]))
        found.append(FieldProblem(pointer=json_pointer(map(_short, location)), detail=detail))
    return found


def _short(part: str | int) -> str | int:
    return part[:MOST_NAME_CHARS] if isinstance(part, str) else part


#: pydantic's messages that name Python types, by error type.
_IN_JSON = dict.fromkeys(("model_type", "model_attributes_type"), "Input should be an object")


def invalid_request(errors: Sequence[Mapping[str, object]]) -> Problem:
    """The body is JSON, but does not fit the schema."""
    faults = field_problems(errors[:MOST_FAULTS])
    first = f"{faults[0].pointer or '/'}: {faults[0].detail}" if faults else "see errors"
    if len(errors) > MOST_FAULTS:
        more = plural(len(errors) - MOST_FAULTS, "more error is", "more errors are")
        first += f" ({more} not shown)"
    return Problem(422, "invalid_request", f"The request does not fit the schema. {first}", faults)


def validation_problem(error: ValidationError, within: str = "") -> Problem:
    """The problem of a pydantic error. `within`: the member of the body that was validated."""
    outer = (within,) if within else ()
    # The response does not show them, and for a large body they are slow.
    faults = error.errors(include_url=False, include_input=False, include_context=False)
    return invalid_request([{**fault, "loc": (*outer, *fault["loc"])} for fault in faults])


def install(app: FastAPI) -> None:
    """Turn every exception of the app into a problem."""

    async def on_expected(request: Request, error: Exception) -> Response:
        problem = problem_of(error)
        assert problem is not None
        return problem.response(request.scope)

    async def on_invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        stripped = [{**item, "loc": tuple(item["loc"][1:])} for item in error.errors()]
        return invalid_request(stripped).response(request.scope)

    async def on_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        code = HTTPStatus(error.status_code).name.lower()
        detail = _DETAILS.get(error.status_code, str(error.detail))
        headers = dict(error.headers or {})
        if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            headers["Allow"] = ", ".join(_allowed(request))
        return Problem(error.status_code, code, detail, headers=headers).response(request.scope)

    for expected in (Problem, StoreUnavailable, CorruptKey):
        app.add_exception_handler(expected, on_expected)
    app.add_exception_handler(RequestValidationError, on_invalid)
    app.add_exception_handler(HTTPException, on_http)


def _allowed(request: Request) -> list[str]:
    """Every method of the path; a route knows only its own."""
    return [
        method
        for method in _METHODS
        if any(
            route.matches({**request.scope, "method": method})[0] is Match.FULL
            for route in request.app.routes
        )
    ]


_METHODS = ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT")
_DETAILS = {
    404: "There is nothing at this path. The API is described at /docs and /openapi.json.",
    405: "This path does not support this method; see the Allow header.",
}
