"""How a job may end other than well, as answers: the one table of kinds and statuses."""

from __future__ import annotations

from common import codec
from common.codec import Job
from common.contracts.jobs import DataField, ErrorKind, Status
from common.contracts.models import ModelErrorKind, ToolErrorKind
from gateway.http.problems import Problem, retry_headers
from gateway.jobs.lookup import location_headers

#: Statuses by the kind of a job's error; any other is a 500.
STATUSES: dict[str, int] = {
    "invalid_payload": 400,
    ModelErrorKind.REFUSED: 400,
    ToolErrorKind.UNKNOWN: 400,
    ModelErrorKind.FAILED: 502,
    ModelErrorKind.BROKEN: 502,
    ModelErrorKind.GARBAGE: 502,
    ModelErrorKind.NO_MODEL: 503,
    ModelErrorKind.UNAVAILABLE: 503,
    ToolErrorKind.UNAVAILABLE: 503,
    "no_embedder": 503,
    "unknown_task": 503,
    ErrorKind.EXPIRED: 504,
    ErrorKind.TIMEOUT: 504,
    ModelErrorKind.CONNECT_TIMEOUT: 504,
    ModelErrorKind.FIRST_TOKEN_TIMEOUT: 504,
    ModelErrorKind.IDLE_TIMEOUT: 504,
    ModelErrorKind.TOTAL_TIMEOUT: 504,
}
#: As some proxies, and gRPC's mapping, write it: somebody did not want it any more.
CANCELED = 499
#: SDKs try again by themselves. A job has had all its attempts already.
NO_RETRY_HEADERS = {"X-Should-Retry": "false"}


def job_headers(job_id: str) -> dict[str, str]:
    """Which job an answer is of, and where it can be read."""
    return {"X-Job-Id": job_id, **location_headers(job_id)}


def job_failure(job: Job) -> Problem:
    """The answer to a job that ended in any way but `done`."""
    headers = {**job_headers(job.job_id), **NO_RETRY_HEADERS}
    if job.status == Status.CANCELED.value:
        return Problem(CANCELED, "job_canceled", "The job was canceled.", headers=headers)
    error = codec.parse_payload(job.error)
    kind = str(error.get(DataField.KIND) or "handler_error")
    told = str(error.get(DataField.MESSAGE) or "the job failed")
    return Problem(STATUSES.get(kind, 500), kind, told, headers=headers)


def job_expired(job_id: str) -> Problem:
    """There is no such job any more."""
    return Problem(
        504,
        "job_expired",
        "The job has expired before it could be answered; see JOB_TTL_S.",
        headers={**job_headers(job_id), **NO_RETRY_HEADERS},
    )


def gateway_stopping(job_id: str) -> Problem:
    """The gateway goes; the job does not."""
    return Problem(
        503,
        "gateway_stopping",
        f"This gateway is stopping. The job goes on and can be read at /v1/jobs/{job_id}; with an "
        "Idempotency-Key the same request is answered with it.",
        headers={**job_headers(job_id), **retry_headers(1.0)},
    )


def answer_restarted(job_id: str) -> Problem:
    """Another attempt says something else than what was sent already."""
    return Problem(
        502,
        "answer_restarted",
        "The worker was lost in the middle of the answer, and the next one answers differently. "
        f"Its answer can be read at /v1/jobs/{job_id}.",
    )


def answer_invalid(what: str) -> Problem:
    """The job is done, but its result is of another kind."""
    return Problem(
        502,
        "worker_answer_invalid",
        f"The worker's result is not that of {what}: another handler does this task.",
        headers=NO_RETRY_HEADERS,
    )
