"""What handlers need and share: started with the worker, kept going, closed with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from redis.asyncio import Redis

from common.contracts.jobs import JobKeys
from common.partitions import Partitions

if TYPE_CHECKING:
    from common.images.store import ImageStore
    from common.store import WorkerIdentity
    from common.wire import Commander
    from common.workflow.store import WorkflowStore
    from common.workflow.webhook_store import WebhookStore
    from worker.limits import TaskLimits


@dataclass(frozen=True)
class House:
    """The worker's own things that a service may use."""

    redis: Redis
    limits: TaskLimits
    #: Where steps of workflows write, and images; keys of core jobs; the worker's own names.
    workflows: WorkflowStore
    images: ImageStore
    keys: JobKeys
    worker: WorkerIdentity
    #: What is due to webhooks; None where nobody delivers.
    webhooks: WebhookStore | None = None
    #: Opens a connection that hands on what is published (`common.subscription`).
    listen: Callable[[Callable[[bytes], None]], Commander] | None = None
    #: Of which `keys` are the home's.
    partitions: Partitions = field(default_factory=lambda: Partitions.of(JobKeys()))
    #: What services say of themselves in the worker's heartbeat, by member: asked at each beat.
    telling: dict[str, Callable[[], Any]] = field(default_factory=dict)


class Service:
    """A base with nothing to do; `Registry.add_service` takes any of its kind."""

    async def start(self, house: House) -> None:
        """Called once, before the first job is taken. Must not take long."""

    async def run(self) -> None:
        """Called once after that; may run until it is canceled, when the last job has ended."""

    async def close(self) -> None:
        """Called once at the end."""
