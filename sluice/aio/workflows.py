"""The workflow API: start, watch, review and undo workflow jobs."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from typing import Any

from sluice.aio.base import AsyncBaseClient
from sluice.api import workflows as api
from sluice.api.jobs import Event
from sluice.api.workflows import (
    BulkResult,
    StepResult,
    WebhookDeadLetter,
    WorkflowItem,
    WorkflowJob,
)
from sluice.transport.event_stream import EventStream, Notify


class Workflows:
    """The workflow API, available as `AsyncSluice.workflows`."""

    def __init__(self, sluice: AsyncBaseClient) -> None:
        self._sluice = sluice

    async def create(
        self,
        workflow: str | None = None,
        *,
        sources: Sequence[Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        auto_advance: bool = False,
        namespace: str | None = None,
        steps: Mapping[str, Mapping[str, Any]] | None = None,
        review: Mapping[str, Any] | None = None,
        webhook: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> WorkflowJob:
        """Start a workflow job; with `auto_advance` its steps run automatically."""
        request = api.create(
            workflow,
            sources=sources,
            metadata=metadata,
            auto_advance=auto_advance,
            namespace=namespace,
            steps=steps,
            review=review,
            webhook=webhook,
            idempotency_key=idempotency_key,
        )
        return await self._sluice.send(request)

    async def get(self, job_id: str) -> WorkflowJob:
        """Read a workflow job."""
        return await self._sluice.send(api.get(job_id))

    def list(
        self, *, status: str | None = None, workflow: str | None = None
    ) -> AsyncIterator[WorkflowJob]:
        """Iterate over workflow jobs, newest first."""
        return self._sluice.paginate(lambda cursor: api.list_jobs(status, workflow, None, cursor))

    async def definitions(self) -> dict[str, Any]:
        """List the available workflows and the options of their steps."""
        return await self._sluice.send(api.definitions())

    def watch(
        self, job_id: str, after: str | None = None, *, notify: Notify | None = None
    ) -> AsyncGenerator[Event, None]:
        """Iterate over the job's events, stored ones first, then live; reconnects automatically."""
        path = f"{api.job_path(job_id)}/events/stream"
        return self._sluice.follow(EventStream(path, after=after, notify=notify))

    async def execute(
        self,
        job_id: str,
        step: str,
        *,
        payload: Mapping[str, Any] | None = None,
        wait_s: float | None = None,
        strict: bool = False,
        discard_decisions: bool = False,
        idempotency_key: str | None = None,
    ) -> StepResult:
        """Run a step and any incomplete steps before it."""
        request = api.execute(
            job_id,
            step,
            payload=payload,
            wait_s=wait_s,
            strict=strict,
            discard_decisions=discard_decisions,
            idempotency_key=idempotency_key,
        )
        return await self._sluice.send(request)

    def results(
        self, job_id: str, *, step: str | None = None, status: str | None = None
    ) -> AsyncIterator[WorkflowItem]:
        """Iterate over the items that the steps found or proposed."""
        return self._sluice.paginate(lambda cursor: api.results(job_id, step, status, None, cursor))

    async def decide(
        self,
        job_id: str,
        decisions: Mapping[str, str] | Sequence[Mapping[str, Any]],
        *,
        finalize: bool = False,
        step: str | None = None,
        wait_s: float | None = None,
    ) -> StepResult:
        """Decide on items: `{"p_001": "approve", "p_002": "reject"}`.

        `finalize` rejects all other items. `step` defaults to the current step.
        """
        review = step or (await self.get(job_id)).current_step or ""
        payload = api.decisions_payload(decisions, finalize)
        return await self.execute(job_id, review, payload=payload, wait_s=wait_s)

    async def bulk(
        self,
        job_id: str,
        action: str,
        *,
        ids: Sequence[str] | None = None,
        status: str | None = None,
        min_confidence: float | None = None,
        everything: bool = False,
        note: str = "",
        versions: Mapping[str, int] | None = None,
    ) -> BulkResult:
        """Apply one decision to many items: by id, by filter, or to all."""
        request = api.bulk(
            job_id,
            action,
            ids=ids,
            status=status,
            min_confidence=min_confidence,
            everything=everything,
            note=note,
            versions=versions,
        )
        return await self._sluice.send(request)

    async def edit(self, job_id: str, proposal_id: str, **changes: Any) -> WorkflowItem:
        """Edit a proposal (`to`, `confidence`, `note` …), which also approves it."""
        if "from_" in changes:
            changes["from"] = changes.pop("from_")
        return await self._sluice.send(api.edit(job_id, proposal_id, changes))

    async def undo(
        self, job_id: str, undo_token: str, *, wait_s: float | None = None
    ) -> dict[str, Any]:
        """Undo a decision or an edit."""
        return await self._sluice.send(api.undo(job_id, undo_token, wait_s))

    async def cancel(self, job_id: str, reason: str = "") -> WorkflowJob:
        """Cancel a workflow job. Repeating the call is safe."""
        return await self._sluice.send(api.cancel(job_id, reason))

    def webhook_dead_letters(
        self, page_size: int | None = None
    ) -> AsyncIterator[WebhookDeadLetter]:
        """Iterate over webhook deliveries whose attempts are exhausted."""
        return self._sluice.paginate(lambda cursor: api.webhook_dead_letters(page_size, cursor))

    async def redrive_webhooks(self, event_ids: Sequence[str] | None = None) -> dict[str, Any]:
        """Redeliver webhook events unchanged; all dead-lettered ones if `event_ids` is None."""
        return await self._sluice.send(api.redrive_webhooks(event_ids))
