"""`/v1/bullmq/{queue}/jobs`: add a job to a queue of BullMQ, read it, take it out."""

from __future__ import annotations

import hashlib

from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from common.contracts.bullmq import BullAnswer
from gateway.bullmq import adding, paths
from gateway.bullmq.lookup import body_of, find_job, job_id_of, no_such_job, queue_of
from gateway.bullmq.models import BullJobView, JobAdded, JobRemoved, Outcome, Removal
from gateway.json_body import read_json
from gateway.openapi import direct_route
from gateway.openapi_bullmq import ADD, READ, REMOVE
from gateway.problems import Problem

_JSON = "application/json"

router = APIRouter(route_class=direct_route(APIRoute), tags=["bullmq"])


@router.post(paths.JOBS, status_code=202, response_model=JobAdded, summary="Add a job", **ADD)
async def add_job(request: Request) -> Response:
    """Put a job into a queue that workers of BullMQ, Node's or ours, take jobs from."""
    queue_of(request)  # before a body is read for a queue that is not there
    taken = await adding.add(request, await read_json(request))
    view = JobAdded(id=taken.job_id, queue=taken.queue, outcome=taken.outcome)
    headers = {"Location": paths.place_of(taken.queue, taken.job_id)}
    if taken.outcome is Outcome.REPLAYED:
        headers["Idempotent-Replayed"] = "true"
    return Response(view.model_dump_json(), 202, headers, _JSON)


@router.get(paths.ONE, response_model=BullJobView, summary="Read a job of a queue", **READ)
async def read_bull_job(request: Request) -> Response:
    """The job as it stands, whoever has added it and whoever runs it."""
    job = await find_job(request)
    body = body_of(job)
    etag = f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
    headers = {"ETag": etag, "Cache-Control": "no-cache"}
    known = request.headers.get("if-none-match", "").split(",")
    if any(version.strip().removeprefix("W/") in (etag, "*") for version in known):
        return Response(None, 304, headers)
    if not job.ended:
        headers["Retry-After"] = "1"
    return Response(body, 200, headers, _JSON)


@router.delete(
    paths.ONE, response_model=JobRemoved, summary="Remove a job of a queue, or end it", **REMOVE
)
async def remove_job(request: Request) -> Response:
    """Take it out of the queue, with its children; one that runs is asked to end."""
    queue, job_id = queue_of(request), job_id_of(request)
    answer = await queue.remove(job_id)
    if answer is BullAnswer.MISSING:
        raise no_such_job()
    if answer is BullAnswer.SCHEDULED:
        raise Problem(
            409,
            "scheduled_job",
            "This is the next job of a scheduler, which would make another. Remove the scheduler.",
        )
    if answer is BullAnswer.LOCKED:
        raise Problem(409, "child_running", "A child of this job runs. Remove that one first.")
    canceling = answer is BullAnswer.CANCELING
    outcome = Removal.CANCELING if canceling else Removal.REMOVED
    view = JobRemoved(id=job_id, queue=queue.keys.queue, outcome=outcome)
    return Response(view.model_dump_json(), 202 if canceling else 200, media_type=_JSON)
