"""Waiting for a job's end in requests that the gateway holds open."""

from __future__ import annotations

import time
from collections.abc import Callable

from client.core import jobs_api
from client.core.calls import Call
from client.core.models import Job
from client.core.retrying import PATIENCE_S, Retrying
from client.errors import WaitTimeout


class Waiting:
    """One wait; a gateway that restarts in between does not end it."""

    def __init__(
        self, job_id: str, timeout_s: float | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._job_id = job_id
        self._timeout_s = timeout_s
        self._clock = clock
        self._began = clock()

    def call(self) -> Call[Job]:
        """The next request."""
        # Whole seconds are all that the header has; the rest is slept.
        return jobs_api.get(self._job_id, float(int(min(jobs_api.WAIT_S, self._left_s()))) or None)

    def retrying(self) -> Retrying:
        """How long one tries to have it answered."""
        return Retrying(patience_s=min(PATIENCE_S, self._left_s()))

    def pause_s(self, job: Job, took_s: float) -> float:
        """Until the next one; raises WaitTimeout when there is none."""
        left_s = self._left_s()
        if left_s <= 0:
            raise WaitTimeout(
                f"job {job.job_id} has not ended within {self._timeout_s:g} s "
                f"(it is {job.status}); it goes on all the same"
            )
        return min(left_s, max(0.0, jobs_api.POLL_S - took_s))

    def _left_s(self) -> float:
        if self._timeout_s is None:
            return float("inf")
        return max(0.0, self._began + self._timeout_s - self._clock())
