"""Queue consumers: one for each queue that the worker serves.

They share the slots, the counters and the handlers of the worker. `QueueConsumers` adds up what is
reported for the process: running jobs, deferred messages, queue lengths.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from redis.exceptions import RedisError

from sluice.common.contracts.jobs import JobKeys
from sluice.common.contracts.queue import Lane, paused_key
from sluice.common.features.images.scripts import IMAGE_SCRIPT
from sluice.common.features.images.store import ImageStore
from sluice.common.features.workflows.scripts import WORKFLOW_SCRIPT
from sluice.common.features.workflows.store import WorkflowStore
from sluice.common.features.workflows.webhooks.store import WebhookStore
from sluice.common.jobs.limits import TaskLimit
from sluice.common.jobs.queue import Promoter, QueueStore
from sluice.common.jobs.queue_stats import QueueReader, QueueReading, combine_readings
from sluice.common.jobs.scripts import CORE_SCRIPT
from sluice.common.jobs.store import JobStore, WorkerIdentity
from sluice.common.jobs.wait_queue import WaitQueues
from sluice.common.redis.batching import RecordOutcome, ScriptBatcher
from sluice.common.redis.connection import TRANSIENT_ERRORS
from sluice.common.redis.pipelined import CommandClient
from sluice.common.redis.scripts import Record
from sluice.worker.execution.attempt import Attempt, RunningAttempts
from sluice.worker.execution.control import ControlListener, ControlTarget, OnMessage
from sluice.worker.execution.executor import Executor
from sluice.worker.execution.leases import JobLeaseRenewer, LeaseKeeper
from sluice.worker.execution.outcome import WorkerDefaults
from sluice.worker.monitoring.cleanup import QueueCleaner
from sluice.worker.monitoring.counters import Counters
from sluice.worker.queue.admission import Admission
from sluice.worker.queue.claim import Claimer
from sluice.worker.queue.connections import Connections, ensure_file_limit, open_connections
from sluice.worker.queue.deferred import DeferredMessages
from sluice.worker.queue.fair_share import RESERVATION_TTL_S, FairShare
from sluice.worker.queue.limits import LocalLimits, TaskLimits
from sluice.worker.queue.prefetch import PiggybackFetch
from sluice.worker.queue.reader import Reader
from sluice.worker.queue.recovery import Recovery
from sluice.worker.queue.slots import Slots
from sluice.worker.queue.wait_queue import WaitingMessages, WaitQueueConsumer
from sluice.worker.registry import Registry

if TYPE_CHECKING:
    from sluice.common.settings.worker import WorkerSettings


@dataclass(frozen=True)
class Capacity:
    """How many jobs a worker runs at once, and how it reads them."""

    max_inflight: int = 16
    count: int = 16
    block_ms: int = 1000
    task_limits: Sequence[TaskLimit] = ()
    task_limits_global: Sequence[TaskLimit] = ()


class SharedCapacity:
    """The slots, limits and counters that all queues of a worker share."""

    def __init__(self, capacity: Capacity, queues: int = 1) -> None:
        self.capacity = capacity
        self.counters = Counters()
        self.slots = Slots(capacity.max_inflight, RESERVATION_TTL_S if queues > 1 else None)
        self.local_limits = LocalLimits(capacity.task_limits)
        #: None if there is only one queue, which then has all slots.
        self.fair_share = FairShare(self.slots) if queues > 1 else None


class QueueConsumer:
    """All parts that read and run the jobs of one queue in this process."""

    def __init__(
        self,
        connections: Connections,
        keys: JobKeys,
        worker: WorkerIdentity,
        registry: Registry,
        shared: SharedCapacity,
        defaults: WorkerDefaults,
        weight: int = 1,
        lanes: Sequence[str] = (),
    ) -> None:
        capacity, fair_share = shared.capacity, shared.fair_share
        self.connections = connections
        self.keys = keys
        self.worker = worker
        self.registry = registry
        self.max_inflight = capacity.max_inflight
        self.counters = shared.counters
        self.batcher = ScriptBatcher(
            connections.writing, keys, CORE_SCRIPT, on_flush=self._attach_fetch
        )
        self.store = JobStore(connections.client, keys, self.batcher)
        self.workflow_batcher = ScriptBatcher(connections.writing, keys, WORKFLOW_SCRIPT)
        self.workflows = WorkflowStore(connections.client, keys, self.workflow_batcher)
        self.webhooks = WebhookStore(connections.client, self.workflow_batcher, self.workflows.keys)
        self.image_batcher = ScriptBatcher(connections.writing, keys, IMAGE_SCRIPT)
        self.images = ImageStore(connections.client, keys, self.image_batcher)
        # The promoter passes the configured lanes to the script, which adds the jobs to them.
        self.queue = QueueStore(
            connections.client, keys, self.batcher, dict.fromkeys(lanes, self.batcher)
        )
        self.leases = LeaseKeeper(
            JobLeaseRenewer(connections.renewing, keys, worker), worker.lease_ms / 1000
        )
        self.slots = shared.slots
        self.deferred = DeferredMessages(connections.writing, keys.stream, worker, self.slots)
        wait_queues = WaitQueues(connections.writing, keys.stream, worker.group, self.batcher)
        self.waiting = WaitingMessages(wait_queues)
        running = RunningAttempts()
        self.limits = TaskLimits(
            shared.local_limits,
            capacity.task_limits_global,
            keys,
            on_capacity=self.waiting.wake,
            is_waiting=self.waiting.has,
            running=running.limit_holders,
        )
        self.executor = Executor(
            self.store,
            registry,
            self.leases,
            worker,
            self.slots,
            defaults,
            self.deferred.add,
            self.limits,
            self.counters,
            running=running,
        )
        self.claimer = Claimer(
            self.store,
            worker,
            self.limits,
            self.deferred.add,
            registry.max_attempts_of,
            self.counters,
            on_limited=self.waiting.put,
        )
        self.wait_queue = WaitQueueConsumer(
            self.waiting,
            wait_queues,
            connections.writing,
            keys.stream,
            worker,
            self.slots,
            self.limits,
            self.claimer,
            registry,
        )
        self.admission = Admission(
            self.slots, self.limits, self.claimer, self.executor, self.deferred, self.waiting
        )
        share = fair_share.join(weight) if fair_share else None
        self.prefetch = PiggybackFetch(
            self.batcher,
            self.slots,
            self.limits,
            self.claimer,
            self.admission,
            capacity.count,
            registry.max_attempts_by_task,
            share,
        )
        self.reader = Reader(
            connections.reading,
            keys.stream,
            worker,
            self.slots,
            self.admission,
            capacity.count,
            capacity.block_ms,
            self.counters,
            share,
            prefetch=self.prefetch,
        )
        self.recovery = Recovery(
            connections.writing,
            keys.stream,
            worker,
            self.slots,
            self.admission,
            self.deferred,
            self.counters,
            fair_share.join(weight, reads=False) if fair_share else None,
        )
        self.cleaner = QueueCleaner(self.queue, worker.group)
        #: None for a lane: the promoter of the normal queue promotes the jobs of all lanes.
        self.promoter = None if keys.lane else Promoter(self.queue)

    async def close(self) -> None:
        """Abandon calls in progress. The connections are closed by `QueueConsumers`."""
        self.leases.stop()
        await self.waiting.close()
        await self.batcher.close()
        await self.workflow_batcher.close()
        await self.image_batcher.close()

    @property
    def control_target(self) -> ControlTarget:
        return ControlTarget(self.executor.cancel, self.leases.wake)

    def _attach_fetch(
        self, answered: asyncio.Future[list[RecordOutcome]], calls: int
    ) -> Sequence[Record]:
        # The batcher is built first: all that the prefetch needs writes through it.
        return self.prefetch.attach(answered, calls)


log = logging.getLogger(__name__)

#: Shares of the lanes while all have messages. A tenant's lane counts as the normal one.
WEIGHTS: Final = {Lane.HIGH.value: 8, Lane.NORMAL.value: 4, Lane.LOW.value: 1}
#: Seconds that the servers of several queues get to report their lengths.
READING_S = 1.0


class QueueConsumers:
    """All queue consumers of a process, the home partition's first."""

    def __init__(self, consumers: Sequence[QueueConsumer]) -> None:
        self._consumers = tuple(consumers)
        #: The consumer of the home partition, which has the keys that exist only once.
        self.home = home = self._consumers[0]
        self.slots = home.slots
        self.counters = home.counters
        self.registry = home.registry
        self.worker = home.worker
        self.max_inflight = home.max_inflight

    def __iter__(self) -> Iterator[QueueConsumer]:
        return iter(self._consumers)

    def __len__(self) -> int:
        return len(self._consumers)

    # -- lifecycle -------------------------------------------------------------------------

    def start(self) -> None:
        for consumer in self._consumers:
            consumer.leases.start()

    def read(self) -> Coroutine[Any, Any, None]:
        """Run the readers; ends when all have been stopped."""
        if len(self._consumers) == 1:
            return self.home.reader.run()
        return self._read_all()

    async def _read_all(self) -> None:
        await asyncio.gather(*(consumer.reader.run() for consumer in self._consumers))

    def take_loops(self) -> list[Coroutine[Any, Any, None]]:
        """Everything besides the readers that takes messages: recovery, deferred, wait queues."""
        return [
            work
            for consumer in self._consumers
            for work in (
                consumer.recovery.run(),
                consumer.deferred.run(consumer.admission.offer),
                consumer.wait_queue.run(consumer.admission.offer_waiting),
            )
        ]

    def maintenance_loops(self) -> list[Coroutine[Any, Any, None]]:
        """Cleaning and promotion of delayed jobs."""
        return [
            *(consumer.cleaner.run() for consumer in self._consumers),
            *(consumer.promoter.run() for consumer in self._consumers if consumer.promoter),
        ]

    async def close(self) -> None:
        for consumer in self._consumers:
            consumer.leases.request_stop()
        for consumer in self._consumers:
            await consumer.close()
        connections = {
            id(connection): connection
            for consumer in self._consumers
            for connection in consumer.connections.async_connections
        }
        for connection in connections.values():
            await connection.aclose()

    # -- totals ----------------------------------------------------------------------------

    @property
    def description(self) -> str:
        more = len(self._consumers) - 1
        return self.home.keys.queue + (f" and {more} more" if more else "")

    @property
    def deferred(self) -> int:
        """How many messages are deferred."""
        return sum(len(consumer.deferred) for consumer in self._consumers)

    @property
    def running(self) -> Iterator[Attempt]:
        return itertools.chain.from_iterable(
            consumer.executor.running for consumer in self._consumers
        )

    @property
    def events_emitted(self) -> int:
        """How many events handlers have emitted."""
        return sum(consumer.executor.events_emitted for consumer in self._consumers)

    @property
    def waiting_by_task(self) -> Mapping[str, tuple[int, int]]:
        """By limit key, how many messages wait for a slot of their task, and when the oldest was
        queued (Unix milliseconds, 0 if unknown)."""
        found: dict[str, tuple[int, int]] = {}
        for consumer in self._consumers:
            for task, number in consumer.waiting.counts.items():
                since = consumer.wait_queue.oldest_ms.get(task, 0)
                known, oldest = found.get(task, (0, 0))
                found[task] = known + number, min(filter(None, (since, oldest)), default=0)
        return found

    @property
    def leases_healthy(self) -> bool:
        """True if the leases of at least one queue are renewed. Leases on a server that is
        unavailable are lost, but that must not stop the jobs of other servers."""
        return any(consumer.leases.healthy for consumer in self._consumers)

    async def read_queues(self) -> QueueReading:
        """The combined lengths of all queues; raises ConnectionError if no server answers."""
        if len(self._consumers) == 1:
            return await self._read_queue(self.home)
        readings = [
            asyncio.ensure_future(self._read_queue(consumer)) for consumer in self._consumers
        ]
        try:
            await asyncio.wait(readings, timeout=READING_S)
        finally:
            for each in readings:
                each.cancel()
        await asyncio.wait(readings)
        known = [each.result() for each in readings if not each.cancelled() and _has_answer(each)]
        if not known:
            raise ConnectionError("no partition answers")
        return combine_readings([*known, *[QueueReading()] * (len(readings) - len(known))])

    async def _read_queue(self, consumer: QueueConsumer) -> QueueReading:
        return await QueueReader(consumer.keys.stream, self.worker.group).read(
            consumer.connections.client
        )


