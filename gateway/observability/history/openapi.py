"""What OpenAPI says of the routes of statistics, queues and the live page."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query

from gateway.http.headers import LastEventId, LastEventIdQuery
from gateway.http.openapi.schema import problem_responses
from gateway.http.routing import declare
from gateway.jobs.openapi import SSE_EVENT

READ_STATS: dict[str, Any] = {
    "responses": problem_responses(_422="Unknown range or column.", _503="Redis does not answer.")
}

WATCH_ALL: dict[str, Any] = {
    "responses": {
        200: {
            "description": "`hello`, then `stats` with the values of each second and `jobs` with "
            "changed jobs, until the client disconnects.",
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
            _400="Last-Event-ID is not a valid stream id.",
            _406="Neither text/event-stream nor application/x-ndjson is accepted.",
            _422="Unknown event type.",
            _503="Redis does not answer, or too many streams are open.",
        ),
    },
    "dependencies": [
        declare(
            last_event_id=LastEventId,
            last_event_id_query=LastEventIdQuery,
            only=Annotated[
                str | None,
                Query(
                    description="`stats`, `jobs`, or both, separated by a comma. By default all "
                    "that the key may read."
                ),
            ],
        )
    ],
}
