"""`AsyncSluice`: a gateway, for programs of asyncio."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from client.aio.job import AsyncJobHandle
from client.aio.steering import AsyncSteering
from client.core import jobs_api
from client.core.models import JobPage, JobSummary

if TYPE_CHECKING:
    from client.aio.documents import Documents
    from client.aio.images import Images
    from client.aio.workflows import Workflows


class AsyncSluice(AsyncSteering):
    """A gateway. Belongs to one event loop; close it, or use it in an `async with` statement.

    `url` and `api_key` default to SLUICE_URL and SLUICE_API_KEY. `timeout_s` is how long an answer
    may take, `retries` how often a request is repeated that may be: after a broken connection, a
    429 or a 503, when the gateway says so.
    """

    async def __aenter__(self) -> AsyncSluice:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @cached_property
    def workflows(self) -> Workflows:
        """Workflow jobs: started, watched, decided on."""
        from client.aio.workflows import Workflows

        return Workflows(self)

    @cached_property
    def images(self) -> Images:
        """Images: sent, followed, fetched."""
        from client.aio.images import Images

        return Images(self)

    @cached_property
    def rag(self) -> Documents:
        """Documents: added, found, removed."""
        from client.aio.documents import Documents

        return Documents(self)

    # -- jobs ------------------------------------------------------------------------------

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
        """Hand in a job. Repeats are safe: without a key of yours it gets one that is new."""
        asked = jobs_api.submit(
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
        return AsyncJobHandle(self, await self.run(asked))

    def job(self, job_id: str) -> AsyncJobHandle:
        """A job that was handed in before; asks nothing yet."""
        return AsyncJobHandle(self, job_id)

    def jobs(
        self,
        *,
        status: jobs_api.Names | None = None,
        task: jobs_api.Names | None = None,
        q: str | None = None,
        since: jobs_api.Time | None = None,
        until: jobs_api.Time | None = None,
        tenant: str | None = None,
        page_size: int | None = None,
    ) -> AsyncIterator[JobSummary]:
        """Jobs, the newest first, page after page; stop whenever you have enough."""
        return self.pages(
            lambda cursor: jobs_api.page(
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
        status: jobs_api.Names | None = None,
        task: jobs_api.Names | None = None,
        q: str | None = None,
        since: jobs_api.Time | None = None,
        until: jobs_api.Time | None = None,
        tenant: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> JobPage:
        """One page of them; it may be short, or even empty, and still have a `next`."""
        asked = jobs_api.page(
            status=status,
            task=task,
            q=q,
            since=since,
            until=until,
            tenant=tenant,
            limit=limit,
            cursor=cursor,
        )
        return await self.run(asked)
