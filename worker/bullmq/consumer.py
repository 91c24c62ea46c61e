"""The consumer of one BullMQ queue, and the worker for all configured queues."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Coroutine
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from sluice.common import codec
from sluice.common.contracts.bullmq import BullKeys
from sluice.common.contracts.workers import TaskCounter
from sluice.common.errors import StoreUnavailable
from sluice.common.features.bullmq.job import parse_name_map, parse_queue_names
from sluice.common.jobs.store import WorkerIdentity
from sluice.common.redis.connection import REPLY_TIMEOUT_S, sync_client
from sluice.common.redis.pipelined import PipelinedConnection
from sluice.worker.bullmq.job import BullMQHandlers, LockedJob
from sluice.worker.bullmq.locks import RETRY_S, LockRenewer, StallChecker
from sluice.worker.bullmq.reader import BullMQReader, BullMQSlots
from sluice.worker.bullmq.reports import BullMQBackend
from sluice.worker.bullmq.schedules import ScheduleWriter
from sluice.worker.bullmq.script_client import ScriptClient
from sluice.worker.bullmq.scripts import QueueScripts
from sluice.worker.execution.control import ControlListener, ControlTarget
from sluice.worker.execution.executor import Executor
from sluice.worker.execution.leases import LeaseKeeper
from sluice.worker.execution.outcome import WorkerDefaults
from sluice.worker.monitoring.counters import Counters
from sluice.worker.monitoring.shutdown import StopSignals
from sluice.worker.queue.slots import Slots
from sluice.worker.registry import Registry

if TYPE_CHECKING:
    from sluice.common.observability.heartbeats import BullmqReading
    from sluice.common.settings.worker import WorkerSettings

log = logging.getLogger(__name__)


class BullMQConsumer:
    """All parts that read and run the jobs of one BullMQ queue in this process."""

    def __init__(
        self,
        url: str,
        queue: str,
        settings: WorkerSettings,
        registry: Registry,
    ) -> None:
        self.counters = Counters()
        self.keys = BullKeys(queue, settings.bullmq_prefix)
        lock_s = settings.bullmq_lock_ms / 1000
        reply_timeout_s = min(REPLY_TIMEOUT_S, max(lock_s / 2, 1.0))
        self._writing = PipelinedConnection(url, reply_timeout_s=reply_timeout_s)
        self._blocking = PipelinedConnection(
            url,
            block_s=settings.bullmq_drain_delay_s,
            reply_timeout_s=reply_timeout_s,
            client_name=client_name(self.keys, settings.bullmq_worker_name),
        )
        client = ScriptClient(self._writing)
        scripts = QueueScripts(self.keys, settings)
        renewing = sync_client(url, reply_timeout_s=min(REPLY_TIMEOUT_S, lock_s / 3))
        renew_s = settings.bullmq_renew_every_ms / 1000
        self.locks = LeaseKeeper(
            LockRenewer(renewing, scripts), lock_s, renew_s, min(RETRY_S, renew_s)
        )
        self.slots = BullMQSlots(settings.bullmq_concurrency)
        self._jobs: dict[str, LockedJob] = {}
        self.reader = BullMQReader(
            client,
            self._blocking,
            scripts,
            self.slots,
            self._start,
            self._jobs.__contains__,
            settings.bullmq_drain_delay_s,
        )
        self.backend = BullMQBackend(
            client, scripts, settings, self.locks.good_until, self._jobs, self.reader
        )
        self.handlers = BullMQHandlers(
            registry, parse_name_map(settings.bullmq_name_map), self._jobs.get
        )
        worker = WorkerIdentity(
            self.keys.key(""),
            settings.bullmq_worker_name,
            settings.bullmq_lock_ms,
            settings.default_ttl_s,
        )
        self.executor = Executor(
            self.backend,
            self.handlers,
            self.locks,
            worker,
            self.slots,
            WorkerDefaults.from_settings(settings),
            lambda message_id, delay_s: None,  # BullMQ keeps delayed jobs in the queue itself
            counters=self.counters,
            on_fault=self.backend.record_fault,
            encode_result=codec.dumps_node,
        )
        self.schedules = ScheduleWriter(client, scripts, settings.bullmq_lock_ms)
        self.stalls = StallChecker(client, scripts, settings.bullmq_stalled_interval_ms)
        self.control = ControlListener(
            lambda on_message: PipelinedConnection(url, on_message=on_message),
            self.keys.control,
            [ControlTarget(self.executor.cancel, self.locks.wake)],
        )
        self._read_task: asyncio.Task[None] | None = None
        self._background_tasks: list[asyncio.Task[Any]] = []

    def start(self) -> None:
        self.locks.start()
        self._read_task = asyncio.create_task(self.reader.run())
        work: tuple[Coroutine[Any, Any, None], ...]
        work = (self.stalls.run(), self.control.run())
        self._background_tasks = [asyncio.create_task(part) for part in work]

    def _start(self, job: LockedJob) -> None:
        """Run a job that was just locked. A stopping worker releases it without running it."""
        self._jobs[job.id] = job
        if job.scheduler:
            self.schedules.add(job)
        self.slots.start(self._release(job) if self.reader.stopping else self._run(job))

    async def _release(self, job: LockedJob) -> None:
        try:
            await self.backend.release_job(job)
        except StoreUnavailable as error:
            log.warning("job %s stays locked until its lock expires: %s", job.id, error)
        finally:
            self._forget(job)

    async def _run(self, job: LockedJob) -> None:
        try:
            await self.executor.run(job.claimed_job)
        finally:
            self._forget(job)

    def _forget(self, job: LockedJob) -> None:
        if self._jobs.get(job.id) is job:
            del self._jobs[job.id]

    async def count_waiting(self) -> int:
        """How many jobs wait, with and without priority."""
        wait, prioritized = self.keys.key("wait"), self.keys.key("prioritized")
        plain = await self._writing.execute_command("LLEN", wait)
        return int(plain + await self._writing.execute_command("ZCARD", prioritized))

    async def drain(self, grace_s: float, force_requested: asyncio.Event) -> None:
        """Take no more jobs, let running ones finish, and release the rest. Locks are renewed
        meanwhile."""
        await self.reader.stop()
        if self._read_task is not None:
            await asyncio.wait({self._read_task})
        idle = asyncio.create_task(self.slots.wait_idle(grace_s))
        forced = asyncio.create_task(force_requested.wait())
        await asyncio.wait({idle, forced}, return_when=asyncio.FIRST_COMPLETED)
        forced.cancel()
        if not idle.done() or not idle.result():
            idle.cancel()
            log.warning(
                "%d jobs of %s did not finish in time and are released",
                self.slots.busy,
                self.keys.queue,
            )
            self.executor.begin_shutdown()
            await self.slots.cancel()
            await self.executor.release_remaining()

    async def close(self) -> None:
        await self.schedules.flush()
        for task in self._background_tasks:
            task.cancel()
        await asyncio.gather(*self._background_tasks, return_exceptions=True)
        self.locks.stop()
        await self.control.close()
        for connection in (self._writing, self._blocking):
            await connection.aclose()


def client_name(keys: BullKeys, worker_name: str) -> str:
    """The client name by which Node's `queue.getWorkers()` recognises workers."""
    queue = base64.b64encode(keys.queue.encode()).decode()
    return f"{keys.prefix}:{queue}:w:{worker_name}"


