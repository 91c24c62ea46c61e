"""What OpenAPI says of the BullMQ door."""

from __future__ import annotations

from typing import Any

from gateway.features.bullmq.models import EXAMPLE_REQUEST, AddRequest, RemoveJobResponse
from gateway.http import paths
from gateway.http.openapi.schema import (
    header_parameter,
    path_parameter,
    problem_responses,
    request_body,
)
from gateway.jobs.openapi import stream_responses

_QUEUE = path_parameter(
    paths.BULLMQ_QUEUE_PARAM,
    "A queue that BULLMQ_ADD_QUEUES names; braces, where it has some, belong to its name.",
    "video-generation",
)
_ID = path_parameter(
    paths.BULLMQ_JOB_PARAM, "The id from the answer that added it, or from Node.", "1"
)
_GONE = "No such queue or job, or no longer."
_AWAY = "Redis does not answer."
_EVENT_ID = "1760000000000-0"
_EXAMPLE_EVENT = (
    f"id: {_EVENT_ID}\nevent: progress\n"
    'data: {"type":"progress","ts":1760000000000,"step":"bullmq.events",'
    '"data":{"jobId":"1","data":25}}\n\n'
)

ADD: dict[str, Any] = {
    "responses": problem_responses(
        _400="The body is no JSON, or nested too deep; or the Idempotency-Key is malformed.",
        _403="The key may not add jobs, or not of this name; or it has limits that are not kept "
        "in BullMQ's queues.",
        _404="No such queue.",
        _413="The body or the data is too long.",
        _415="The body is not declared as JSON.",
        _422="The body does not fit the schema, or the Idempotency-Key came with another request.",
        _429="As many jobs of the queue have not ended as may; see BULLMQ_MAX_UNFINISHED.",
        _503="Redis does not answer, or the box is short of memory or too hot; Retry-After says "
        "when to come back.",
    ),
    "openapi_extra": {
        "parameters": [
            _QUEUE,
            header_parameter(
                "Idempotency-Key",
                "Any unique text, which becomes the job's id; the same request under the same key "
                "adds one job only. Not together with `jobId`.",
                "video-1742",
            ),
        ],
        "requestBody": request_body(AddRequest, EXAMPLE_REQUEST),
    },
}
READ: dict[str, Any] = {
    "responses": {
        304: {"description": "Unchanged since the version named in If-None-Match."},
        **problem_responses(_404=_GONE, _503=_AWAY),
    },
    "openapi_extra": {
        "parameters": [
            _QUEUE,
            _ID,
            header_parameter(
                "If-None-Match", "An ETag from an earlier answer.", '"0123456789abcdef"'
            ),
        ]
    },
}
REMOVE: dict[str, Any] = {
    "responses": {
        202: {
            "description": "It runs. A worker of Sluice will end it; Node's own finish it.",
            "model": RemoveJobResponse,
        },
        **problem_responses(
            _404=_GONE,
            _409="It is the next one of a scheduler, or one of its children runs.",
            _503=_AWAY,
        ),
    },
    "openapi_extra": {"parameters": [_QUEUE, _ID]},
}
WATCH: dict[str, Any] = stream_responses(
    _ID, "`completed`, `failed` or `removed`", _EVENT_ID, _EXAMPLE_EVENT
)
WATCH_QUEUE: dict[str, Any] = stream_responses(
    _QUEUE, "the client leaves", _EVENT_ID, _EXAMPLE_EVENT
)
WATCH["openapi_extra"]["parameters"].insert(0, _QUEUE)
WATCH["responses"].update(problem_responses(_404=_GONE))
WATCH_QUEUE["responses"].pop(204)
WATCH_QUEUE["responses"].update(problem_responses(_404="No such queue."))
WATCH_QUEUE["responses"][200]["description"] = (
    "The queue's events from now on, or after Last-Event-ID."
)
