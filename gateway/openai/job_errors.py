"""How a job may end other than well, as answers: the one table of kinds and statuses."""

from __future__ import annotations

from common import codec
from common.codec import Job
from common.contracts.jobs import DataField, ErrorKind, Status
from common.contracts.models import ModelKind
from common.contracts.tools import ToolKind
from gateway.lookup import places
from gateway.problems import Problem, retry_headers

#: Statuses by the kind of a job's error; any other is a 500.
STATUSES: dict[str, int] = {
    "invalid_payload": 400,
    ModelKind.REFUSED.value: 400,
    ToolKind.UNKNOWN.value: 400,
    ModelKind.FAILED.value: 502,
    ModelKind.BROKEN.value: 502,
    ModelKind.GARBAGE.value: 502,
    ModelKind.NO_MODEL.value: 503,
    ModelKind.UNAVAILABLE.value: 503,
    ToolKind.UNAVAILABLE.value: 503,
    "no_embedder": 503,
    "unknown_task": 503,
    ErrorKind.EXPIRED.value: 504,
    ErrorKind.TIMEOUT.value: 504,
    ModelKind.CONNECT_TIMEOUT.value: 504,
    ModelKind.FIRST_TOKEN_TIMEOUT.value: 504,
    ModelKind.IDLE_TIMEOUT.value: 504,
    ModelKind.TOTAL_TIMEOUT.value: 504,
}
#: As some proxies, and gRPC's mapping, write it: somebody did not want it any more.
CANCELED = 499
#: SDKs try again by themselves. A job has had all its attempts already.
NOT_AGAIN = {"X-Should-Retry": "false"}


def job_headers(job_id: str) -> dict[str, str]:
    """Which job an answer is of, and where it can be read."""
    return {"X-Job-Id": job_id, **places(job_id)}


def failure(job: Job) -> Problem:
    """The answer to a job that ended in any way but `done`."""
    headers = {**job_headers(job.job_id), **NOT_AGAIN}
    if job.status == Status.CANCELED.value:
        return Problem(CANCELED, "job_canceled", "The job was canceled.", headers=headers)
    error = codec.payload_object(job.error)
    kind = str(error.get(DataField.KIND.value) or "handler_error")
    told = str(error.get(DataField.MESSAGE.value) or "the job failed")
    return Problem(STATUSES.get(kind, 500), kind, told, headers=headers)


def expired(job_id: str) -> Problem:
    """There is no such job any more."""
    return Problem(
        504,
        "job_expired",
        "The job has expired before it could be answered; see JOB_TTL_S.",
        headers={**job_headers(job_id), **NOT_AGAIN},
    )


def stopping(job_id: str) -> Problem:
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
        headers=NOT_AGAIN,
    )
