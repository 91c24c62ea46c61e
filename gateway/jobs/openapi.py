"""OpenAPI descriptions of the routes of jobs."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends

from sluice.common.contracts import values_of
from sluice.common.contracts.jobs import EventField
from sluice.gateway.http.headers import (
    IdempotencyKey,
    IfNoneMatch,
    LastEventId,
    LastEventIdQuery,
    Prefer,
    ReadTokenQuery,
    Traceparent,
)
from sluice.gateway.http.openapi.schema import problem_responses
from sluice.gateway.http.routing import JsonBody, declare, reference
from sluice.gateway.jobs.lookup import JobIdPath
from sluice.gateway.jobs.models import (
    EXAMPLE_REQUEST,
    CancelRequest,
    CancelView,
    CreateJobRequest,
    SubmitJobResponse,
)

CancelBody = Annotated[CancelRequest, Depends(JsonBody(CancelRequest, {}, required=False))]

#: Before OpenAPI 3.2, the schema of a stream describes one event.
SSE_EVENT: dict[str, Any] = reference(
    "ServerSentEvent",
    {
        "description": "One event of a stream, as SSE.",
        "type": "object",
        "properties": {
            "event": {"type": "string", "description": "Type of the event."},
            "data": {
                "type": "string",
                "contentMediaType": "application/json",
                "description": "The event as JSON.",
            },
            "id": {"type": "string", "description": "For Last-Event-ID."},
            "retry": {"type": "integer", "description": "Milliseconds until a reconnection."},
        },
    },
)
_JOB_EVENT = reference(
    "JobEvent",
    {
        "description": "One event of a job. As NDJSON, one line of the stream.",
        "type": "object",
        "properties": {
            EventField.TYPE: {"type": "string", "description": "Type of the event."},
            EventField.TS: {"type": "integer", "description": "Unix milliseconds."},
            EventField.STEP: {"type": "string", "description": "What emitted the event."},
            EventField.DATA: {"description": "Details, by type."},
            "id": {"type": "string", "description": "For Last-Event-ID."},
        },
        "required": list(values_of(EventField)),
    },
)

CREATE_JOB: dict[str, Any] = {
    "responses": {
        200: {
            "description": "With `Prefer: wait`: the job, which has ended.",
            "model": SubmitJobResponse,
        },
        202: {"description": "The job was accepted; only `job_id`."},
        **problem_responses(
            _400="The body is not JSON or nested too deeply, or the Idempotency-Key is invalid.",
            _413="The body or the payload is too long.",
            _422="The body does not match the schema, or the Idempotency-Key was used with "
            "another request.",
            _403="The key is not allowed to submit jobs of this task.",
            _429="The queue or the schedule is full, or the key has exceeded its rate or quota; "
            "see Retry-After.",
            _503="Redis does not answer, or the host is short of memory or too hot; see "
            "Retry-After.",
        ),
    },
    "dependencies": [
        declare(idempotency_key=IdempotencyKey, prefer=Prefer, traceparent=Traceparent),
        Depends(JsonBody(CreateJobRequest, EXAMPLE_REQUEST)),
    ],
}

LIST_JOBS: dict[str, Any] = {
    "responses": problem_responses(
        _404="Listing is disabled: JOB_INDEX_MAX is 0.",
        _422="Invalid query parameter.",
        _503="Redis does not answer, or the key of the list has another type.",
    )
}

READ_JOB: dict[str, Any] = {
    "responses": {
        304: {"description": "Not changed since the version in If-None-Match."},
        **problem_responses(
            _404="The job does not exist or has expired.", _503="Redis does not answer."
        ),
    },
    "dependencies": [
        declare(job_id=JobIdPath, prefer=Prefer, if_none_match=IfNoneMatch, token=ReadTokenQuery)
    ],
}


def event_stream(
    ends: str, example: str, *, event: dict[str, Any] = _JOB_EVENT, **parameters: Any
) -> dict[str, Any]:
    """A route that streams events.

    `ends`: what ends the stream. `example`: of an event. `event`: its schema as NDJSON.
    `parameters`: those of the path, and further ones.
    """
    return {
        "responses": {
            200: {
                "description": f"Events from the beginning, or after Last-Event-ID, until {ends}.",
                "content": {
                    "text/event-stream": {
                        "schema": SSE_EVENT,
                        "example": "retry: 1000\nevent: hello\ndata: {…}\n\n" + example,
                    },
                    "application/x-ndjson": {"schema": event},
                },
            },
            204: {"description": "The job has ended, and no event follows Last-Event-ID."},
            **problem_responses(
                _400="Last-Event-ID is not a valid event id.",
                _404="The job does not exist or has expired.",
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
    token=ReadTokenQuery,
)

CANCEL_JOB: dict[str, Any] = {
    "responses": {
        202: {
            "description": "The job is running; its worker has been asked to stop it.",
            "model": CancelView,
        },
        **problem_responses(
            _404="The job does not exist or has expired.", _503="Redis does not answer."
        ),
    }
}
