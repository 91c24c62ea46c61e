"""Workflow jobs: started, watched, decided on."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from typing import Any

from client.aio.asking import AsyncAsking
from client.core import workflow_api as api
from client.core.following import Following, Say
from client.core.models import Event
from client.core.workflow_models import (
    Decided,
    StepResult,
    WebhookLetter,
    WorkflowItem,
    WorkflowJob,
)


class Workflows:
    """Those of one gateway; `AsyncSluice.workflows`."""

    def __init__(self, sluice: AsyncAsking) -> None:
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
        """Start one; with `auto_advance` it goes through its steps by itself."""
        asked = api.create(
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
        return await self._sluice.run(asked)

    async def get(self, job_id: str) -> WorkflowJob:
        """It as it stands."""
        return await self._sluice.run(api.get(job_id))

    def list(
        self, *, status: str | None = None, workflow: str | None = None
    ) -> AsyncIterator[WorkflowJob]:
        """All of them, newest first."""
        return self._sluice.pages(lambda cursor: api.listing(status, workflow, None, cursor))

    async def definitions(self) -> dict[str, Any]:
        """Which workflows can be started, and what their steps take."""
        return await self._sluice.run(api.definitions())

    def watch(
        self, job_id: str, after: str | None = None, *, say: Say | None = None
    ) -> AsyncGenerator[Event, None]:
        """Its events, stored ones first, then live, to its end; on through lost connections."""
        path = f"{api.path_of(job_id)}/events/stream"
        return self._sluice.follow(Following(path, after=after, say=say))

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
        """Run a step, and those before it that are not complete."""
        asked = api.execute(
            job_id,
            step,
            payload=payload,
            wait_s=wait_s,
            strict=strict,
            discard_decisions=discard_decisions,
            idempotency_key=idempotency_key,
        )
        return await self._sluice.run(asked)

    def results(
        self, job_id: str, *, step: str | None = None, status: str | None = None
    ) -> AsyncIterator[WorkflowItem]:
        """What its steps have found or proposed."""
        return self._sluice.pages(lambda cursor: api.results(job_id, step, status, None, cursor))

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

        `finalize` rejects all others. `step` is the review that waits, unless named.
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
    ) -> Decided:
        """One decision on many: these, those that a filter finds, or all."""
        asked = api.bulk(
            job_id,
            action,
            ids=ids,
            status=status,
            min_confidence=min_confidence,
            everything=everything,
            note=note,
            versions=versions,
        )
        return await self._sluice.run(asked)

    async def edit(self, job_id: str, proposal_id: str, **changes: Any) -> WorkflowItem:
        """Other words for a proposal (`to`, `confidence`, `note` …); approves it, too."""
        if "from_" in changes:
            changes["from"] = changes.pop("from_")
        return await self._sluice.run(api.edit(job_id, proposal_id, changes))

    async def undo(
        self, job_id: str, undo_token: str, *, wait_s: float | None = None
    ) -> dict[str, Any]:
        """Take a change back."""
        return await self._sluice.run(api.undo(job_id, undo_token, wait_s))

    async def cancel(self, job_id: str, reason: str = "") -> WorkflowJob:
        """End it; may be repeated."""
        return await self._sluice.run(api.cancel(job_id, reason))

    def webhook_letters(self, page_size: int | None = None) -> AsyncIterator[WebhookLetter]:
        """Deliveries that were given up."""
        return self._sluice.pages(lambda cursor: api.webhook_letters(page_size, cursor))

    async def redrive_webhooks(self, event_ids: Sequence[str] | None = None) -> dict[str, Any]:
        """Send these again, byte for byte; all of them where none is named."""
        return await self._sluice.run(api.redrive_webhooks(event_ids))
