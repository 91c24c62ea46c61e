"""Problems for jobs that fail, are canceled or expire."""

from __future__ import annotations

from sluice.common import codec
from sluice.common.codec import Job
from sluice.common.contracts.jobs import DataField, ErrorKind, Status
from sluice.common.contracts.models import ModelErrorKind, ToolErrorKind
from sluice.gateway.http.problems import Problem, retry_headers
from sluice.gateway.jobs.lookup import location_headers

#: Status by kind of error; 500 for any other kind.
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
#: "Client closed request", as nginx and gRPC's mapping use it.
CANCELED = 499
#: Asks SDKs not to retry: the job has had all its attempts.
NO_RETRY_HEADERS = {"X-Should-Retry": "false"}


def job_headers(job_id: str) -> dict[str, str]:
    """Headers that identify the job."""
    return {"X-Job-Id": job_id, **location_headers(job_id)}


def job_failure(job: Job) -> Problem:
    """The problem of a job that did not end as `done`."""
    headers = {**job_headers(job.job_id), **NO_RETRY_HEADERS}
    if job.status == Status.CANCELED.value:
        return Problem(CANCELED, "job_canceled", "The job was canceled.", headers=headers)
    error = codec.parse_payload(job.error)
    kind = str(error.get(DataField.KIND) or "handler_error")
    message = str(error.get(DataField.MESSAGE) or "the job failed")
    return Problem(STATUSES.get(kind, 500), kind, message, headers=headers)


def job_expired(job_id: str) -> Problem:
    """The job expired while the request waited."""
    return Problem(
        504,
        "job_expired",
        "The job expired before its result could be read; see JOB_TTL_S.",
        headers={**job_headers(job_id), **NO_RETRY_HEADERS},
    )


def gateway_stopping(job_id: str) -> Problem:
    """The gateway stops while a request waits; the job continues."""
    return Problem(
        503,
        "gateway_stopping",
        f"This gateway is stopping. The job continues; read it at /v1/jobs/{job_id}, or repeat the "
        "request with its Idempotency-Key.",
        headers={**job_headers(job_id), **retry_headers(1.0)},
    )


def answer_restarted(job_id: str) -> Problem:
    """A new attempt's answer differs from what was sent already."""
    return Problem(
        502,
        "answer_restarted",
        "The worker died during the answer, and the answer of the next attempt differs. "
        f"It can be read at /v1/jobs/{job_id}.",
    )


def answer_invalid(what: str) -> Problem:
    """The job is done, but its result has an unexpected form."""
    return Problem(
        502,
        "worker_answer_invalid",
        f"The result is not that of {what}: another handler is registered for this task.",
        headers=NO_RETRY_HEADERS,
    )
