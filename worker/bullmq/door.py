"""The queues of BullMQ that a worker takes jobs from, all of them together."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from common.bullmq.names import queues_in
from common.contracts.workers import Count
from worker.bullmq.queue_crew import QueueCrew
from worker.registry import Registry
from worker.shutdown import StopSignals
from worker.slots import Slots
from worker.terms import WorkerTerms

if TYPE_CHECKING:
    from common.settings import WorkerSettings
    from worker.signs import BullmqReading

log = logging.getLogger(__name__)


class BullDoor:
    """A crew for each queue that BULLMQ_QUEUES names."""

    def __init__(
        self, url: str, settings: WorkerSettings, registry: Registry, terms: WorkerTerms
    ) -> None:
        url = settings.bullmq_redis_url or url
        self._grace_s = settings.bullmq_shutdown_grace_s
        self._places = settings.bullmq_concurrency
        self.crews = [
            QueueCrew(url, queue, settings, registry, terms)
            for queue in queues_in(settings.bullmq_queues)
        ]

    @property
    def slots(self) -> list[Slots]:
        """Where its jobs run."""
        return [crew.slots for crew in self.crews]

    def start(self) -> None:
        """Begin to take jobs."""
        for crew in self.crews:
            crew.start()
            log.info("worker takes jobs from BullMQ's queue %s", crew.keys.queue)

    async def drain(self, signals: StopSignals) -> None:
        """Let running jobs finish, and hand back those that do not in time."""
        await asyncio.gather(*(crew.drain(self._grace_s, signals.insisted) for crew in self.crews))

    async def close(self) -> None:
        """Nothing runs any more."""
        for crew in self.crews:
            await crew.close()

    # -- what it tells ---------------------------------------------------------------------

    def busy(self) -> str:
        """How much it does, in words."""
        return f"{sum(slots.busy for slots in self.slots)} running"

    async def look(self) -> str:
        """What waits, as Redis tells it."""
        return f"{sum([await crew.waiting() for crew in self.crews])} waiting"

    def trouble(self) -> str:
        """What is wrong, if anything is."""
        sick = [crew.keys.queue for crew in self.crews if not crew.locks.healthy]
        return f"locks of {', '.join(sick)} are not renewed" if sick else ""

    def readings(self) -> list[BullmqReading]:
        """For the heartbeat, which a worker of these queues alone has not: what they do."""
        from worker.signs import BullmqReading

        counted = [count for count in Count if count.value in BullmqReading._fields]
        return [
            BullmqReading(
                queue=crew.keys.queue[:256],
                places=self._places,
                running=crew.slots.busy,
                stalled=crew.stalls.stalled,
                locks_lost=crew.locks.lost,
                errors=crew.taker.errors,
                **{count.value: crew.tally.total(count) for count in counted},
            )
            for crew in self.crews
        ]
