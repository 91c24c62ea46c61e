"""What OpenAPI says of the routes that act on a workflow job, and of its live events."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Header, Path
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
from gateway.http.headers import IdempotencyKey, text_schema
from gateway.http.openapi.schema import problem_responses
from gateway.http.routing import RawJsonBody, declare
from gateway.jobs.openapi import event_stream

_GONE = "No such workflow job, or no longer."
_AWAY = "Redis does not answer."
JobPath = Annotated[
    str, Path(description="The id from the answer that made it.", examples=["wf_20260214_001"])
]
StepPath = Annotated[str, Path(description="One of the workflow's steps.", examples=["proposals"])]
ProposalPath = Annotated[str, Path(description="Its id, or just its number.", examples=["p_001"])]
IfMatch = Annotated[
    str | None,
    Header(
        alias="If-Match",
        description="The version to edit; or `version` in the body.",
    ),
    text_schema('"3"'),
]
#: `gateway.features.workflows.idempotency` reads the key, here or in the body.
IDEMPOTENT = [declare(idempotency_key=IdempotencyKey)]


def _body(model: type[BaseModel], example: dict[str, Any], *, required: bool = True) -> Any:
    """The JSON as it was sent: it identifies a repeated request. The route validates it."""
    return Depends(RawJsonBody(model, example, required=required))


CreateBody = Annotated[Any, _body(CreateWorkflowRequest, EXAMPLE, required=False)]
ExecuteBody = Annotated[
    Any, _body(ExecuteRequest, {JobField.PAYLOAD: {"limit": 200}}, required=False)
]
BulkBody = Annotated[
    Any,
    _body(BulkRequest, {"action": Action.APPROVE.value, "proposal_ids": ["p_001", "p_002"]}),
]
OntologyBody = Annotated[Any, _body(OntologyRequest, {"to": "dead letter queue"})]
UndoBody = Annotated[Any, _body(UndoRequest, {"undo_token": "undo_p_001"})]
CancelBody = Annotated[
    Any, _body(CancelRequest, {DataField.REASON: "not needed any more"}, required=False)
]

CREATE: dict[str, Any] = {
    "responses": problem_responses(
        _400="The body is not JSON or nested too deeply; or the Idempotency-Key is invalid or "
        "differs between header and body.",
        _403="The key may not submit jobs, or no `tool` jobs.",
        _409="The first request with this Idempotency-Key has not been answered yet.",
        _413="The body or the options are too long.",
        _415="The Content-Type of the body is not JSON.",
        _422="The body does not fit; there is no such workflow or step; the webhook may not go "
        "there; or the key came with another request.",
        _429="The queue is full, or the key has used up its rate or its quota; Retry-After says "
        "when to come back.",
        _503="Redis does not answer, or the host is short of memory or too hot; Retry-After says "
        "when to come back.",
    ),
    "dependencies": IDEMPOTENT,
}
STATUS: dict[str, Any] = {
    "responses": {
        304: {"description": "Not changed since the version in If-None-Match."},
        **problem_responses(_404=_GONE, _503=_AWAY),
    }
}
LIST: dict[str, Any] = {
    "responses": problem_responses(
        _400="The cursor is not valid for this list, or is combined with an offset.",
        _422="Invalid query parameter.",
        _503=_AWAY,
    )
}
_OF_A_JOB: dict[str, Any] = {
    "responses": problem_responses(
        _400="The cursor is not valid for this list, or is combined with an offset.",
        _404=_GONE,
        _422="Invalid query parameter, or no such step.",
        _503=_AWAY,
    )
}
RESULTS = _OF_A_JOB
EVENTS = _OF_A_JOB


_CLAIMED = "the first request with this Idempotency-Key has not been answered yet."
_NO_TOOL = "The key is not allowed to run `tool` jobs."
_BAD_BODY = {
    "_400": "The body is not JSON or nested too deeply; or the Idempotency-Key is invalid or "
    "differs between header and body.",
    "_413": "The body is too long.",
    "_415": "The Content-Type of the body is not JSON.",
}
_NOT_NOW = (
    "The queue is full, or the key has used up its rate or its quota; Retry-After says when to "
    "come back."
)


def _route(also: dict[int | str, dict[str, Any]] | None = None, **problems: str) -> dict[str, Any]:
    return {
        "responses": {**(also or {}), **problem_responses(**_BAD_BODY, **problems)},
        "dependencies": IDEMPOTENT,
    }


EXECUTE = _route(
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
    _503="Redis does not answer, or the host is short of memory or too hot; Retry-After says when "
    "to come back.",
)
BULK = _route(
    _403=_NO_TOOL,
    _404=_GONE,
    _409="There is nothing to decide on now; all of the items have changed meanwhile; or "
    + _CLAIMED,
    _422="The body does not match the schema, or the Idempotency-Key was used with "
    "another request.",
    _429=_NOT_NOW,
    _503=_AWAY,
)
ONTOLOGY = _route(
    _403=_NO_TOOL,
    _404="No such workflow job or proposal, or no longer.",
    _409="It has changed meanwhile (`item` has it as it is); it cannot be edited any more; or "
    + _CLAIMED,
    _422="The body does not match the schema, or the Idempotency-Key was used with "
    "another request.",
    _503=_AWAY,
)
UNDO = _route(
    also={
        202: {
            "description": "A worker has been asked to; its events tell when it is done.",
            "model": UndoResponse,
        }
    },
    _403=_NO_TOOL,
    _404="No such workflow job, or nothing that this token can undo.",
    _409="Something has changed since (`items`); nothing was undone; or " + _CLAIMED,
    _422="The body does not match the schema, or the Idempotency-Key was used with "
    "another request.",
    _429=_NOT_NOW,
    _500="A worker could not undo it; nothing was changed.",
    _503=_AWAY,
)
CANCEL = _route(
    _403=_NO_TOOL,
    _404=_GONE,
    _409="It has ended in another way; or " + _CLAIMED,
    _422="The body does not match the schema, or the Idempotency-Key was used with "
    "another request.",
    _503=_AWAY,
)
WATCH: dict[str, Any] = event_stream(
    "`job.completed`, `job.failed` or `job.cancelled`",
    "id: 1-0\nevent: job.created\n"
    'data: {"type":"job.created","ts":1760000000000,"step":"","data":{"metadata":{}}}\n\n',
    job_id=JobPath,
)
