"""Requests about jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from client.core.calls import Answer, Call, call, new_key, segment
from client.core.models import Canceled, Job, JobPage, JobSummary
from client.core.reading import member, models, reading, text_member
from client.errors import BadAnswer, JobCanceled, JobFailed

JOBS = "/v1/jobs"
#: One request of a wait; a gateway may cut it short.
WAIT_S = 20.0
#: Between two of them where the gateway does not wait for us.
POLL_S = 1.0
Time = int | str | datetime
Names = str | Sequence[str]


def job_path(job_id: str) -> str:
    """Where a job is."""
    return f"{JOBS}/{segment(job_id)}"


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
) -> Call[str]:
    """A new job; the answer is its id."""
    wishes = {
        "ttl_s": ttl_s,
        "timeout_s": timeout_s,
        "max_attempts": max_attempts,
        "backoff": None if backoff is None else dict(backoff),
        "delay_s": delay_s,
        "run_at": None if run_at is None else moment(run_at),
        "lane": lane,
    }
    given = {name: value for name, value in wishes.items() if value is not None}
    return call(
        "POST",
        JOBS,
        lambda answer: text_member(answer.json(), "job_id"),
        body={"task": task, "payload": dict(payload), **given},
        headers=headers,
        key=new_key() if idempotency_key is None else idempotency_key,
    )


def get(job_id: str, wait_s: float | None = None) -> Call[Job]:
    """A job as it stands, or as it stands when it has ended or this long has passed."""
    return call("GET", job_path(job_id), reading(Job), wait_s=wait_s)


def cancel(job_id: str, reason: str | None = None, wait_s: float | None = None) -> Call[Canceled]:
    """Its end; may be repeated."""
    body = None if reason is None else {"reason": reason}
    path = f"{job_path(job_id)}/cancel"
    return call("POST", path, reading(Canceled), body=body, repeatable=True, wait_s=wait_s)


def page(
    *,
    status: Names | None = None,
    task: Names | None = None,
    q: str | None = None,
    since: Time | None = None,
    until: Time | None = None,
    tenant: str | None = None,
    limit: int | None = None,
    cursor: str | None = None,
) -> Call[JobPage]:
    """Jobs, the newest first."""
    query = {
        "status": status,
        "task": task,
        "q": q,
        "since": None if since is None else moment(since),
        "until": None if until is None else moment(until),
        "tenant": tenant,
        "limit": limit,
        "cursor": cursor,
    }
    return call("GET", JOBS, _page, query=query)


def _page(answer: Answer) -> JobPage:
    told = answer.json()
    following = member(told, "next")
    if following is not None and not isinstance(following, str):
        raise BadAnswer("the gateway's answer has no usable cursor; check the URL")
    seen = told.get("looked_at", 0)
    jobs = models(JobSummary, member(told, "jobs"))
    return JobPage(jobs, following, looked_at=seen if isinstance(seen, int) else 0)


def moment(when: Time) -> str:
    """A point in time as the gateway reads it: milliseconds, or RFC 3339."""
    if isinstance(when, datetime):
        if when.tzinfo is None:
            raise ValueError("a time needs its time zone: datetime.now(timezone.utc), say")
        return when.isoformat()
    return str(when)


def outcome(job: Job) -> Any:
    """The result of a job that has ended; raises JobFailed or JobCanceled."""
    if job.status == "error":
        raise JobFailed(job)
    if job.status == "canceled":
        raise JobCanceled(job)
    return job.result
