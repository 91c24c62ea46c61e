"""Retry policy: back-off, retry budget, and waiting for a job."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

from sluice.api import jobs
from sluice.api.jobs import Job
from sluice.errors import Broken, SluiceError, Unavailable, WaitTimeout
from sluice.transport.request import Request

RETRIES = 4
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 5.0
#: An error with a longer Retry-After is raised immediately.
LONGEST_RETRY_AFTER_S = 30.0
#: Seconds that waits and streams keep trying while the gateway is unreachable.
RECONNECT_FOR_S = 60.0
#: Sent by a proxy in front of the gateway, which may have processed the request.
_PROXY_STATUSES = (502, 504)


class Backoff:
    """Exponential back-off with 50 % jitter, never shorter than a Retry-After."""

    def __init__(self, jitter: Callable[[], float] = random.random) -> None:
        self._jitter = jitter
        self._next_s = FIRST_PAUSE_S

    def reset(self) -> None:
        self._next_s = FIRST_PAUSE_S

    def pause_s(self, at_least_s: float | None = None) -> float:
        """The next pause in seconds."""
        own_s = self._next_s * (0.5 + self._jitter() / 2)
        self._next_s = min(self._next_s * 2, LONGEST_PAUSE_S)
        if at_least_s is None:
            return own_s
        # Jitter, so that clients refused together do not retry together.
        return at_least_s + min(own_s, at_least_s * 0.2)


class RetryBudget:
    """Limits the retries of one request: by number, or by `total_s` seconds."""

    def __init__(
        self,
        retries: int = RETRIES,
        total_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._left = retries
        self._total_s = total_s
        self._clock = clock
        self._first_error_at: float | None = None
        self._backoff = Backoff(jitter)

    def pause_s(self, error: SluiceError, request: Request[Any] | None = None) -> float | None:
        """Seconds to wait before the next retry; None for no retry."""
        if not is_retryable(error) or (request is not None and not _may_repeat(request, error)):
            return None
        pause_s = self._backoff.pause_s(error.retry_after_s)
        if self._total_s is None:
            self._left -= 1
            return pause_s if self._left >= 0 else None
        now = self._clock()
        if self._first_error_at is None:
            self._first_error_at = now
        return pause_s if now + pause_s - self._first_error_at <= self._total_s else None


def is_retryable(error: SluiceError) -> bool:
    """True if the error is transient and its Retry-After is not too long."""
    return error.transient and (error.retry_after_s or 0.0) <= LONGEST_RETRY_AFTER_S


def _may_repeat(request: Request[Any], error: SluiceError) -> bool:
    """False if the request may already have been processed and is not idempotent."""
    if request.idempotent:
        return True
    if isinstance(error, Unavailable):
        return error.status not in _PROXY_STATUSES
    return not isinstance(error, Broken)


class JobWait:
    """Waits for the end of a job with repeated long-poll requests; survives gateway restarts."""

    def __init__(
        self, job_id: str, timeout_s: float | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._job_id = job_id
        self._timeout_s = timeout_s
        self._clock = clock
        self._started_at = clock()

    def request(self) -> Request[Job]:
        # The Prefer header takes whole seconds; the caller sleeps for the rest.
        return jobs.get(self._job_id, float(int(min(jobs.WAIT_S, self._left_s()))) or None)

    def retry_budget(self) -> RetryBudget:
        return RetryBudget(total_s=min(RECONNECT_FOR_S, self._left_s()))

    def pause_s(self, job: Job, request_s: float) -> float:
        """Seconds until the next request; raises WaitTimeout at the deadline."""
        left_s = self._left_s()
        if left_s <= 0:
            raise WaitTimeout(
                f"job {job.job_id} did not end within {self._timeout_s:g} s "
                f"(status: {job.status}); it keeps running"
            )
        return min(left_s, max(0.0, jobs.POLL_S - request_s))

    def _left_s(self) -> float:
        if self._timeout_s is None:
            return float("inf")
        return max(0.0, self._started_at + self._timeout_s - self._clock())
