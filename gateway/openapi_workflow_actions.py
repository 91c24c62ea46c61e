"""What OpenAPI says of the routes that act on a workflow job, and of its live events."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from common.contracts.jobs import DataField, JobField
from common.contracts.workflow import Action
from gateway.openapi import header, in_path, problem_answers, request_body
from gateway.openapi_jobs import stream_answers
from gateway.openapi_workflow import JOB_ID, ONCE
from gateway.workflow.action_models import (
    BulkRequest,
    CancelRequest,
    ExecuteRequest,
    OntologyRequest,
    UndoRequest,
)
from gateway.workflow.action_views import ExecutedView, UndoneView

_GONE = "No such workflow job, or no longer."
_AWAY = "Redis does not answer."
_CLAIMED = "the first request with this Idempotency-Key has not been answered yet."
_PREFER = header(
    "Prefer", "RFC 7240: seconds to wait for the result, 30 at most; or `wait_s`.", "wait=10"
)
_STEP = in_path("step_name", "One of the workflow's steps.", "proposals")
_PROPOSAL = in_path("proposal_id", "Its id, or just its number.", "p_001")
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
        "responses": {**(also or {}), **problem_answers(**_BAD_BODY, **problems)},
        "openapi_extra": {
            "parameters": [JOB_ID, *parameters, ONCE],
            "requestBody": request_body(model, example, required=required),
        },
    }


EXECUTE = _route(
    ExecuteRequest,
    {JobField.PAYLOAD.value: {"limit": 200}},
    _STEP,
    _PREFER,
    required=False,
    also={
        202: {
            "description": "It is not finished, or waits for decisions; Location says where to "
            "look.",
            "model": ExecutedView,
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
    header("If-Match", "The version to edit; or `version` in the body.", '"3"'),
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
            "model": UndoneView,
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
    {DataField.REASON.value: "not needed any more"},
    required=False,
    _403=_NO_TOOL,
    _404=_GONE,
    _409="It has ended in another way; or " + _CLAIMED,
    _422="The body does not fit, or the key came with another request.",
    _503=_AWAY,
)
WATCH: dict[str, Any] = stream_answers(
    JOB_ID,
    "`job.completed`, `job.failed` or `job.cancelled`",
    "12-0",
    "id: 1-0\nevent: job.created\n"
    'data: {"type":"job.created","ts":1760000000000,"step":"","data":{"metadata":{}}}\n\n',
)
