# Generated from sluice/aio/client.py; edit that file.
"""`Sluice`: the blocking client."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from sluice.api import jobs as api
from sluice.api.jobs import JobPage, JobSummary
from sluice.sync.admin import AdminClient
from sluice.sync.jobs import JobHandle

if TYPE_CHECKING:
    from sluice.sync.documents import Documents
    from sluice.sync.images import Images
    from sluice.sync.workflows import Workflows


class Sluice(AdminClient):
    """A gateway. Threads may share one; close it, or use it in a `with` statement.

    `url` and `api_key` default to SLUICE_URL and SLUICE_API_KEY. `timeout_s` is how long a response
    may take. `retries` is how often a request is sent again after a broken connection, a 429 or a
    503; never before the gateway's Retry-After.
    """

    def __enter__(self) -> Sluice:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @cached_property
    def workflows(self) -> Workflows:
        """Workflow jobs."""
        from sluice.sync.workflows import Workflows

        return Workflows(self)

    @cached_property
    def images(self) -> Images:
        """Images."""
        from sluice.sync.images import Images

        return Images(self)

    @cached_property
    def rag(self) -> Documents:
        """Documents."""
        from sluice.sync.documents import Documents

        return Documents(self)

    def submit(
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
    ) -> JobHandle:
        """Submit a job. Retries are safe: without an `idempotency_key` it gets a random one."""
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
        return JobHandle(self, self.send(request))

    def job(self, job_id: str) -> JobHandle:
        """A handle of a job that was submitted before; sends no request."""
        return JobHandle(self, job_id)

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
    ) -> Iterator[JobSummary]:
        """List jobs, newest first; pages are requested as they are needed."""
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

    def jobs_page(
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
        """One page of the listing; it may be short, or even empty, and still have a `next`."""
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
        return self.send(request)
