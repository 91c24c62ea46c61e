"""What the routes of one running gateway share."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from redis.asyncio import Redis
from starlette.requests import Request

from common.audit import Auditor
from common.coalescer import Coalescer
from common.contracts.access import AccessKeys
from common.contracts.images import ImageKeys
from common.contracts.stats import StatsKeys
from common.contracts.workflow import WorkflowKeys
from common.images.reader import ImageReader
from common.images.spool import Spool
from common.images.storage import Storage
from common.images.storage_choice import spool_of, storage_of
from common.images.store import ImageStore
from common.partition_lines import Lines
from common.pause import Pauses
from common.queue import QueueStore
from common.settings import GatewaySettings
from common.store import JobStore
from common.webhook_hosts import AllowedHosts
from common.workflow.known import KnownWorkflows
from common.workflow.reader import WorkflowReader
from common.workflow.store import WorkflowStore
from gateway.access import Access
from gateway.admission import DrainRate
from gateway.bullmq.queues import BullQueues
from gateway.feed import Feed
from gateway.images.numbers import ImageNumbers
from gateway.images.stages import StageHub
from gateway.images.tokens import UploadTokens
from gateway.pressure import Pressure
from gateway.stats.history import History
from gateway.stats.rings import Rings
from gateway.tail import Hub

#: Uploads are written by so many threads: as a rule the disk is what they wait for.
SPOOL_THREADS: Final = 4


@dataclass(frozen=True)
class GatewayState:
    """Made when the app starts, gone when it stops."""

    settings: GatewaySettings
    store: JobStore
    hub: Hub
    drain_rate: DrainRate
    queue: QueueStore
    auditor: Auditor
    #: For routes that only read: each partition's, and the home's, where all is that there is one
    #: of.
    lines: Lines
    client: Redis
    #: What each partition has room for: its share of what the settings allow.
    backlog_limit: int
    schedule_limit: int
    access: Access
    pressure: Pressure
    workflows: WorkflowStore
    workflow_reader: WorkflowReader
    known_workflows: KnownWorkflows
    webhook_hosts: AllowedHosts
    images: ImageStore
    image_reader: ImageReader
    #: Uploads before they are processed, and what becomes of them.
    spool: Spool
    storage: Storage
    stages: StageHub
    #: None where uploads are not signed for.
    upload_tokens: UploadTokens | None
    bullmq: BullQueues
    #: How things went.
    stats: History
    #: What goes on, for pages.
    feed: Feed
    pauses: Pauses
    image_numbers: ImageNumbers = field(default_factory=ImageNumbers)
    spool_threads: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(SPOOL_THREADS, "spool")
    )

    @classmethod
    def over(
        cls,
        settings: GatewaySettings,
        store: JobStore,
        hub: Hub,
        queue: QueueStore,
        auditor: Auditor,
        lines: Lines,
        workflows: Coalescer,
        images: Coalescer,
        bullmq: BullQueues,
    ) -> GatewayState:
        """Wired together; `workflows` and `images` carry their scripts."""
        client, share = lines.home.client, lines.partitions.share
        workflow_keys, image_keys = WorkflowKeys(store.keys.tag), ImageKeys(store.keys.tag)
        image_reader = ImageReader(client, image_keys)
        history = History(Rings(client, StatsKeys(settings.keys.queue)))
        patience = settings.sse_heartbeat_s, settings.sse_max_life_s
        return cls(
            settings,
            store,
            hub,
            DrainRate(store),
            queue,
            auditor,
            lines,
            client,
            share(settings.backpressure_max_backlog),
            share(settings.max_scheduled),
            Access.over(client, store, queue, AccessKeys(settings.keys.tag)),
            Pressure.over(client, settings),
            WorkflowStore(client, store.keys, workflows, workflow_keys),
            WorkflowReader(client, workflow_keys),
            KnownWorkflows(client, workflow_keys),
            AllowedHosts.parse(settings.workflow_webhook_allowed_hosts),
            ImageStore(client, store.keys, images, image_keys),
            image_reader,
            spool_of(settings),
            storage_of(settings),
            StageHub(image_reader, *patience),
            UploadTokens.of(settings.image_upload_secret),
            bullmq,
            history,
            Feed(lines, history, hub.numbers, *patience),
            Pauses(client, settings.keys),
        )

    @property
    def stream_clients(self) -> int:
        """Event streams that are open, of whatever kind."""
        hubs = (self.hub, self.stages, self.bullmq.hub, self.feed)
        return sum(hub.clients for hub in hubs)

    def hinted(self, message: bytes) -> None:
        """Jobs and images named here have changed."""
        self.hub.hinted(message)
        self.stages.hinted(message)
        self.feed.hinted(message)

    def say_goodbye(self) -> None:
        """End every stream politely."""
        self.hub.say_goodbye()
        self.stages.say_goodbye()
        self.bullmq.hub.say_goodbye()
        self.feed.say_goodbye()

    async def close(self) -> None:
        """Stop what is under way, and hang up."""
        await self.access.close()
        await self.stages.stop()
        await self.feed.stop()
        await self.bullmq.hub.stop()
        self.spool_threads.shutdown(wait=False)
        await self.storage.close()


def state_of(request: Request) -> GatewayState:
    """The state behind a request."""
    state: GatewayState = request.app.state.gateway
    return state
