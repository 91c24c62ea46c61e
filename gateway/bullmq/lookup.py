"""Finding the job of a queue that a request is about, and showing it."""

from __future__ import annotations

from starlette.requests import Request

from common import codec, logs
from common.bullmq.job import BullJob
from common.bullmq.queue import BullQueue
from common.contracts.bullmq import BullField
from gateway.bullmq import paths
from gateway.bullmq.queues import BullQueues
from gateway.callers import caller_of
from gateway.problems import Problem
from gateway.state import state_of

#: Schedulers name their jobs `repeat:…`; longer than this nobody names any.
LONGEST_ID = 1024


def queues_of(request: Request) -> BullQueues:
    """The queues behind a request."""
    return state_of(request).bullmq


def queue_of(request: Request) -> BullQueue:
    """The queue that its path names, or a 404."""
    return queues_of(request).find(request.path_params[paths.QUEUE])


def job_id_of(request: Request) -> str:
    """The id in the path. Other tenants' jobs are not there, and nothing tells them from those
    that never were."""
    job_id: str = request.path_params[paths.JOB]
    if len(job_id) > LONGEST_ID or not caller_of(request).may_see(job_id):
        raise no_such_job()
    logs.job_id.set(job_id)
    return job_id


async def find_job(request: Request) -> BullJob:
    """The job, or a 404."""
    queue, job_id = queue_of(request), job_id_of(request)
    job = await queue.look(job_id)
    if job is None:
        raise no_such_job()
    return job


def no_such_job() -> Problem:
    """It never was, or is no more."""
    return Problem(
        404,
        "job_not_found",
        "There is no such job in this queue. It may have been removed; see removeOnComplete.",
    )


def body_of(job: BullJob) -> bytes:
    """A job as JSON: `BullJobView`, its JSON spliced in as it is stored."""
    return codec.dumps(
        {
            "id": job.job_id,
            "queue": job.queue,
            "name": job.name,
            "state": job.state.value,
            BullField.DATA.value: codec.fragment(job.data),
            "opts": codec.fragment(job.opts, empty={}),
            "progress": codec.fragment(job.progress, empty=0),
            "returnvalue": codec.fragment(job.return_value),
            "failedReason": job.failed_reason,
            "stacktrace": codec.fragment(job.stacktrace, empty=[]),
            "attemptsMade": job.attempts_made,
            "attemptsStarted": job.attempts_started,
            "stalledCounter": job.stalled,
            "priority": job.priority,
            "delay": job.delay,
            "timestamp": job.timestamp,
            "processedOn": job.processed_on,
            "finishedOn": job.finished_on,
            "processedBy": job.processed_by,
            "parentKey": job.parent_key,
        }
    )
