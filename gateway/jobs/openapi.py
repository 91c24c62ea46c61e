"""What OpenAPI says of the routes of jobs."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends

from common.contracts import values_of
from common.contracts.jobs import EventField
from gateway.http.headers import (
    IdempotencyKey,
    IfNoneMatch,
    LastEventId,
    LastEventIdQuery,
    Prefer,
    Traceparent,
)
from gateway.http.openapi.schema import problem_responses
from gateway.http.routing import JsonBody, declare
from gateway.jobs.lookup import JobIdPath
from gateway.jobs.models import (
    EXAMPLE_REQUEST,
    CancelRequest,
    CancelView,
    CreateJobRequest,
    JobView,
)

CancelBody = Annotated[CancelRequest, Depends(JsonBody(CancelRequest, {}, required=False))]

#: One event of a stream; as OpenAPI 3.2 and, before it, FastAPI describe streams.
_EVENT: dict[str, Any] = {
    "type": "object",
    "properties": {
        EventField.TYPE: {"type": "string"},
        EventField.TS: {"type": "integer", "description": "Unix milliseconds."},
        EventField.STEP: {"type": "string"},
        EventField.DATA: {},
    },
    "required": list(values_of(EventField)),
}
#: The same in SSE's own words.
SSE_EVENT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "event": {"type": "string"},
        "data": {"type": "string", "contentMediaType": "application/json"},
        "id": {"type": "string", "description": "For Last-Event-ID."},
        "retry": {"type": "integer", "description": "Milliseconds."},
    },
}

CREATE_JOB: dict[str, Any] = {
    "responses": {
        200: {
            "description": "With `Prefer: wait`: the job has ended, and this is it.",
            "model": JobView,
        },
        **problem_responses(
            _400="The body is no JSON, or nested too deep; or the Idempotency-Key is malformed.",
            _413="The body or the payload is too long.",
            _415="The body is not declared as JSON.",
            _422="The body does not fit the schema, or the key came with another request.",
            _403="The key may not submit jobs, or not of this task.",
            _429="The queue or the schedule is full, or the key has used up its rate or its "
            "quota; Retry-After says when to come back.",
            _503="Redis does not answer, or the box is short of memory or too hot; Retry-After "
            "says when to come back.",
        ),
    },
    "dependencies": [
        declare(idempotency_key=IdempotencyKey, prefer=Prefer, traceparent=Traceparent),
        Depends(JsonBody(CreateJobRequest, EXAMPLE_REQUEST)),
    ],
}

LIST_JOBS: dict[str, Any] = {
    "responses": problem_responses(
        _404="No list of jobs is kept: JOB_INDEX_MAX is 0.",
        _422="A part of the query is not what it should be.",
        _503="Redis does not answer, or the list is something else.",
    )
}

READ_JOB: dict[str, Any] = {
    "responses": {
        304: {"description": "Unchanged since the version named in If-None-Match."},
        **problem_responses(_404="No such job, or no longer.", _503="Redis does not answer."),
    },
    "dependencies": [declare(job_id=JobIdPath, prefer=Prefer, if_none_match=IfNoneMatch)],
}


def event_stream(ends: str, example: str, **parameters: Any) -> dict[str, Any]:
    """A route with live events: what ends them, an example, and the parameters of its path."""
    return {
        "responses": {
            200: {
                "description": "The job's events from the beginning, or after Last-Event-ID, "
                f"until {ends}.",
                "content": {
                    "text/event-stream": {
                        "itemSchema": SSE_EVENT,
                        "example": "retry: 1000\nevent: hello\ndata: {…}\n\n" + example,
                    },
                    "application/x-ndjson": {"itemSchema": _EVENT},
                },
            },
            204: {"description": "Nothing comes after Last-Event-ID: the job has ended."},
            **problem_responses(
                _400="Last-Event-ID is no stream id.",
                _404="No such job, or no longer.",
                _406="Neither text/event-stream nor application/x-ndjson is accepted.",
                _503="Redis does not answer, or too many streams are open.",
            ),
        },
        "dependencies": [
            declare(**parameters, last_event_id=LastEventId, last_event_id_query=LastEventIdQuery)
        ],
    }


WATCH_JOB: dict[str, Any] = event_stream(
    "`done`, `error` or `canceled`",
    "id: 1760000000000-0\nevent: queued\n"
    'data: {"type":"queued","ts":1760000000000,"step":"gateway.enqueue","data":{}}\n\n',
    job_id=JobIdPath,
)

_CANCEL_ANSWERS: dict[int | str, dict[str, Any]] = {
    202: {
        "description": "A worker runs it and has been asked to end it.",
        "model": CancelView,
    },
    **problem_responses(_404="No such job, or no longer.", _503="Redis does not answer."),
}

CANCEL_JOB: dict[str, Any] = {
    "responses": {
        **_CANCEL_ANSWERS,
        **problem_responses(
            _400="The body is no JSON.",
            _413="The body is too long.",
            _415="The body is not declared as JSON.",
            _422="The body does not fit the schema.",
        ),
    },
}

DELETE_JOB: dict[str, Any] = {"responses": _CANCEL_ANSWERS}
