"""What OpenAPI says of the workflow API: its routes, and its envelope instead of problems."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path

from common.contracts.jobs import JobField
from gateway.openapi import header, in_path, problem_answers, request_body
from gateway.workflow.create_request import EXAMPLE, CreateWorkflowRequest

_EXAMPLE_ID = "wf_20260214_001"
_GONE = "No such workflow job, or no longer."
_AWAY = "Redis does not answer."
_ID = "The id from the answer that made it."
JOB_ID = in_path(JobField.JOB_ID.value, _ID, _EXAMPLE_ID)
#: The same for routes whose parameters FastAPI reads.
JobPath = Annotated[str, Path(description=_ID, examples=[_EXAMPLE_ID])]
ONCE = header(
    "Idempotency-Key",
    "Any unique text, or `idempotency_key` in the body; the same request under the same key is "
    "done once, and answered alike.",
    "order-1742",
)

CREATE: dict[str, Any] = {
    "responses": problem_answers(
        _400="The body is no JSON, or nested too deep; or the Idempotency-Key is malformed, or "
        "differs between header and body.",
        _403="The key may not submit jobs, or no `tool` jobs.",
        _409="The first request with this Idempotency-Key has not been answered yet.",
        _413="The body or the options are too long.",
        _415="The body is not declared as JSON.",
        _422="The body does not fit; there is no such workflow or step; the webhook may not go "
        "there; or the key came with another request.",
        _429="The queue is full, or the key has used up its rate or its quota; Retry-After says "
        "when to come back.",
        _503="Redis does not answer, or the box is short of memory or too hot; Retry-After says "
        "when to come back.",
    ),
    "openapi_extra": {
        "parameters": [ONCE],
        "requestBody": request_body(CreateWorkflowRequest, EXAMPLE, required=False),
    },
}
STATUS: dict[str, Any] = {
    "responses": {
        304: {"description": "Unchanged since the version named in If-None-Match."},
        **problem_answers(_404=_GONE, _503=_AWAY),
    },
    "openapi_extra": {
        "parameters": [JOB_ID, header("If-None-Match", "Versions that are known.", '"abc"')]
    },
}
LIST: dict[str, Any] = {
    "responses": problem_answers(
        _400="The cursor is none of this list's, or comes with an offset.",
        _422="A parameter is none.",
        _503=_AWAY,
    )
}
_OF_A_JOB: dict[str, Any] = {
    "responses": problem_answers(
        _400="The cursor is none of this list's, or comes with an offset.",
        _404=_GONE,
        _422="A parameter is none, or there is no such step.",
        _503=_AWAY,
    )
}
RESULTS = _OF_A_JOB
EVENTS = _OF_A_JOB
