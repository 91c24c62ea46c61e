"""What OpenAPI says of the routes of statistics, queues and the live page."""

from __future__ import annotations

from typing import Any

from gateway.admin.queue_models import PauseRequest
from gateway.http.openapi.schema import (
    header_parameter,
    problem_responses,
    query_parameter,
    request_body,
)
from gateway.jobs.openapi import SSE_EVENT

READ_STATS: dict[str, Any] = {
    "responses": problem_responses(
        _422="There is no such range or column.", _503="Redis does not answer."
    )
}

WATCH_ALL: dict[str, Any] = {
    "responses": {
        200: {
            "description": "`hello`, then `stats`, the numbers of each second, and `jobs`, those "
            "that have changed; until the client leaves.",
            "content": {
                "text/event-stream": {
                    "itemSchema": SSE_EVENT,
                    "example": "retry: 1000\nevent: hello\ndata: {…}\n\n"
                    "id: 1760000000000-0\nevent: stats\n"
                    'data: {"ts":1760000000000,"done":4,"depth":0,…}\n\n'
                    'event: jobs\ndata: {"jobs":[{"job_id":…,"status":"done",…}],"more":0}\n\n',
                },
                "application/x-ndjson": {"itemSchema": {}},
            },
        },
        **problem_responses(
            _400="Last-Event-ID is no stream id.",
            _406="Neither text/event-stream nor application/x-ndjson is accepted.",
            _422="There are no such events.",
            _503="Redis does not answer, or too many streams are open.",
        ),
    },
    "openapi_extra": {
        "parameters": [
            header_parameter(
                "Last-Event-ID", "Resume after this `stats` event.", "1760000000000-0"
            ),
            query_parameter("last_event_id", "The same, for clients that cannot set headers."),
            query_parameter(
                "only",
                "`stats`, `jobs`, or both, separated by a comma; both, unless given, as far as "
                "the key may.",
            ),
        ]
    },
}

LIST_QUEUES: dict[str, Any] = {"responses": problem_responses(_503="Redis does not answer.")}

_REFUSALS: dict[int | str, dict[str, Any]] = problem_responses(
    _404="There is no such queue.",
    _409="It is a queue of BullMQ.",
    _503="Redis does not answer, or takes no writes.",
)

PAUSE: dict[str, Any] = {
    "responses": {
        **problem_responses(
            _400="The body is no JSON.",
            _413="The body is too long.",
            _415="The body is not declared as JSON.",
            _422="The body does not fit the schema.",
        ),
        **_REFUSALS,
    },
    "openapi_extra": {
        "requestBody": request_body(PauseRequest, {"why": "maintenance"}, required=False),
    },
}

RESUME: dict[str, Any] = {"responses": _REFUSALS}
