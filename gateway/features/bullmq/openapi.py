"""What OpenAPI says of the BullMQ door."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends

from gateway.features.bullmq.lookup import JobPath, QueuePath
from gateway.features.bullmq.models import EXAMPLE_REQUEST, AddRequest, RemoveJobResponse
from gateway.http.openapi.schema import problem_responses
from gateway.http.routing import JsonBody
from gateway.jobs.openapi import event_stream

AddBody = Annotated[AddRequest, Depends(JsonBody(AddRequest, EXAMPLE_REQUEST))]
_GONE = "No such queue or job, or no longer."
_AWAY = "Redis does not answer."
_EXAMPLE_EVENT = (
    "id: 1760000000000-0\nevent: progress\n"
    'data: {"type":"progress","ts":1760000000000,"step":"bullmq.events",'
    '"data":{"jobId":"1","data":25}}\n\n'
)

ADD: dict[str, Any] = {
    "responses": problem_responses(
        _400="The body is not JSON or nested too deeply, or the Idempotency-Key is invalid.",
        _403="The key may not add jobs, or not of this name; or it has limits that are not kept "
        "in BullMQ's queues.",
        _404="No such queue.",
        _413="The body or the data is too long.",
        _415="The Content-Type of the body is not JSON.",
        _422="The body does not match the schema, or the Idempotency-Key was used with "
        "another request.",
        _429="As many jobs of the queue have not ended as may; see BULLMQ_MAX_UNFINISHED.",
        _503="Redis does not answer, or the host is short of memory or too hot; Retry-After says "
        "when to come back.",
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
            "description": "It runs. A worker of Sluice will end it; Node's own finish it.",
            "model": RemoveJobResponse,
        },
        **problem_responses(
            _404=_GONE,
            _409="It is the next one of a scheduler, or one of its children runs.",
            _503=_AWAY,
        ),
    }
}
WATCH: dict[str, Any] = event_stream(
    "`completed`, `failed` or `removed`", _EXAMPLE_EVENT, queue=QueuePath, id=JobPath
)
WATCH_QUEUE: dict[str, Any] = event_stream("the client leaves", _EXAMPLE_EVENT, queue=QueuePath)
WATCH["responses"].update(problem_responses(_404=_GONE))
WATCH_QUEUE["responses"].pop(204)
WATCH_QUEUE["responses"].update(problem_responses(_404="No such queue."))
WATCH_QUEUE["responses"][200]["description"] = (
    "The queue's events from now on, or after Last-Event-ID."
)
