"""A job that was submitted, and what one can do with it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

from client.core import jobs_api
from client.core.following import Following, Joining, Say
from client.core.models import TERMINAL, Canceled, Event, Job
from client.core.waiting import Waiting

if TYPE_CHECKING:
    from client.aio.client import AsyncSluice


class AsyncJobHandle:
    """One job, by its id; nothing is asked before a method is called."""

    def __init__(self, sluice: AsyncSluice, job_id: str) -> None:
        self._sluice = sluice
        self.id = job_id

    def __repr__(self) -> str:
        return f"AsyncJobHandle({self.id!r})"

    async def get(self) -> Job:
        """The job as it stands; raises NotFound for one that expired or never was."""
        return await self._sluice.run(jobs_api.get(self.id))

    def stream(
        self, after: str | None = None, *, say: Say | None = None
    ) -> AsyncGenerator[Event, None]:
        """Its events, stored ones first, then live, to the last one.

        Goes on by itself where a connection was lost or the gateway restarted; `say` is told of
        that in words. `after` is the id of the last event that one has seen. An event of the type
        `gap` says that older ones were trimmed before they could be read.
        """
        path = f"{jobs_api.job_path(self.id)}/events"
        following = Following(path, after=after, ends=TERMINAL, say=say)
        return self._sluice.follow(following)

    async def text(self, timeout_s: float | None = None) -> str:
        """The answer of the job in words; waits for its end and raises as `result` does.

        The result's own text where it has one, else the pieces of its last attempt, joined.
        """
        job = await self.wait(timeout_s)
        result = jobs_api.outcome(job)
        if isinstance(result, dict) and isinstance(result.get("text"), str):
            return str(result["text"])
        joining = Joining()
        async for event in self.stream():
            joining.add(event)
        return joining.text

    async def wait(self, timeout_s: float | None = None) -> Job:
        """The job when it has ended, however it did; raises WaitTimeout."""
        waiting = Waiting(self.id, timeout_s)
        while True:
            asked_at = time.monotonic()
            job = await self._sluice.run(waiting.call(), waiting.retrying())
            if job.ended:
                return job
            await asyncio.sleep(waiting.pause_s(job, time.monotonic() - asked_at))

    async def result(self, timeout_s: float | None = None) -> Any:
        """What it came to; raises JobFailed, JobCanceled or WaitTimeout."""
        return jobs_api.outcome(await self.wait(timeout_s))

    async def cancel(self, reason: str | None = None, *, wait_s: float | None = None) -> Canceled:
        """Have it ended; may be repeated, and a race with its own end is no error."""
        return await self._sluice.run(jobs_api.cancel(self.id, reason, wait_s))
