"""Lists workflow jobs, the newest first, in pages that stay bounded whatever has expired."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis

from common import codec
from common.contracts.workflow import JobHash, WorkflowStatus
from common.index_walk import IndexWalk
from common.store import read
from common.workflow.reader import WorkflowReader, replies_of
from common.workflow.records import JobPage, JobPlace

#: Jobs looked at in one go, and how often in one request: after that the page ends early.
LOOK = 200
MOST_LOOKS = 25


@dataclass(frozen=True)
class Wanted:
    """Which jobs: of one tenant (None: of all), in a status, of a workflow."""

    tenant: str | None = None
    status: WorkflowStatus | None = None
    workflow: str | None = None

    @property
    def all(self) -> bool:
        """Whether every job of the index is wanted."""
        return self.status is None and self.workflow is None


class WorkflowLister:
    """Goes through an index backwards. A page goes on where the last one ended, so that new jobs
    move none to another page."""

    def __init__(self, client: Redis, reader: WorkflowReader) -> None:
        self._client = client
        self._reader = reader

    async def page(
        self, wanted: Wanted, limit: int, before: JobPlace | None = None, offset: int = 0
    ) -> JobPage:
        """Jobs from a place on, but for the first `offset` of them."""
        index = self._reader.keys.index(wanted.tenant or "")
        walk = IndexWalk(self._client, index, None if before is None else before[:2], LOOK)
        offset += 0 if before is None else before.offset
        found: list[tuple[int, str]] = []
        skipped, more = 0, False
        for _ in range(MOST_LOOKS):
            entries = await walk.next()
            for entry in await self._those(wanted, entries):
                if skipped < offset:
                    skipped += 1
                elif len(found) < limit:
                    found.append(entry)
                else:
                    more = True
                    break
            if more or walk.over:
                break
        else:  # enough for one request: the next page goes on where this one stopped
            last = walk.last if not walk.over else None
            place = None if last is None else JobPlace(*last, offset - skipped)
            return await self._made(index, found, place)
        return await self._made(index, found, JobPlace(*found[-1]) if more else None)

    async def _those(
        self, wanted: Wanted, entries: Sequence[tuple[int, str]]
    ) -> list[tuple[int, str]]:
        """Those that are still there and fit."""
        if not entries:
            return []
        async with self._client.pipeline(transaction=False) as pipe:
            for _, job_id in entries:
                pipe.hmget(
                    self._reader.keys.job(job_id), [JobHash.STATUS.value, JobHash.WORKFLOW.value]
                )
            replies = await replies_of(pipe)
        return [entry for entry, reply in zip(entries, replies) if _fits(wanted, reply)]

    async def _made(
        self, index: str, found: Sequence[tuple[int, str]], last: JobPlace | None
    ) -> JobPage:
        jobs = await self._reader.snapshots([job_id for _, job_id in found], lenient=True)
        total = await read(self._client.zcard(index)) or 0
        return JobPage([job for job in jobs if job is not None], last, total)


def _fits(wanted: Wanted, reply: Any) -> bool:
    if isinstance(reply, Exception):
        return False
    status, workflow = reply
    if status is None or workflow is None:  # run out, or none of ours
        return False
    if wanted.status is not None and codec.text(status) != wanted.status.value:
        return False
    return wanted.workflow is None or codec.text(workflow) == wanted.workflow
