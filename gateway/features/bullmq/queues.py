"""The BullMQ queues that clients may add jobs to."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final

from redis.exceptions import RedisError
from starlette.requests import Request

from sluice.common.contracts.bullmq import BullAnswer, BullKeys
from sluice.common.errors import StoreUnavailable
from sluice.common.features.bullmq import package
from sluice.common.features.bullmq.job import parse_queue_names
from sluice.common.features.bullmq.queue import BullQueue
from sluice.common.features.bullmq.scripts import ScriptRunner
from sluice.common.redis.connection import TRANSIENT_ERRORS
from sluice.common.redis.partitions import Partitions
from sluice.common.redis.pipelined import CommandClient
from sluice.common.settings.gateway import GatewaySettings
from sluice.gateway.events.hub import EventHub, SseMetrics
from sluice.gateway.http.problems import Problem

#: Possible answers to a request to add a job.
ADD_ANSWERS: Final = (
    *(BullAnswer.CREATED, BullAnswer.REPLAYED, BullAnswer.DUPLICATE, BullAnswer.DEDUPLICATED),
    *(BullAnswer.CONFLICT, BullAnswer.FULL),
)
#: Seconds a request is retried while Redis is unreachable, before it gets a 503.
REDIS_RETRY_S: Final = 2.5


class BullQueues:
    """The queues in BULLMQ_ADD_QUEUES, their event hub and counters."""

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
        timeouts = settings.sse_heartbeat_s, settings.sse_max_life_s
        partitions = Partitions.create(settings.keys)
        self.hub = EventHub([reading], None, partitions, *timeouts, metrics=numbers)
        self.reserved = package.reserved_names() if self._queues else frozenset()
        #: Requests to add a job, by queue and answer.
        self.outcomes: Counter[tuple[str, BullAnswer]] = Counter()
        #: Jobs by queue and state, as last read; empty if Redis did not answer.
        self.depths: dict[tuple[str, str], int] = {}

    def find(self, name: str) -> BullQueue:
        queue = self._queues.get(name)
        if queue is None:
            raise Problem(404, "queue_not_found", "There is no such queue; see BULLMQ_ADD_QUEUES.")
        return queue

    async def refresh_depths(self, timeout_s: float) -> None:
        """Read the number of jobs in each state."""
        try:
            depths = await asyncio.wait_for(
                asyncio.gather(*(queue.depths() for queue in self._queues.values())), timeout_s
            )
        except (RedisError, asyncio.TimeoutError, StoreUnavailable, *TRANSIENT_ERRORS):
            self.depths = {}
            return
        self.depths = {
            (name, job_state): count
            for name, found in zip(self._queues, depths)
            for job_state, count in found.items()
        }

    @property
    def names(self) -> list[str]:
        return list(self._queues)


def check_settings(settings: GatewaySettings) -> None:
    """Raise at start-up, not at the first job, if a required package is missing."""
    if parse_queue_names(settings.bullmq_add_queues):
        package.require_package("BULLMQ_ADD_QUEUES")


def bullmq_of(request: Request) -> BullQueues:
    """The BullMQ queues behind a request."""
    queues: BullQueues = request.app.state.bullmq
    return queues
