"""A handle of a submitted job."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

from sluice.api import jobs as api
from sluice.api.jobs import TERMINAL, CancelResult, Event, Job
from sluice.transport.aio import sleep
from sluice.transport.event_stream import EventStream, Notify, TextJoiner
from sluice.transport.retry import JobWait

if TYPE_CHECKING:
    from sluice.aio.client import AsyncSluice


class AsyncJobHandle:
    """One job by its id; no request is sent before a method is called."""

    def __init__(self, sluice: AsyncSluice, job_id: str) -> None:
        self._sluice = sluice
        self.id = job_id

    def __repr__(self) -> str:
        return f"AsyncJobHandle({self.id!r})"

    async def get(self) -> Job:
        """Read the job; raises NotFound if it has expired or never existed."""
        return await self._sluice.send(api.get(self.id))

    def stream(
        self, after: str | None = None, *, say: Notify | None = None
    ) -> AsyncGenerator[Event, None]:
        """The job's events, stored ones first, then live, to the last one.

        Lost connections are opened again, also while the gateway restarts; `say` is called with a
        message when that happens. `after` is the id of the last event that was seen. An event of
        the type `gap` means that older ones were trimmed before they could be read.
        """
        path = f"{api.job_path(self.id)}/events"
        return self._sluice.follow(EventStream(path, after=after, end_types=TERMINAL, notify=say))

    async def text(self, timeout_s: float | None = None) -> str:
        """The text of the job's answer; waits for its end and raises as `result` does.

        The result's own `text` if it has one, else the joined pieces of the last attempt.
        """
        job = await self.wait(timeout_s)
        result = api.result_of(job)
        if isinstance(result, dict) and isinstance(result.get("text"), str):
            return str(result["text"])
        joiner = TextJoiner()
        async for event in self.stream():
            joiner.add(event)
        return joiner.text

    async def wait(self, timeout_s: float | None = None) -> Job:
        """The job once it has ended, in whatever status; raises WaitTimeout."""
        waiting = JobWait(self.id, timeout_s)
        while True:
            sent_at = time.monotonic()
            job = await self._sluice.send(waiting.request(), waiting.retry_budget())
            if job.ended:
                return job
            await sleep(waiting.pause_s(job, time.monotonic() - sent_at))

    async def result(self, timeout_s: float | None = None) -> Any:
        """The job's result; raises JobFailed, JobCanceled or WaitTimeout."""
        return api.result_of(await self.wait(timeout_s))

    async def cancel(
        self, reason: str | None = None, *, wait_s: float | None = None
    ) -> CancelResult:
        """Cancel the job; may be repeated, also after its end."""
        return await self._sluice.send(api.cancel(self.id, reason, wait_s))
