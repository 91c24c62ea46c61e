"""OpenAPI descriptions of the workflow routes."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Header, Path
from pydantic import BaseModel

from sluice.common.contracts.jobs import DataField, JobField
from sluice.common.contracts.workflow.statuses import Action
from sluice.gateway.features.workflows.models.requests import (
    EXAMPLE,
    BulkRequest,
    CancelWorkflowRequest,
    CreateWorkflowRequest,
    ExecuteRequest,
    OntologyRequest,
    UndoRequest,
)
from sluice.gateway.features.workflows.models.responses import ExecuteResponse, UndoResponse
from sluice.gateway.http.headers import IdempotencyKey, ReadTokenQuery, text_schema
from sluice.gateway.http.openapi.schema import problem_responses
from sluice.gateway.http.routing import RawJsonBody, declare
from sluice.gateway.jobs.openapi import event_stream

_GONE = "The workflow job does not exist or has expired."
_AWAY = "Redis does not answer."
JobPath = Annotated[
    str,
    Path(
        description="The id from the response that created the job.", examples=["wf_20260214_001"]
    ),
]
StepPath = Annotated[
    str, Path(description="Name of a step of the workflow.", examples=["proposals"])
]
ProposalPath = Annotated[str, Path(description="Id or number of the proposal.", examples=["p_001"])]
IfMatch = Annotated[
    str | None,
    Header(
        alias="If-Match",
        description="The version to edit; the same as `version` in the body.",
    ),
    text_schema('"3"'),
]
#: `sluice.gateway.features.workflows.idempotency` reads the key, here or in the body.
IDEMPOTENT = [declare(idempotency_key=IdempotencyKey)]
#: The authentication reads the token.
_WITH_TOKEN = [declare(token=ReadTokenQuery)]


def _body(model: type[BaseModel], example: dict[str, Any], *, required: bool = True) -> Any:
    """The JSON as sent, which identifies a repeated request. The endpoint validates it."""
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
    Any, _body(CancelWorkflowRequest, {DataField.REASON: "not needed any more"}, required=False)
]

BAD_REQUEST = (
    "The body is not JSON or nested too deeply; or the Idempotency-Key is invalid or differs "
    "between header and body."
)
CREATE: dict[str, Any] = {
    "responses": problem_responses(
        _400=BAD_REQUEST,
        _403="The key is not allowed to submit `tool` jobs.",
        _409="The first request with this Idempotency-Key is still being processed.",
        _413="The body or the options are too long.",
        _422="The body does not match the schema; there is no such workflow or step; the URL of "
        "the webhook is not allowed; or the Idempotency-Key was used with another request.",
        _429="The queue is full, or the key has exceeded its rate or quota; see Retry-After.",
        _503="Redis does not answer, or the host is short of memory or too hot; see Retry-After.",
    ),
    "dependencies": IDEMPOTENT,
}
STATUS: dict[str, Any] = {
    "responses": {
        304: {"description": "Not changed since the version in If-None-Match."},
        **problem_responses(_404=_GONE, _503=_AWAY),
    },
    "dependencies": _WITH_TOKEN,
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
EVENTS: dict[str, Any] = {**_OF_A_JOB, "dependencies": _WITH_TOKEN}


_CLAIMED = "the first request with this Idempotency-Key is still being processed."
_NO_TOOL = "The key is not allowed to run `tool` jobs."
_NOT_NOW = "The queue is full, or the key has exceeded its rate or quota; see Retry-After."


def _route(also: dict[int | str, dict[str, Any]] | None = None, **problems: str) -> dict[str, Any]:
    return {
        "responses": {**(also or {}), **problem_responses(_400=BAD_REQUEST, **problems)},
        "dependencies": IDEMPOTENT,
    }


EXECUTE = _route(
    also={
        202: {
            "description": "The step is not complete, or waits for decisions; see Location.",
            "model": ExecuteResponse,
        }
    },
    _403=_NO_TOOL,
    _404=_GONE,
    _409="A step is already running; a review is not complete; decisions would be lost; all of "
    "the items have changed meanwhile; the job has ended; or " + _CLAIMED,
    _422="There is no such step, the payload is not valid for it, or the Idempotency-Key was used "
    "with another request.",
    _429=_NOT_NOW,
    _503="Redis does not answer, or the host is short of memory or too hot; see Retry-After.",
)
BULK = _route(
    _403=_NO_TOOL,
    _404=_GONE,
    _409="There are no proposals to decide on; all of the items have changed meanwhile; or "
    + _CLAIMED,
    _422="The body does not match the schema, or the Idempotency-Key was used with "
    "another request.",
    _429=_NOT_NOW,
    _503=_AWAY,
)
ONTOLOGY = _route(
    _403=_NO_TOOL,
    _404="The workflow job or the proposal does not exist.",
    _409="The proposal has changed meanwhile (see `item`) or cannot be edited any more; or "
    + _CLAIMED,
    _422="The body does not match the schema, or the Idempotency-Key was used with "
    "another request.",
    _503=_AWAY,
)
UNDO = _route(
    also={
        202: {
            "description": "A worker is undoing it; the job's events report when it is done.",
            "model": UndoResponse,
        }
    },
    _403=_NO_TOOL,
    _404="The workflow job does not exist, or the token cannot undo anything.",
    _409="Items have changed since (see `items`), and nothing was undone; or " + _CLAIMED,
    _422="The body does not match the schema, or the Idempotency-Key was used with "
    "another request.",
    _429=_NOT_NOW,
    _500="A worker could not undo it; nothing was changed.",
    _503=_AWAY,
)
CANCEL = _route(
    _403=_NO_TOOL,
    _404=_GONE,
    _409="The job has already ended; or " + _CLAIMED,
    _422="The body does not match the schema, or the Idempotency-Key was used with "
    "another request.",
    _503=_AWAY,
)
WATCH: dict[str, Any] = event_stream(
    "`job.completed`, `job.failed` or `job.cancelled`",
    "id: 1-0\nevent: job.created\n"
    'data: {"type":"job.created","ts":1760000000000,"step":"","data":{"metadata":{}}}\n\n',
    job_id=JobPath,
    token=ReadTokenQuery,
)
