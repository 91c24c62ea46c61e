"""Problems for requests that exceed a limit, with Retry-After."""

from __future__ import annotations

import math

from starlette.requests import Request

from sluice.common.contracts.jobs import Task
from sluice.common.errors import QueueFull, QuotaExceeded, RateLimited, StoreUnavailable
from sluice.common.text import plural
from sluice.gateway.auth.callers import Caller, caller_of
from sluice.gateway.events.slots import STREAM_SLOT
from sluice.gateway.http.problems import Problem, retry_headers
from sluice.gateway.jobs.backpressure import DEFAULT_RETRY_S, bound_retry_s
from sluice.gateway.state import GatewayState, state_of


def queue_full(state: GatewayState, full: QueueFull) -> Problem:
    """The backlog has reached its limit."""
    limit = state.backlog_limit
    return Problem(
        429,
        "queue_full",
        f"{plural(full.backlog, 'job is', 'jobs are')} waiting or running; "
        f"{plural(limit, 'is', 'are')} allowed. Try again later.",
        headers=retry_headers(state.drain_rate.retry_after_s(full.backlog, limit)),
    )


async def schedule_full(state: GatewayState, waiting: int) -> Problem:
    """The schedule has reached its limit; it has space again when the next job is due."""
    try:
        next_ms = (await state.queue.due_jobs(1)).next_ms
    except StoreUnavailable:
        next_ms = None
    seconds = DEFAULT_RETRY_S if next_ms is None else next_ms / 1000
    return Problem(
        429,
        "schedule_full",
        f"{plural(waiting, 'job is', 'jobs are')} scheduled; "
        f"{plural(state.schedule_limit, 'is', 'are')} allowed. Try again later, or "
        "without a delay.",
        headers=retry_headers(bound_retry_s(seconds)),
    )


def rate_limited(limited: RateLimited) -> Problem:
    """The key exceeds its rate. A retry after Retry-After-Ms is accepted."""
    return Problem(
        429,
        "rate_limited",
        "This API key sends jobs faster than its rate allows; see /v1/whoami.",
        headers={
            "Retry-After": str(max(1, math.ceil(limited.wait_ms / 1000))),
            "Retry-After-Ms": str(max(1, limited.wait_ms)),
        },
    )


def quota_exceeded(state: GatewayState, exceeded: QuotaExceeded, most: int) -> Problem:
    """The key has reached its limit of unfinished jobs."""
    return Problem(
        429,
        "quota_exceeded",
        f"{plural(exceeded.active, 'job of this API key has', 'jobs of this API key have')} not "
        f"ended; {plural(most, 'is', 'are')} allowed. Try again when one has.",
        headers=retry_headers(state.drain_rate.retry_after_s(exceeded.active, most)),
    )


def check_streams(request: Request) -> None:
    """Count the request as an event stream or long poll until it is over; raises a problem if the
    process or the caller's key has too many."""
    if STREAM_SLOT not in request.scope:
        slots = state_of(request).stream_slots
        request.scope[STREAM_SLOT] = slots.take(caller_of(request))


def may_wait(request: Request) -> bool:
    """The same for a request that has done its work: without a slot it does not wait."""
    try:
        check_streams(request)
    except Problem:
        return False
    return True


def check_tool_jobs(caller: Caller, work: str) -> None:
    """Raise a problem if a key is not allowed the `tool` jobs that do the `work` of a feature."""
    if caller.tasks is not None and Task.TOOL.value not in caller.tasks:
        allowed = ", ".join(sorted(caller.tasks))
        raise Problem(
            403,
            "task_not_allowed",
            f"{work} as `{Task.TOOL.value}` jobs, and this API key is allowed only: {allowed}.",
        )
