"""Runs the `rag` jobs of requests and turns their results into responses."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from sluice.common import codec
from sluice.common.codec import Job
from sluice.common.contracts.access import Scope
from sluice.common.contracts.jobs import DataField, JobField, Status, Task
from sluice.gateway.auth.callers import caller_of
from sluice.gateway.http.problems import Problem
from sluice.gateway.jobs.lookup import location_headers, wait_until_ended
from sluice.gateway.jobs.submit import DocumentUpload, Submission, submit
from sluice.gateway.state import state_of

#: Seconds the job of a search or a deletion is kept.
BRIEF_TTL_S = 600
#: Seconds to wait for a search or a deletion without `Prefer`.
DEFAULT_WAIT_S = 30.0
#: Kinds of errors that the request caused.
_CLIENT_ERROR_KINDS = frozenset(
    {
        "invalid_payload",
        "unreadable_document",
        "unsupported_media_type",
        "document_too_long",
        "upload_gone",
        "namespace_full",
        "too_many_namespaces",
        "no_embedder",
    }
)


async def start(
    request: Request, payload: dict[str, Any], *, brief: bool, upload: DocumentUpload | None = None
) -> Submission:
    body: dict[str, Any] = {JobField.TASK: Task.RAG.value, JobField.PAYLOAD: payload}
    if brief:
        body[JobField.TTL_S] = BRIEF_TTL_S
    return await submit(request, body, upload)


async def wait_for_end(
    request: Request, submission: Submission, wait_s: float, usual_wait_s: float = 0.0
) -> Job | None:
    """The job if it ends in time, otherwise None; raises the problem of a failed job.

    `wait_s`: from the header Prefer. `usual_wait_s`: without that header.
    """
    wait_s = wait_s or min(usual_wait_s, state_of(request).settings.max_wait_s)
    if not wait_s or not caller_of(request).may(Scope.JOBS_READ):
        return None
    job = await wait_until_ended(request, submission.job_id, wait_s)
    if job is None or job.status == Status.DONE.value:
        return job
    if job.status == Status.CANCELED.value:
        raise Problem(502, "job_failed", f"The job {submission.job_id} was canceled.")
    error = codec.parse_payload(job.error)
    detail = str(error.get(DataField.MESSAGE) or "see the job")
    if error.get(DataField.KIND) in _CLIENT_ERROR_KINDS:
        raise Problem(422, "document_refused", detail)
    raise Problem(502, "job_failed", f"The job {submission.job_id} has failed: {detail}")


def accepted_response(submission: Submission) -> Response:
    """The response with the job's id, if the job has not ended in time."""
    headers = {**location_headers(submission.job_id), **submission.headers}
    body = codec.dumps({JobField.JOB_ID: submission.job_id})
    return Response(body, 202, headers, "application/json")
