"""Finding the workflow job that a request is about."""

from __future__ import annotations

from starlette.requests import Request

from common import logs
from common.contracts.access import Scope
from common.contracts.jobs import JobField
from common.contracts.workflow import JOB_ID
from common.workflow.records import WorkflowJob
from gateway.callers import Caller, caller_of
from gateway.state import state_of
from gateway.workflow.envelope import no_such_job

#: No id of ours is longer.
MOST_CHARS = 64


async def find_job(request: Request) -> WorkflowJob:
    """The job of the path, or a 404: also where it is another tenant's."""
    job_id = job_id_of(request)
    job = await state_of(request).workflow_reader.snapshot(job_id)
    if job is None or not may_see(caller_of(request), job):
        raise no_such_job()
    return job


def job_id_of(request: Request) -> str:
    """The id in the path; what cannot be one is refused before Redis is asked."""
    job_id: str = request.path_params[JobField.JOB_ID.value]
    if len(job_id) > MOST_CHARS or not JOB_ID.match(job_id):
        raise no_such_job()
    logs.job_id.set(job_id)
    return job_id


def may_read(request: Request) -> bool:
    """Whether whoever asks may see what comes of it."""
    return caller_of(request).may(Scope.JOBS_READ)


def may_see(caller: Caller, job: WorkflowJob) -> bool:
    """Whether there is such a job, as far as this caller is concerned."""
    return caller.sees_all or (bool(caller.tenant) and caller.tenant == job.tenant)
