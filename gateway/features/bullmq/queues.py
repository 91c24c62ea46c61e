"""The queues that clients may feed, with what it takes to reach them."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final

from redis.exceptions import RedisError
from starlette.requests import Request

from common.contracts.bullmq import BullAnswer, BullKeys
from common.errors import StoreUnavailable
from common.features.bullmq import package
from common.features.bullmq.job import parse_queue_names
from common.features.bullmq.queue import BullQueue
from common.features.bullmq.scripts import ScriptRunner
from common.redis.connection import TRANSIENT_ERRORS
from common.redis.partitions import Partitions
from common.redis.pipelined import CommandClient
from common.settings.gateway import GatewaySettings
from gateway.events.hub import EventHub, SseMetrics
from gateway.http.problems import Problem

#: What may become of a request to add a job.
ADD_ANSWERS: Final = (
    *(BullAnswer.CREATED, BullAnswer.REPLAYED, BullAnswer.DUPLICATE, BullAnswer.DEDUPLICATED),
    *(BullAnswer.CONFLICT, BullAnswer.FULL),
)
#: How long a request is tried against a Redis that is away before it gets 503.
REDIS_RETRY_S: Final = 2.5


class BullQueues:
    """Made when the app starts; there are none where the settings name none."""

    def __init__(
        self,
        settings: GatewaySettings,
        writing: CommandClient,
        reading: CommandClient,
        numbers: SseMetrics,
    ) -> None:
        runner = ScriptRunner(writing, REDIS_RETRY_S)
        self._queues = {
            name: BullQueue(runner, BullKeys(name, settings.bullmq_prefix))
            for name in parse_queue_names(settings.bullmq_add_queues)
        }
        patience = settings.sse_heartbeat_s, settings.sse_max_life_s
        partitions = Partitions.create(settings.keys)
        self.hub = EventHub([reading], None, partitions, *patience, metrics=numbers)
        self.reserved = package.reserved_names() if self._queues else frozenset()
        #: Requests to add a job, by queue and what became of them.
        self.outcomes: Counter[tuple[str, BullAnswer]] = Counter()
        #: Jobs by queue and place, as they were measured last; empty where Redis did not answer.
        self.depths: dict[tuple[str, str], int] = {}

    def find(self, name: str) -> BullQueue:
        queue = self._queues.get(name)
        if queue is None:
            raise Problem(
                404, "queue_not_found", "There is no such queue here; see BULLMQ_ADD_QUEUES."
            )
        return queue

    async def refresh_depths(self, timeout_s: float) -> None:
        """Ask how many jobs there are, and where."""
        try:
            depths = await asyncio.wait_for(
                asyncio.gather(*(queue.depths() for queue in self._queues.values())), timeout_s
            )
        except (RedisError, asyncio.TimeoutError, StoreUnavailable, *TRANSIENT_ERRORS):
            self.depths = {}
            return
        self.depths = {
            (name, place): count
            for name, found in zip(self._queues, depths)
            for place, count in found.items()
        }

    @property
    def names(self) -> list[str]:
        return list(self._queues)


def check_settings(settings: GatewaySettings) -> None:
    """Say now what is missing, and not when a job comes."""
    if parse_queue_names(settings.bullmq_add_queues):
        package.require_package("BULLMQ_ADD_QUEUES")


def bullmq_of(request: Request) -> BullQueues:
    """The BullMQ queues behind a request."""
    queues: BullQueues = request.app.state.bullmq
    return queues