def _has_answer(reading: asyncio.Future[QueueReading]) -> bool:
    error = reading.exception()
    if error is not None and not isinstance(error, (RedisError, *TRANSIENT_ERRORS)):
        raise error
    return error is None


def build_consumers(
    settings: WorkerSettings,
    url: str,
    registry: Registry,
    worker: WorkerIdentity,
    capacity: Capacity,
    defaults: WorkerDefaults,
) -> QueueConsumers:
    """A consumer for each partition and each lane of it; the home partition's normal one first."""
    lanes = settings.lane_names
    queues = [
        (keys.for_lane(lane), WEIGHTS.get(lane, WEIGHTS[Lane.NORMAL.value]) if lanes else 1)
        for lane in (Lane.NORMAL.value, *lanes)
        for keys in settings.partitions.keys
    ]
    ensure_file_limit(len(queues))
    shared = SharedCapacity(capacity, len(queues))
    connections: dict[str, Connections] = {}
    consumers = [
        QueueConsumer(
            open_connections(settings, url, keys, connections),
            keys,
            worker,
            registry,
            shared,
            defaults,
            weight,
            lanes,
        )
        for keys, weight in queues
    ]
    return QueueConsumers(consumers)


def build_listeners(
    consumers: QueueConsumers,
    connect: Callable[[JobKeys, OnMessage], CommandClient],
    on_pause_change: Callable[[], None],
) -> list[ControlListener]:
    """One listener per partition; the lanes of a partition share its control channel.

    Only the home partition's channel reports changes of the pause state.
    """
    return [
        ControlListener(
            partial(connect, normal.keys),
            normal.keys.control,
            [each.control_target for each in consumers if each.keys.control == normal.keys.control],
            paused_key(normal.keys.queue),
            on_pause_change if normal is consumers.home else lambda: None,
        )
        for normal in consumers
        if not normal.keys.lane
    ]
