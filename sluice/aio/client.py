"""`AsyncSluice`: the asyncio client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from sluice.aio.admin import AsyncAdminClient
from sluice.aio.jobs import AsyncJobHandle
from sluice.api import jobs as api
from sluice.api.jobs import JobPage, JobSummary, ReadToken

if TYPE_CHECKING:
    from sluice.aio.documents import Documents
    from sluice.aio.images import Images
    from sluice.aio.workflows import Workflows


class AsyncSluice(AsyncAdminClient):
    """A client of one gateway. Bound to one event loop. Close it, or use an `async with` statement.

    `url` and `api_key` default to SLUICE_URL and SLUICE_API_KEY. `timeout_s` limits the time for a
    response. `retries` is the maximum number of retries after a broken connection, a 429 or a 503,
    never sooner than the gateway's Retry-After.
    """

    async def __aenter__(self) -> AsyncSluice:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @cached_property
    def workflows(self) -> Workflows:
        from sluice.aio.workflows import Workflows

        return Workflows(self)

    @cached_property
    def images(self) -> Images:
        from sluice.aio.images import Images

        return Images(self)

    @cached_property
    def rag(self) -> Documents:
        from sluice.aio.documents import Documents

        return Documents(self)

    async def submit(
        self,
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
    ) -> AsyncJobHandle:
        """Submit a job. Retries are safe: `idempotency_key` defaults to a random key."""
        request = api.submit(
            task,
            payload,
            ttl_s=ttl_s,
            timeout_s=timeout_s,
            max_attempts=max_attempts,
            backoff=backoff,
            delay_s=delay_s,
            run_at=run_at,
            lane=lane,
            idempotency_key=idempotency_key,
            headers=headers,
        )
        return AsyncJobHandle(self, await self.send(request))

    def job(self, job_id: str) -> AsyncJobHandle:
        """A handle for an existing job; sends no request."""
        return AsyncJobHandle(self, job_id)

    async def create_token(
        self,
        *,
        job_id: str | None = None,
        workflow_job_id: str | None = None,
        ttl_s: int | None = None,
    ) -> ReadToken:
        """Create a token with which a web page may read one job or workflow job.

        It is valid for `ttl_s` seconds (1 to 3600, default 600).
        """
        return await self.send(api.create_token(job_id, workflow_job_id, ttl_s))

    def jobs(
        self,
        *,
        status: api.Names | None = None,
        task: api.Names | None = None,
        q: str | None = None,
        since: api.Time | None = None,
        until: api.Time | None = None,
        tenant: str | None = None,
        page_size: int | None = None,
    ) -> AsyncIterator[JobSummary]:
        """Iterate over jobs, newest first. Pages are requested on demand."""
        return self.paginate(
            lambda cursor: api.list_jobs(
                status=status,
                task=task,
                q=q,
                since=since,
                until=until,
                tenant=tenant,
                limit=page_size,
                cursor=cursor,
            )
        )

    async def jobs_page(
        self,
        *,
        status: api.Names | None = None,
        task: api.Names | None = None,
        q: str | None = None,
        since: api.Time | None = None,
        until: api.Time | None = None,
        tenant: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> JobPage:
        """One page of the listing. A short or empty page may still have a `next` cursor."""
        request = api.list_jobs(
            status=status,
            task=task,
            q=q,
            since=since,
            until=until,
            tenant=tenant,
            limit=limit,
            cursor=cursor,
        )
        return await self.send(request)
