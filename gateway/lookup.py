"""Finding the job a request is about, and waiting until there is news of it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

from starlette.requests import Request

from common.codec import Job
from common.contracts.jobs import JobField
from gateway.problems import Problem
from gateway.state import GatewayState, state_of

#: What a job id may look like. Ours are UUIDs; a foreign gateway's may differ, within reason.
JOB_ID = re.compile(r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")


def checked_job_id(request: Request) -> str:
    """The id in the path; what cannot be one is refused before Redis is asked."""
    job_id: str = request.path_params[JobField.JOB_ID.value]
    if not JOB_ID.match(job_id):
        raise Problem(404, "job_not_found", "No job can have this id; ids are UUIDs.")
    return job_id


async def find_job(state: GatewayState, job_id: str) -> Job:
    """The job, or a 404."""
    job = await state.store.get(job_id)
    if job is None:
        raise Problem(404, "job_not_found", "There is no such job. It may have expired; see ttl_s.")
    return job


async def wait_for_news(
    request: Request, job: Job, is_news: Callable[[Job], bool], wait_s: float
) -> Job:
    """The job as soon as it is news; as it stands when the time is up or the client has left."""
    state = state_of(request)
    watch = state.hub.watch(job.job_id, await state.hub.last_position(job.job_id))

    async def follow() -> None:
        nonlocal job
        while not state.hub.closing:
            # Read after the position was taken, so that no change can fall in between.
            job = await find_job(state, job.job_id)
            if job.terminal or is_news(job) or not await watch.next_batch():
                return

    following = asyncio.ensure_future(follow())
    leaving = asyncio.ensure_future(_client_leaves(request))
    try:
        await asyncio.wait(
            {following, leaving}, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED
        )
        if following.done():
            following.result()  # raises what befell it
        return job
    finally:
        watch.close()
        for task in (following, leaving):
            task.cancel()
        await asyncio.gather(following, leaving, return_exceptions=True)


async def _client_leaves(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