class BullMQWorker:
    """A consumer for each queue in BULLMQ_QUEUES."""

    def __init__(self, url: str, settings: WorkerSettings, registry: Registry) -> None:
        url = settings.bullmq_redis_url or url
        self._grace_s = settings.bullmq_shutdown_grace_s
        self._concurrency = settings.bullmq_concurrency
        self.consumers = [
            BullMQConsumer(url, queue, settings, registry)
            for queue in parse_queue_names(settings.bullmq_queues)
        ]

    @property
    def slots(self) -> list[Slots]:
        return [consumer.slots for consumer in self.consumers]

    def start(self) -> None:
        for consumer in self.consumers:
            consumer.start()
            log.info("worker takes jobs from BullMQ's queue %s", consumer.keys.queue)

    async def drain(self, signals: StopSignals) -> None:
        """Let running jobs finish, and release those that do not finish in time."""
        await asyncio.gather(
            *(consumer.drain(self._grace_s, signals.force_requested) for consumer in self.consumers)
        )

    async def close(self) -> None:
        for consumer in self.consumers:
            await consumer.close()

    # -- status ----------------------------------------------------------------------------

    def running_status(self) -> str:
        return f"{sum(slots.busy for slots in self.slots)} running"

    async def waiting_status(self) -> str:
        return f"{sum([await consumer.count_waiting() for consumer in self.consumers])} waiting"

    def problem(self) -> str:
        """A description for the watchdog; empty if there is no problem."""
        queues = [consumer.keys.queue for consumer in self.consumers if not consumer.locks.healthy]
        return f"locks of {', '.join(queues)} are not renewed" if queues else ""

    def readings(self) -> list[BullmqReading]:
        """State and counters for the heartbeat. (`python -m sluice.worker.bullmq` sends none.)"""
        from sluice.common.observability.heartbeats import BullmqReading

        names = {each.name for each in fields(BullmqReading)}
        counted = [count for count in TaskCounter if count.value in names]
        return [
            BullmqReading(
                queue=consumer.keys.queue[:256],
                places=self._concurrency,
                running=consumer.slots.busy,
                stalled=consumer.stalls.stalled,
                locks_lost=consumer.locks.lost,
                errors=consumer.reader.errors,
                **{count.value: consumer.counters.total(count) for count in counted},
            )
            for consumer in self.consumers
        ]
