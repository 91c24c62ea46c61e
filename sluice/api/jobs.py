"""Models and requests of the job API (`/v1/jobs`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sluice.api.parsing import (
    Page,
    model_reader,
    optional_cursor,
    parse_models,
    raw_field,
    read_job_id,
    require,
)
from sluice.errors import JobCanceled, JobFailed
from sluice.transport.request import (
    Request,
    Response,
    build_request,
    drop_none,
    new_idempotency_key,
    path_segment,
)

DONE, ERROR, CANCELED = "done", "error", "canceled"
#: Statuses of an ended job; also the types of its last event.
TERMINAL = (DONE, ERROR, CANCELED)
QUEUED, RUNNING = "queued", "running"
MESSAGE = "message"
#: Frames sent by the gateway itself; they have no id.
HELLO, GAP, GONE, SHUTDOWN, HEARTBEAT = "hello", "gap", "gone", "shutdown", "heartbeat"

JOBS, TOKENS = "/v1/jobs", "/v1/tokens"
#: Seconds that one request of a wait asks the gateway to hold the response.
WAIT_S = 20.0
#: Seconds between two requests of a wait, if the gateway responds immediately.
POLL_S = 1.0
Time = int | str | datetime
Names = str | Sequence[str]


@dataclass(frozen=True)
class Job:
    """A job. Times are Unix milliseconds."""

    job_id: str
    task: str
    status: str
    created_ts: int
    updated_ts: int
    ttl_s: int
    payload: Any = None
    result: Any = None
    error: Mapping[str, Any] | None = None
    raw: Mapping[str, Any] = raw_field()

    @property
    def ended(self) -> bool:
        return self.status in TERMINAL


@dataclass(frozen=True)
class JobSummary:
    """A job in a listing."""

    job_id: str
    task: str
    status: str
    created_ts: int
    updated_ts: int
    ttl_s: int
    error: Mapping[str, Any] | None = None
    raw: Mapping[str, Any] = raw_field()


@dataclass(frozen=True)
class JobPage(Page[JobSummary]):
    """One page of a listing. A short or empty page may still have a `next` cursor."""

    #: Number of jobs the gateway scanned for this page.
    looked_at: int = 0

    @property
    def jobs(self) -> Sequence[JobSummary]:
        return self.items


@dataclass(frozen=True)
class CancelResult:
    """The job's status after a cancel. `canceling`: the worker was asked to stop the job."""

    job_id: str
    status: str
    canceling: bool = False
    raw: Mapping[str, Any] = raw_field()


@dataclass(frozen=True)
class ReadToken:
    """A token with which a web page may read one job. `expires_ts`: Unix milliseconds."""

    token: str = field(repr=False)
    expires_ts: int
    raw: Mapping[str, Any] = raw_field()


@dataclass(frozen=True)
class Event:
    """An event of a job. Events of type `gap` and `gone` come from the gateway and have no id."""

    id: str
    type: str
    ts: int
    step: str
    data: Any
    raw: Mapping[str, Any] = raw_field()

    @property
    def terminal(self) -> bool:
        """True for the last event of the job."""
        return self.type in TERMINAL

    @property
    def text(self) -> str:
        """The part of the answer in a `message` event; empty for other events."""
        if self.type != MESSAGE or not isinstance(self.data, dict):
            return ""
        piece = self.data.get("delta", self.data.get("text", ""))
        return piece if isinstance(piece, str) else ""


def job_path(job_id: str) -> str:
    return f"{JOBS}/{path_segment(job_id)}"


def submit(
    task: str,
    payload: Mapping[str, Any],
    *,
    ttl_s: int | None = None,
    timeout_s: float | None = None,
    max_attempts: int | None = None,
    backoff: Mapping[str, float] | None = None,
    delay_s: float | None = None,
    run_at: datetime | str | None = None,
    lane: str | None = None,
    idempotency_key: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Request[str]:
    """Submits a job. The response is its id."""
    options = {
        "ttl_s": ttl_s,
        "timeout_s": timeout_s,
        "max_attempts": max_attempts,
        "backoff": None if backoff is None else dict(backoff),
        "delay_s": delay_s,
        "run_at": None if run_at is None else format_time(run_at),
        "lane": lane,
    }
    return build_request(
        "POST",
        JOBS,
        read_job_id,
        body={"task": task, "payload": dict(payload), **drop_none(options)},
        headers=headers,
        key=new_idempotency_key() if idempotency_key is None else idempotency_key,
    )


def get(job_id: str, wait_s: float | None = None) -> Request[Job]:
    """Reads a job. With `wait_s`, the gateway answers when the job ends or the time is up."""
    return build_request("GET", job_path(job_id), model_reader(Job), wait_s=wait_s)


def cancel(
    job_id: str, reason: str | None = None, wait_s: float | None = None
) -> Request[CancelResult]:
    """Cancels a job. Repeating the request is safe."""
    return build_request(
        "POST",
        f"{job_path(job_id)}/cancel",
        model_reader(CancelResult),
        body=None if reason is None else {"reason": reason},
        idempotent=True,
        wait_s=wait_s,
    )


def create_token(
    job_id: str | None = None, workflow_job_id: str | None = None, ttl_s: int | None = None
) -> Request[ReadToken]:
    """Creates a read token. Repeating the request is safe: tokens are not stored."""
    options = {"job_id": job_id, "workflow_job_id": workflow_job_id, "ttl_s": ttl_s}
    return build_request(
        "POST", TOKENS, model_reader(ReadToken), body=drop_none(options), idempotent=True
    )


def list_jobs(
    *,
    status: Names | None = None,
    task: Names | None = None,
    q: str | None = None,
    since: Time | None = None,
    until: Time | None = None,
    tenant: str | None = None,
    limit: int | None = None,
    cursor: str | None = None,
) -> Request[JobPage]:
    """Lists jobs, newest first."""
    query = {
        "status": status,
        "task": task,
        "q": q,
        "since": None if since is None else format_time(since),
        "until": None if until is None else format_time(until),
        "tenant": tenant,
        "limit": limit,
        "cursor": cursor,
    }
    return build_request("GET", JOBS, _read_page, query=query)


def _read_page(response: Response) -> JobPage:
    data = response.json()
    following = optional_cursor(require(data, "next"))
    jobs = parse_models(JobSummary, require(data, "jobs"))
    looked_at = data.get("looked_at", 0)
    return JobPage(jobs, following, looked_at=looked_at if isinstance(looked_at, int) else 0)


def format_time(when: Time) -> str:
    """A timestamp for the API: Unix milliseconds, or RFC 3339 with a time zone."""
    if isinstance(when, datetime):
        if when.tzinfo is None:
            raise ValueError(
                "the datetime has no time zone; use for example datetime.now(timezone.utc)"
            )
        return when.isoformat()
    return str(when)


def result_of(job: Job) -> Any:
    """The result of an ended job; raises JobFailed or JobCanceled."""
    if job.status == ERROR:
        raise JobFailed(job)
    if job.status == CANCELED:
        raise JobCanceled(job)
    return job.result
