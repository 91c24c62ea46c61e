"""OpenAPI descriptions of the BullMQ routes."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends

from sluice.gateway.features.bullmq.lookup import JobPath, QueuePath
from sluice.gateway.features.bullmq.models import EXAMPLE_REQUEST, AddRequest, RemoveJobResponse
from sluice.gateway.http.openapi.schema import problem_responses
from sluice.gateway.http.routing import JsonBody
from sluice.gateway.jobs.openapi import event_stream

AddBody = Annotated[AddRequest, Depends(JsonBody(AddRequest, EXAMPLE_REQUEST))]
_GONE = "The queue or the job does not exist."
_AWAY = "Redis does not answer."
_EXAMPLE_EVENT = (
    "id: 1760000000000-0\nevent: progress\n"
    'data: {"type":"progress","ts":1760000000000,"step":"bullmq.events",'
    '"data":{"jobId":"1","data":25}}\n\n'
)

ADD: dict[str, Any] = {
    "responses": problem_responses(
        _400="The body is not JSON or nested too deeply, or the Idempotency-Key is invalid.",
        _403="The key is not allowed to add jobs of this name, has limits that cannot be "
        "enforced in BullMQ queues, or belongs to a tenant whose job would affect other jobs.",
        _404="No such queue.",
        _413="The body or the data is too long.",
        _422="The body does not match the schema, or the Idempotency-Key was used with "
        "another request.",
        _429="The queue has too many unfinished jobs; see BULLMQ_MAX_UNFINISHED.",
        _503="Redis does not answer, or the host is short of memory or too hot; see Retry-After.",
    )
}
READ: dict[str, Any] = {
    "responses": {
        304: {"description": "Not changed since the version in If-None-Match."},
        **problem_responses(_404=_GONE, _503=_AWAY),
    }
}
REMOVE: dict[str, Any] = {
    "responses": {
        202: {
            "description": "The job is running. A Sluice worker stops it; Node workers finish it.",
            "model": RemoveJobResponse,
        },
        **problem_responses(
            _404=_GONE,
            _409="The job is the next one of a scheduler, or one of its children is running.",
            _503=_AWAY,
        ),
    }
}
WATCH: dict[str, Any] = event_stream(
    "`completed`, `failed` or `removed`", _EXAMPLE_EVENT, queue=QueuePath, id=JobPath
)
WATCH_QUEUE: dict[str, Any] = event_stream(
    "the client disconnects", _EXAMPLE_EVENT, queue=QueuePath
)
WATCH["responses"].update(problem_responses(_404=_GONE))
WATCH_QUEUE["responses"].pop(204)
WATCH_QUEUE["responses"].update(problem_responses(_404="No such queue."))
WATCH_QUEUE["responses"][200]["description"] = (
    "The queue's events from now on, or after Last-Event-ID."
)
