"""Finds the job of a request, and waits until it changes or ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import Depends, Path
from starlette.requests import Request
from starlette.types import Receive

from sluice.common.codec import JOB_ID_PATTERN, Job
from sluice.common.contracts.jobs import JobField
from sluice.common.errors import StoreUnavailable
from sluice.common.observability import logs
from sluice.gateway.auth.callers import caller_of
from sluice.gateway.auth.middleware import invalid_key
from sluice.gateway.events.frames import Source
from sluice.gateway.http.headers import Prefer, parse_prefer_wait
from sluice.gateway.http.problems import Problem
from sluice.gateway.jobs.refusals import check_streams
from sluice.gateway.state import GatewayState, state_of

JobIdPath = Annotated[
    str,
    Path(
        description="The id from the response to the submission.",
        examples=["6f1c0f0e-8f0a-4a51-9a55-0d4a6c4f2b7e"],
    ),
]


def checked_job_id(request: Request) -> str:
    """The id in the path; raises 404 for an invalid id or another tenant's, without asking Redis.

    The response does not reveal whether another tenant's job exists.
    """
    return check_job_id(request, request.path_params[JobField.JOB_ID])


def check_job_id(request: Request, job_id: str) -> str:
    """The same for an id from elsewhere in the request."""
    if not JOB_ID_PATTERN.match(job_id):
        raise Problem(404, "job_not_found", "This is not a valid job id; ids are UUIDs.")
    if not caller_of(request).may_see(job_id):
        raise job_not_found()
    logs.job_id.set(job_id)
    return job_id


async def _job_id_param(request: Request, job_id: JobIdPath) -> str:
    return checked_job_id(request)


#: A parameter of a route: the id in the path, checked.
CheckedJobId = Annotated[str, Depends(_job_id_param)]


async def find_job(state: GatewayState, job_id: str) -> Job:
    job = await state.store.get(job_id)
    if job is None:
        raise job_not_found()
    return job


def job_not_found() -> Problem:
    """The job never existed, or has expired."""
    return Problem(404, "job_not_found", "There is no such job. It may have expired; see ttl_s.")


def wait_s_of(request: Request) -> float:
    """How long the client is willing to wait (`Prefer: wait=N`)."""
    lines = request.headers.getlist("prefer")
    return (
        parse_prefer_wait(", ".join(lines), state_of(request).settings.max_wait_s) if lines else 0.0
    )


async def _wait_s_param(request: Request, prefer: Prefer = None) -> float:
    return parse_prefer_wait(", ".join(prefer or ()), state_of(request).settings.max_wait_s)


#: A parameter of a route: how long the client is willing to wait.
WaitSeconds = Annotated[float, Depends(_wait_s_param)]


def location_headers(job_id: str, wait_s: float = 0.0) -> dict[str, str]:
    """Location of the job, Link to its events, and the wait that was applied."""
    url = f"/v1/jobs/{job_id}"
    headers = {"Location": url, "Link": f'<{url}/events>; rel="monitor"'}
    if wait_s:
        headers["Preference-Applied"] = f"wait={wait_s:.0f}"
    return headers


async def wait_until_ended(request: Request, job_id: str, wait_s: float) -> Job | None:
    """The job once it has ended; None if it has not ended in time or cannot be read.

    The request has done its work already, so an error while waiting does not fail it.
    """
    try:
        job = await find_job(state_of(request), job_id)
        if not job.terminal:
            job = await wait_for_change(request, job, lambda job: job.terminal, wait_s)
    except (Problem, StoreUnavailable):
        return None
    return job if job.terminal else None


async def wait_for_change(
    request: Request, job: Job, is_news: Callable[[Job], bool], wait_s: float
) -> Job:
    """The job as soon as `is_news` is true; otherwise its state at the timeout or disconnect.

    Raises a problem if the caller's key is revoked or expires meanwhile.
    """
    state = state_of(request)

    async def check() -> bool:
        nonlocal job
        job = await find_job(state, job.job_id)
        return job.terminal or is_news(job)

    await poll_until(request, state.hub.job(job.job_id), check, wait_s)
    return job


async def poll_until(
    request: Request,
    source: Source,
    check: Callable[[], Awaitable[bool]],
    wait_s: float,
    types: frozenset[str] = frozenset(),
) -> None:
    """Call `check` now and after each event (of `types`), until it returns true, the time is up or
    the client disconnects. Raises a problem if the caller's key is no longer valid, or if too many
    requests wait."""
    check_streams(request)
    state, caller = state_of(request), caller_of(request)
    hub = state.hub
    watch = hub.subscribe(source, await hub.last_position(source))

    async def follow() -> None:
        # `check` runs after the position was read, so that no change is missed in between.
        while not hub.closing and not await check():
            while batch := await watch.next_batch():
                if not types or any(not frame.id or frame.type in types for frame in batch):
                    break
            else:
                return

    following = asyncio.ensure_future(follow())
    leaving = asyncio.ensure_future(wait_for_disconnect(request.receive))
    try:
        await asyncio.wait(
            {following, leaving}, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED
        )
        if following.done():
            following.result()  # raises its exception
        if caller.may_lapse and not await state.access.callers.is_still_valid(caller):
            what = "read token" if caller.token_expires_s else "API key"
            raise invalid_key(f"The {what} was revoked or expired during the request.")
    finally:
        watch.close()
        for task in (following, leaving):
            task.cancel()
        await asyncio.gather(following, leaving, return_exceptions=True)


async def wait_for_disconnect(receive: Receive) -> None:
    """Returns when the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass
