"""Lists workflow jobs, newest first, with bounded work per page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis

from sluice.common import codec
from sluice.common.contracts.workflow.fields import WorkflowJobField
from sluice.common.contracts.workflow.statuses import WorkflowStatus
from sluice.common.features.workflows.reader import WorkflowReader, read_pipeline
from sluice.common.features.workflows.records import JobCursor, JobPage
from sluice.common.jobs.pagination import IndexCursor
from sluice.common.jobs.store import read_reply

#: Jobs read per round trip, and round trips per request: after that the page ends early.
SCAN_SIZE = 200
MOST_LOOKS = 25


@dataclass(frozen=True)
class WorkflowJobFilter:
    """A filter of jobs: by tenant (None: all tenants), status and workflow."""

    tenant: str | None = None
    status: WorkflowStatus | None = None
    workflow: str | None = None

    @property
    def all(self) -> bool:
        """True if every job of the index matches."""
        return self.status is None and self.workflow is None


class WorkflowLister:
    """Reads an index backwards. A page continues where the last one ended, so that new jobs do not
    shift the pages."""

    def __init__(self, client: Redis, reader: WorkflowReader) -> None:
        self._client = client
        self._reader = reader

    async def page(
        self,
        job_filter: WorkflowJobFilter,
        limit: int,
        before: JobCursor | None = None,
        offset: int = 0,
    ) -> JobPage:
        """Jobs after a cursor, without the first `offset` of them."""
        index = self._reader.keys.index(job_filter.tenant or "")
        cursor = IndexCursor(self._client, index, None if before is None else before[:2], SCAN_SIZE)
        offset += 0 if before is None else before.offset
        found: list[tuple[int, str]] = []
        skipped, more = 0, False
        for _ in range(MOST_LOOKS):
            entries = await cursor.next()
            for entry in await self._matching(job_filter, entries):
                if skipped < offset:
                    skipped += 1
                elif len(found) < limit:
                    found.append(entry)
                else:
                    more = True
                    break
            if more or cursor.exhausted:
                break
        else:  # enough for one request: the next page continues here
            last = cursor.last if not cursor.exhausted else None
            following = None if last is None else JobCursor(*last, offset - skipped)
            return await self._build_page(index, found, following)
        return await self._build_page(index, found, JobCursor(*found[-1]) if more else None)

    async def _matching(
        self, job_filter: WorkflowJobFilter, entries: Sequence[tuple[int, str]]
    ) -> list[tuple[int, str]]:
        """The entries that still exist and match."""
        if not entries:
            return []
        async with self._client.pipeline(transaction=False) as pipe:
            for _, job_id in entries:
                pipe.hmget(
                    self._reader.keys.job(job_id),
                    [WorkflowJobField.STATUS, WorkflowJobField.WORKFLOW],
                )
            replies = await read_pipeline(pipe)
        return [entry for entry, reply in zip(entries, replies) if _matches(job_filter, reply)]

    async def _build_page(
        self, index: str, found: Sequence[tuple[int, str]], last: JobCursor | None
    ) -> JobPage:
        jobs = await self._reader.snapshots([job_id for _, job_id in found], lenient=True)
        total = await read_reply(self._client.zcard(index)) or 0
        return JobPage([job for job in jobs if job is not None], last, total)


def _matches(job_filter: WorkflowJobFilter, reply: Any) -> bool:
    if isinstance(reply, Exception):
        return False
    status, workflow = reply
    if status is None or workflow is None:  # expired, or not a workflow job
        return False
    if job_filter.status is not None and codec.decode_text(status) != job_filter.status.value:
        return False
    return job_filter.workflow is None or codec.decode_text(workflow) == job_filter.workflow
