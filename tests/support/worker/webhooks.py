"""Webhooks: jobs with an outbox, the stores, and the service."""

from __future__ import annotations

import asyncio
import itertools
import json
from pathlib import Path
from typing import Any

from sluice.common.aio import cancel
from sluice.common.contracts.jobs import JobKeys
from sluice.common.contracts.workflow.keys import WorkflowKeys
from sluice.common.contracts.workflow.statuses import DEFAULT_WEBHOOK_EVENTS
from sluice.common.features.workflows.memory_first import DEFINITION
from sluice.common.features.workflows.scripts import WORKFLOW_SCRIPT
from sluice.common.features.workflows.store import WorkflowStore
from sluice.common.features.workflows.types import (
    IdempotencyClaim,
    NewWorkflow,
    StepIds,
    Webhook,
)
from sluice.common.features.workflows.webhooks.dead_letters import WebhookDeadLetterStore
from sluice.common.features.workflows.webhooks.store import ClaimedDelivery, WebhookStore
from sluice.common.jobs.limits import AdmissionLimits
from sluice.common.observability.heartbeats import WebhooksReading
from sluice.common.redis.batching import ScriptBatcher
from sluice.common.settings.worker import WorkerSettings
from sluice.worker.features.webhooks.service import WebhookService
from sluice.worker.registry import WorkerServices
from tests.support.servers import Backend
from tests.support.waiting import eventually
from tests.support.webhook_receiver import Answer, Receiver

SECRET = "a secret of some length for webhooks"
LEASE_MS = 60_000


class WebhookHarness:
    """The real scripts on one backend."""

    def __init__(self, backend: Backend, keys: JobKeys, directory: Path) -> None:
        self.backend = backend
        self.client = backend.client()
        self.keys = WorkflowKeys(keys.tag)
        self.jobs = keys
        self.batcher = ScriptBatcher(backend.wire(), self.jobs, WORKFLOW_SCRIPT, 5.0)
        self.workflows = WorkflowStore(self.client, self.jobs, self.batcher)
        self.store = WebhookStore(self.client, self.batcher, self.keys)
        self.letters = WebhookDeadLetterStore(self.client, self.workflows)
        self.file = directory / "dead" / "letters.jsonl"
        self._numbers = itertools.count()
        self._services: list[WebhookService] = []
        self._receivers: list[Receiver] = []
        self._tasks: list[asyncio.Task[Any]] = []

    # -- jobs ------------------------------------------------------------------------------

    async def job(self, url: str, ttl_s: int = 3600) -> str:
        """Create a job whose first webhook has not been sent yet."""
        number = next(self._numbers)
        wanted = NewWorkflow(
            DEFINITION,
            "20260214",
            ttl_s,
            webhook=Webhook(url, tuple(each.value for each in DEFAULT_WEBHOOK_EVENTS)),
        )
        made = await self.workflows.create(
            wanted,
            IdempotencyClaim(self.keys.answer("create", f"k{number}"), "same", 60),
            StepIds(f"ex_{number:08x}", f"00000000-0000-4000-8000-{number:012d}"),
            AdmissionLimits("workers", 1000, 600),
        )
        job_id: str = made.facts["job_id"]
        return job_id

    async def add_events(self, job_id: str, count: int, first: int = 2) -> None:
        """Add events to the outbox, as the scripts do."""
        for seq in range(first, first + count):
            entry = {
                "seq": seq,
                "type": "step.completed",
                "ts": 1_771_083_600_123,
                "status": "running",
                "current_step": "sources",
                "data": json.dumps({"step": "sources", "count": seq}),
            }
            await self.client.rpush(self.keys.outbox(job_id), json.dumps(entry))
        await self.client.zadd(self.keys.deliveries, {job_id: 1}, nx=True)
        await self.client.publish(self.keys.wake, job_id)

    async def claim(self, name: str, lease_ms: int = LEASE_MS) -> ClaimedDelivery | None:
        taken = await self.store.claim([name], lease_ms)
        return taken[0] if taken else None

    async def claimed(self, name: str, lease_ms: int = LEASE_MS) -> ClaimedDelivery:
        """A delivery that can be claimed."""
        taken = await self.claim(name, lease_ms)
        assert taken is not None
        return taken

    async def due_now(self, name: str) -> None:
        """Make a delivery due: expire its lease or its retry delay."""
        assert await self.client.zadd(self.keys.deliveries, {name: 1}, xx=True, ch=True) == 1

    async def record(self, job_id: str) -> dict[bytes, bytes]:
        return await self.client.hgetall(self.keys.job(job_id))  # type: ignore[no-any-return]

    async def webhook_state(self, job_id: str) -> str:
        """`ok`, `retrying` or `failed`; empty before the first delivery."""
        status = await self.client.hget(self.keys.job(job_id), "webhook_status")
        return (status or b"").decode()

    async def redrive(self, *event_ids: str, key: str = "") -> Any:
        """Redrive dead letters as the gateway does."""
        name = key or f"r{next(self._numbers)}"
        return await self.letters.redrive(
            event_ids, IdempotencyClaim(self.keys.answer("redrive", name), ",".join(event_ids), 60)
        )

    # -- the service -----------------------------------------------------------------------

    async def service(self, *, run: bool = True, **changes: object) -> WebhookService:
        """The service of a worker; with `run`, running."""
        values: dict[str, Any] = {
            "workflow_webhook_allowed_hosts": "127.0.0.1",
            "workflow_webhook_secret": SECRET,
            "workflow_webhook_retry_backoff_seconds": 0.02,
            "workflow_webhook_retry_cap_seconds": 2.0,
            "workflow_webhook_timeout_seconds": 5.0,
            "workflow_webhook_dlq_path": str(self.file),
            **changes,
        }
        service = WebhookService(WorkerSettings(**values))
        services = WorkerServices(
            *(self.client, None, self.workflows, None, self.jobs, None, self.store),  # type: ignore[arg-type]
            subscribe=lambda heard: self.backend.wire(on_message=heard),
        )
        await service.start(services)
        self._services.append(service)
        if run:
            self._tasks.append(asyncio.create_task(service.run()))
        return service

    async def receiver(self, *answers: Answer | int | str) -> Receiver:
        """A receiver that gives these answers, and the last one from then on."""
        self._receivers.append(Receiver({"/": answers or [200]}))
        return await self._receivers[-1].start()

    async def delivered(
        self, *answers: Answer | int | str, events: int = 1, **settings: object
    ) -> tuple[Receiver, str]:
        """Deliver events of a job to a receiver with these answers; returns it and the job's id."""
        server = await self.receiver(*answers)
        await self.service(**settings)
        job_id = await self.job(server.url())
        if events > 1:
            await self.add_events(job_id, events - 1)
        await self.all_sent()
        return server, job_id

    async def run_once(self) -> None:
        """Start a service, let it scan for deliveries once, and stop it."""
        service = await self.service(run=False)
        await service.run_once()
        await service.close()

    def readings(self) -> list[WebhooksReading]:
        """What the services report."""
        return [service.reading() for service in self._services]

    async def all_sent(self) -> None:
        await eventually(self.nothing_due, 20)

    def lines(self) -> list[dict[str, Any]]:
        """Lines of the dead-letter file."""
        if not self.file.exists():
            return []
        return [json.loads(line) for line in self.file.read_text().splitlines()]

    async def nothing_due(self) -> bool:
        return not await self.client.exists(self.keys.deliveries)

    async def close(self) -> None:
        await cancel(*self._tasks)
        for service in self._services:
            await service.close()
        for receiver in self._receivers:
            await receiver.close()
        await self.batcher.close()
