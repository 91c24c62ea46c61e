"""Work on documents is a `rag` job like any other; here its end becomes the answer of a request."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from common import codec
from common.codec import Job
from common.contracts.access import Scope
from common.contracts.jobs import DataField, JobField, Status, Task
from gateway.callers import caller_of
from gateway.lookup import ended_within, places, wait_s_of
from gateway.problems import Problem
from gateway.state import state_of
from gateway.submitting import Submitted, submit
from gateway.uploads import Upload

#: Seconds the record of a search or a deletion is kept: nobody comes back for it.
BRIEF_TTL_S = 600
#: How long a search or a deletion is waited for where the client does not say.
USUAL_WAIT_S = 30.0
#: Errors that are the document's or the question's own fault, by kind.
_OWN_FAULT = frozenset(
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
    request: Request, payload: dict[str, Any], *, brief: bool, upload: Upload | None = None
) -> Submitted:
    """Make the job."""
    body: dict[str, Any] = {JobField.TASK.value: Task.RAG.value, JobField.PAYLOAD.value: payload}
    if brief:
        body[JobField.TTL_S.value] = BRIEF_TTL_S
    return await submit(request, body, upload)


async def ended(request: Request, made: Submitted, usual_wait_s: float = 0.0) -> Job | None:
    """The job's end, if it comes while the client waits; a Problem where it came to nothing."""
    wait_s = wait_s_of(request) or min(usual_wait_s, state_of(request).settings.max_wait_s)
    if not wait_s or not caller_of(request).may(Scope.JOBS_READ):
        return None
    job = await ended_within(request, made.job_id, wait_s)
    if job is None or job.status == Status.DONE.value:
        return job
    if job.status == Status.CANCELED.value:
        raise Problem(502, "job_failed", f"The job {made.job_id} was canceled.")
    error = codec.payload_object(job.error)
    detail = str(error.get(DataField.MESSAGE.value) or "see the job")
    if error.get(DataField.KIND.value) in _OWN_FAULT:
        raise Problem(422, "document_refused", detail)
    raise Problem(502, "job_failed", f"The job {made.job_id} has failed: {detail}")


def accepted(made: Submitted) -> Response:
    """It takes longer: where to look for it."""
    headers = {**places(made.job_id), **made.headers}
    body = codec.dumps({JobField.JOB_ID.value: made.job_id})
    return Response(body, 202, headers, "application/json")
