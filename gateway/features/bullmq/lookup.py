"""Finds the BullMQ queue and job of a request, and renders the job."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Path
from starlette.requests import Request

from sluice.common import codec
from sluice.common.contracts.bullmq import BullField
from sluice.common.features.bullmq.job import BullJob
from sluice.common.features.bullmq.queue import BullQueue
from sluice.common.observability import logs
from sluice.gateway.auth.callers import caller_of
from sluice.gateway.features.bullmq.queues import bullmq_of
from sluice.gateway.http import paths
from sluice.gateway.http.problems import Problem

#: Longest accepted id; those of schedulers (`repeat:…`) are the longest.
LONGEST_ID = 1024


QueuePath = Annotated[
    str,
    Path(
        description="A queue in BULLMQ_ADD_QUEUES. Braces are part of its name.",
        examples=["video-generation"],
    ),
]
JobPath = Annotated[
    str,
    Path(description="The id from the response that added the job, or from Node.", examples=["1"]),
]


def queue_of(request: Request) -> BullQueue:
    """The queue in the path; raises 404 for an unknown one."""
    return bullmq_of(request).find(request.path_params[paths.BULLMQ_QUEUE_PARAM])


def job_id_of(request: Request) -> str:
    """The id in the path; raises 404 for another tenant's, as for one that does not exist."""
    job_id: str = request.path_params[paths.BULLMQ_JOB_PARAM]
    if len(job_id) > LONGEST_ID or not caller_of(request).may_see(job_id):
        raise job_not_found()
    logs.job_id.set(job_id)
    return job_id


async def _queue_param(request: Request, queue: QueuePath) -> BullQueue:
    return queue_of(request)


async def _job_id_param(request: Request, id: JobPath) -> str:
    return job_id_of(request)


#: Parameters of routes: the queue and the job's id in the path, checked.
CheckedQueue = Annotated[BullQueue, Depends(_queue_param)]
CheckedJobId = Annotated[str, Depends(_job_id_param)]


def job_not_found() -> Problem:
    """The job never existed, or was removed."""
    return Problem(
        404,
        "job_not_found",
        "There is no such job in this queue. It may have been removed; see removeOnComplete.",
    )


def body_of(job: BullJob) -> bytes:
    """A job as JSON (`BullJobView`); stored JSON is inserted unchanged."""
    return codec.dumps(
        {
            "id": job.job_id,
            "queue": job.queue,
            "name": job.name,
            "state": job.state.value,
            BullField.DATA: codec.node_fragment(job.data),
            "opts": codec.node_fragment(job.opts, empty={}),
            "progress": codec.node_fragment(job.progress, empty=0),
            "returnvalue": codec.node_fragment(job.return_value),
            "failedReason": job.failed_reason,
            "stacktrace": codec.node_fragment(job.stacktrace, empty=[]),
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
