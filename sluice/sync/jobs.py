# Generated from sluice/aio/jobs.py; edit that file.
"""The handle of a submitted job."""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from sluice.api import jobs as api
from sluice.api.jobs import TERMINAL, CancelResult, Event, Job
from sluice.transport.event_stream import EventStream, Notify, TextJoiner
from sluice.transport.retry import JobWait
from sluice.transport.sync import sleep

if TYPE_CHECKING:
    from sluice.sync.client import Sluice


class JobHandle:
    """One job, identified by its id. Creating the handle sends no request."""

    def __init__(self, sluice: Sluice, job_id: str) -> None:
        self._sluice = sluice
        self.id = job_id

    def __repr__(self) -> str:
        return f"JobHandle({self.id!r})"

    def get(self) -> Job:
        """Read the job; raises NotFound if it has expired or never existed."""
        return self._sluice.send(api.get(self.id))

    def stream(
        self, after: str | None = None, *, notify: Notify | None = None
    ) -> Generator[Event, None, None]:
        """Iterate over the job's events, stored ones first, then live, until the last one.

        The stream reconnects automatically, also while the gateway restarts; `notify` is called
        with a message when the connection is lost. `after` is the id of the last event already
        received. An event of type `gap` means that older events were trimmed before they could be
        read.
        """
        path = f"{api.job_path(self.id)}/events"
        return self._sluice.follow(
            EventStream(path, after=after, end_types=TERMINAL, notify=notify)
        )

    def text(self, timeout_s: float | None = None) -> str:
        """Wait for the end of the job and return the text of its answer; raises like `result`.

        This is the member `text` of the result, or else the joined messages of the last attempt.
        """
        job = self.wait(timeout_s)
        result = api.result_of(job)
        if isinstance(result, dict) and isinstance(result.get("text"), str):
            return str(result["text"])
        joiner = TextJoiner()
        for event in self.stream():
            joiner.add(event)
        return joiner.text

    def wait(self, timeout_s: float | None = None) -> Job:
        """Wait until the job has ended, with any status; raises WaitTimeout."""
        waiting = JobWait(self.id, timeout_s)
        while True:
            sent_at = time.monotonic()
            job = self._sluice.send(waiting.request(), waiting.retry_budget())
            if job.ended:
                return job
            sleep(waiting.pause_s(job, time.monotonic() - sent_at))

    def result(self, timeout_s: float | None = None) -> Any:
        """Wait for the job and return its result; raises JobFailed, JobCanceled or WaitTimeout."""
        return api.result_of(self.wait(timeout_s))

    def cancel(self, reason: str | None = None, *, wait_s: float | None = None) -> CancelResult:
        """Cancel the job. Repeating the call is safe, also after the job has ended."""
        return self._sluice.send(api.cancel(self.id, reason, wait_s))
