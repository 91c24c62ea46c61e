# Generated from sluice/aio/client.py; edit that file.
"""`Sluice`: the blocking client."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from sluice.api import jobs as api
from sluice.api.jobs import JobPage, JobSummary, ReadToken
from sluice.sync.admin import AdminClient
from sluice.sync.jobs import JobHandle

if TYPE_CHECKING:
    from sluice.sync.documents import Documents
    from sluice.sync.images import Images
    from sluice.sync.workflows import Workflows


class Sluice(AdminClient):
    """A client of one gateway. Thread-safe. Close it, or use a `with` statement.

    `url` and `api_key` default to SLUICE_URL and SLUICE_API_KEY. `timeout_s` limits the time for a
    response. `retries` is the maximum number of retries after a broken connection, a 429 or a 503,
    never sooner than the gateway's Retry-After.
    """

    def __enter__(self) -> Sluice:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @cached_property
    def workflows(self) -> Workflows:
        from sluice.sync.workflows import Workflows

        return Workflows(self)

    @cached_property
    def images(self) -> Images:
        from sluice.sync.images import Images

        return Images(self)

    @cached_property
    def rag(self) -> Documents:
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
        return JobHandle(self, self.send(request))

    def job(self, job_id: str) -> JobHandle:
        """A handle for an existing job; sends no request."""
        return JobHandle(self, job_id)

    def create_token(
        self,
        *,
        job_id: str | None = None,
        workflow_job_id: str | None = None,
        ttl_s: int | None = None,
    ) -> ReadToken:
        """Create a token with which a web page may read one job or workflow job.

        It is valid for `ttl_s` seconds (1 to 3600, default 600).
        """
        return self.send(api.create_token(job_id, workflow_job_id, ttl_s))

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
        return self.send(request)
