"""What OpenAPI says of the routes that act on a workflow job, and of its live events."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path
from pydantic import BaseModel

from common.contracts.jobs import DataField, JobField
from common.contracts.workflow.statuses import Action
from gateway.features.workflows.models.requests import (
    EXAMPLE,
    BulkRequest,
    CancelRequest,
    CreateWorkflowRequest,
    ExecuteRequest,
    OntologyRequest,
    UndoRequest,
)
from gateway.features.workflows.models.responses import ExecuteResponse, UndoResponse
from gateway.http.openapi.schema import (
    header_parameter,
    path_parameter,
    problem_responses,
    request_body,
)
from gateway.jobs.openapi import stream_responses

_EXAMPLE_ID = "wf_20260214_001"
_GONE = "No such workflow job, or no longer."
_AWAY = "Redis does not answer."
_ID = "The id from the answer that made it."
JOB_ID = path_parameter(JobField.JOB_ID, _ID, _EXAMPLE_ID)
#: The same for routes whose parameters FastAPI reads.
JobPath = Annotated[str, Path(description=_ID, examples=[_EXAMPLE_ID])]
IDEMPOTENCY_KEY = header_parameter(
    "Idempotency-Key",
    "Any unique text, or `idempotency_key` in the body; the same request under the same key is "
    "done once, and answered alike.",
    "order-1742",
)

CREATE: dict[str, Any] = {
    "responses": problem_responses(
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
        "parameters": [IDEMPOTENCY_KEY],
        "requestBody": request_body(CreateWorkflowRequest, EXAMPLE, required=False),
    },
}
STATUS: dict[str, Any] = {
    "responses": {
        304: {"description": "Unchanged since the version named in If-None-Match."},
        **problem_responses(_404=_GONE, _503=_AWAY),
    },
    "openapi_extra": {
        "parameters": [
            JOB_ID,
            header_parameter("If-None-Match", "Versions that are known.", '"abc"'),
        ]
    },
}
LIST: dict[str, Any] = {
    "responses": problem_responses(
        _400="The cursor is none of this list's, or comes with an offset.",
        _422="A parameter is none.",
        _503=_AWAY,
    )
}
_OF_A_JOB: dict[str, Any] = {
    "responses": problem_responses(
        _400="The cursor is none of this list's, or comes with an offset.",
        _404=_GONE,
        _422="A parameter is none, or there is no such step.",
        _503=_AWAY,
    )
}
RESULTS = _OF_A_JOB
EVENTS = _OF_A_JOB


_CLAIMED = "the first request with this Idempotency-Key has not been answered yet."
_PREFER = header_parameter(
    "Prefer", "RFC 7240: seconds to wait for the result, 30 at most; or `wait_s`.", "wait=10"
)
_STEP = path_parameter("step_name", "One of the workflow's steps.", "proposals")
_PROPOSAL = path_parameter("proposal_id", "Its id, or just its number.", "p_001")
_NO_TOOL = "The key may not have `tool` jobs run."
_BAD_BODY = {
    "_400": "The body is no JSON, or nested too deep; or the Idempotency-Key is malformed, or "
    "differs between header and body.",
    "_413": "The body is too long.",
    "_415": "The body is not declared as JSON.",
}
_NOT_NOW = (
    "The queue is full, or the key has used up its rate or its quota; Retry-After says when to "
    "come back."
)


def _route(
    model: type[BaseModel],
    example: dict[str, Any],
    *parameters: dict[str, Any],
    required: bool = True,
    also: dict[int | str, dict[str, Any]] | None = None,
    **problems: str,
) -> dict[str, Any]:
    return {
        "responses": {**(also or {}), **problem_responses(**_BAD_BODY, **problems)},
        "openapi_extra": {
            "parameters": [JOB_ID, *parameters, IDEMPOTENCY_KEY],
            "requestBody": request_body(model, example, required=required),
        },
    }


EXECUTE = _route(
    ExecuteRequest,
    {JobField.PAYLOAD: {"limit": 200}},
    _STEP,
    _PREFER,
    required=False,
    also={
        202: {
            "description": "It is not finished, or waits for decisions; Location says where to "
            "look.",
            "model": ExecuteResponse,
        }
    },
    _403=_NO_TOOL,
    _404=_GONE,
    _409="A step runs already; a review is not complete; decisions would be lost; all of "
    "the items decided on have changed meanwhile; the job has ended; or " + _CLAIMED,
    _422="There is no such step, or it does not take this payload; or the key came with another "
    "request.",
    _429=_NOT_NOW,
    _503="Redis does not answer, or the box is short of memory or too hot; Retry-After says when "
    "to come back.",
)
BULK = _route(
    BulkRequest,
    {"action": Action.APPROVE.value, "proposal_ids": ["p_001", "p_002"]},
    _403=_NO_TOOL,
    _404=_GONE,
    _409="There is nothing to decide on now; all of the items have changed meanwhile; or "
    + _CLAIMED,
    _422="The body does not fit, or the key came with another request.",
    _429=_NOT_NOW,
    _503=_AWAY,
)
ONTOLOGY = _route(
    OntologyRequest,
    {"to": "dead letter queue"},
    _PROPOSAL,
    header_parameter("If-Match", "The version to edit; or `version` in the body.", '"3"'),
    _403=_NO_TOOL,
    _404="No such workflow job or proposal, or no longer.",
    _409="It has changed meanwhile (`item` has it as it is); it cannot be edited any more; or "
    + _CLAIMED,
    _422="The body does not fit, or the key came with another request.",
    _503=_AWAY,
)
UNDO = _route(
    UndoRequest,
    {"undo_token": "undo_p_001"},
    _PREFER,
    also={
        202: {
            "description": "A worker has been asked to; its events tell when it is done.",
            "model": UndoResponse,
        }
    },
    _403=_NO_TOOL,
    _404="No such workflow job, or nothing that this token can undo.",
    _409="Something has changed since (`items`); nothing was undone; or " + _CLAIMED,
    _422="The body does not fit, or the key came with another request.",
    _429=_NOT_NOW,
    _500="A worker could not undo it; nothing was changed.",
    _503=_AWAY,
)
CANCEL = _route(
    CancelRequest,
    {DataField.REASON: "not needed any more"},
    required=False,
    _403=_NO_TOOL,
    _404=_GONE,
    _409="It has ended in another way; or " + _CLAIMED,
    _422="The body does not fit, or the key came with another request.",
    _503=_AWAY,
)
WATCH: dict[str, Any] = stream_responses(
    JOB_ID,
    "`job.completed`, `job.failed` or `job.cancelled`",
    "12-0",
    "id: 1-0\nevent: job.created\n"
    'data: {"type":"job.created","ts":1760000000000,"step":"","data":{"metadata":{}}}\n\n',
)
