"""`GET /v1/stream`: history points and job changes as a live event stream."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from sluice.common.contracts.access import Scope
from sluice.common.contracts.stats import ONE_SECOND, FeedEvent
from sluice.gateway.auth.callers import Caller, caller_of
from sluice.gateway.dashboard.activity.feed import history_of
from sluice.gateway.events.response import (
    SEND_TIMEOUT_S,
    EventStreamResponse,
    hello_frame,
    negotiate_media_type,
    relay,
    resume_position,
)
from sluice.gateway.http.headers import LastEventId, LastEventIdQuery
from sluice.gateway.http.openapi.schema import problem_responses
from sluice.gateway.http.problems import FieldProblem, Problem
from sluice.gateway.http.routing import DirectRoute, declare
from sluice.gateway.jobs.openapi import SSE_EVENT
from sluice.gateway.jobs.refusals import check_streams
from sluice.gateway.state import state_of

router = APIRouter(route_class=DirectRoute, tags=["health"])

_SCOPES = {
    FeedEvent.STATS: (Scope.METRICS, Scope.UI),
    FeedEvent.JOBS: (Scope.JOBS_READ, Scope.UI),
}

_WATCH_ALL: dict[str, Any] = {
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


@router.get("/v1/stream", summary="Watch statistics and job changes", **_WATCH_ALL)
async def watch_all(request: Request) -> Response:
    """Streams one history point per second and job changes until the client disconnects."""
    media_type, after = negotiate_media_type(request), resume_position(request)
    state, caller = state_of(request), caller_of(request)
    services = history_of(request)
    events = _requested_events(request, caller)
    check_streams(request)
    points = None
    begin = 0
    if FeedEvent.STATS in events:
        points = await services.reader.points(ONE_SECOND)
        if after is None:
            points = points[-1:]
        else:
            begin = min(after[0], points[-1].ts if points else 0)
            points = [point for point in points if point.ts > begin]
            state.hub.metrics.resumes += 1
    watcher = caller if FeedEvent.JOBS in events else None
    if watcher is not None:
        await services.feed.prepare()
    opening = partial(services.feed.subscribe, watcher, points, begin)
    facts = {"only": [event.value for event in events]}
    frames = relay(state, caller, opening, hello_frame(state, facts), media_type, numbered=True)
    return EventStreamResponse(state.hub, frames, media_type, SEND_TIMEOUT_S)


def _requested_events(request: Request, caller: Caller) -> list[FeedEvent]:
    """The event types in the query, or all that the caller may read."""
    allowed = [
        event for event, scopes in _SCOPES.items() if any(caller.may(scope) for scope in scopes)
    ]
    given = request.query_params.get("only")
    if given is None:
        return allowed
    names = dict.fromkeys(name.strip() for name in given.split(",") if name.strip())
    known = {event.value: event for event in FeedEvent}
    if not names or not names.keys() <= known.keys():
        detail = f"must be a comma-separated list of: {', '.join(known)}"
        fault = FieldProblem(pointer="/only", detail=detail)
        raise Problem(422, "invalid_request", "Unknown event type in `only`.", [fault])
    requested = [known[name] for name in names]
    for event in requested:
        if event not in allowed:
            scopes = " or ".join(scope.value for scope in _SCOPES[event])
            raise Problem(
                403,
                "insufficient_scope",
                f"This API key may not watch `{event.value}`; it needs the scope {scopes}.",
            )
    return requested
