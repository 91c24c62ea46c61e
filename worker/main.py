"""`python -m sluice.worker`: builds a worker from its settings, runs it, stops it gracefully."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from sluice.common.aio import cancel
from sluice.common.contracts.workers import WorkerField
from sluice.common.jobs.limits import parse_limits
from sluice.common.jobs.store import WorkerIdentity
from sluice.common.process import runtime
from sluice.common.process.host import pressure_bounds
from sluice.common.process.systemd import Watchdog
from sluice.common.process.usage import LoopLag
from sluice.common.redis.addresses import url_for_tag
from sluice.common.redis.pipelined import PipelinedConnection
from sluice.common.settings.base import load_settings
from sluice.common.settings.worker import WorkerSettings
from sluice.worker.execution.outcome import WorkerDefaults
from sluice.worker.monitoring import shutdown
from sluice.worker.monitoring.audit import LazyAuditor, PeriodicAudit
from sluice.worker.monitoring.heartbeat import HeartbeatSender
from sluice.worker.monitoring.intake_gate import PauseGate, PressureGate
from sluice.worker.monitoring.shutdown import StopSignals
from sluice.worker.queue.consumers import (
    Capacity,
    QueueConsumers,
    build_consumers,
    build_listeners,
)
from sluice.worker.registry import Registry, WorkerServices

if TYPE_CHECKING:
    from sluice.worker.bullmq.consumer import BullMQWorker

log = logging.getLogger(__name__)


async def serve(
    settings: WorkerSettings, url: str, registry: Registry, *, takes_stream: bool = True
) -> None:
    """Run jobs until SIGTERM or SIGINT, then let the running ones finish.

    Without `takes_stream` only the jobs of BullMQ queues.
    """
    worker = Worker(settings, url, registry, takes_stream=takes_stream)
    reading = await worker.start()
    try:
        await worker.wait_for_stop(reading)
        await worker.drain(reading)
    finally:
        await worker.close()


class Worker:
    """The parts of a worker process, in the order in which they are built, started and stopped."""

    def __init__(
        self, settings: WorkerSettings, url: str, registry: Registry, *, takes_stream: bool
    ) -> None:
        self._settings = settings
        self._takes_stream = takes_stream
        self._services = registry.services
        self._consumers = consumers = build_consumers(
            settings,
            url,
            registry,
            build_identity(settings),
            build_capacity(settings),
            WorkerDefaults.from_settings(settings),
        )
        self._bullmq = bullmq = build_bullmq_worker(settings, url, registry)
        client = consumers.home.connections.client
        self._pressure_gate = PressureGate(
            consumers.slots, pressure_bounds(settings), more_slots=bullmq.slots if bullmq else ()
        )
        self._pressure_gate.run_once()  # before the first job is taken
        self._pause_gate = PauseGate(client, settings.keys.queue, consumers.slots)
        self._listeners = build_listeners(
            consumers,
            lambda keys, on_message: PipelinedConnection(
                url_for_tag(url, keys.tag), on_message=on_message
            ),
            self._pause_gate.check_now,
        )
        self._audit = PeriodicAudit(
            LazyAuditor(consumers), client, settings.keys, settings.audit_every_s
        )
        self._worker_services = build_worker_services(
            settings, url, consumers, self._heartbeat_fields()
        )
        self._loop_lag = LoopLag()
        self._heartbeat = HeartbeatSender(
            consumers,
            settings.keys,
            settings.heartbeat_s,
            self._loop_lag,
            self._pressure_gate.host_readings,
            self._reason_for_holding,
            self._worker_services.heartbeat_fields,
        )
        self._watchdog = build_watchdog(consumers, bullmq)
        self._signals = StopSignals()
        self._take_tasks: list[asyncio.Task[Any]] = []
        self._background_tasks: list[asyncio.Task[Any]] = []

    async def start(self) -> asyncio.Task[Any]:
        """Start all parts; returns the task that reads the queues."""
        self._signals.install()
        for service in self._services:
            await service.start(self._worker_services)
        self._consumers.start()
        if self._bullmq:
            self._bullmq.start()
        if self._takes_stream:
            self._take_tasks = _create_tasks(*self._consumers.take_loops())
        self._background_tasks = _create_tasks(
            *self._consumers.maintenance_loops(),
            *(listener.run() for listener in self._listeners),
            self._audit.run(),
            self._loop_lag.run(),
            self._heartbeat.run(),
            self._pressure_gate.run(),
            self._pause_gate.run(),
            *(service.run() for service in self._services),
        )
        reading = asyncio.create_task(
            self._consumers.read() if self._takes_stream else self._wait_for_signal()
        )
        if self._takes_stream:
            consumer, queues = self._settings.consumer, self._consumers.description
            log.info("worker %s takes jobs from %s", consumer, queues)
        self._background_tasks += [reading, *_create_tasks(self._watchdog.run())]
        return reading

    async def wait_for_stop(self, reading: asyncio.Task[Any]) -> None:
        """Wait for a signal, or for a reader that failed."""
        stopping = asyncio.create_task(self._wait_for_signal())
        try:
            await asyncio.wait({reading, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()

    async def _wait_for_signal(self) -> None:
        await self._signals.stop_requested.wait()

    async def drain(self, reading: asyncio.Task[Any]) -> None:
        """Take no more jobs and let the running ones finish."""
        for task in self._take_tasks:
            task.cancel()
        self._watchdog.notify_stopping()
        grace_s = self._settings.shutdown_grace_s
        drains = [shutdown.drain(self._consumers, reading, grace_s, self._signals)]
        if self._bullmq:
            drains.append(self._bullmq.drain(self._signals))
        for result in await asyncio.gather(*drains, return_exceptions=True):
            if result is not None:
                raise result

    async def close(self) -> None:
        await cancel(*self._take_tasks, *self._background_tasks)
        if self._bullmq:
            await self._bullmq.close()
        for service in self._services:
            await service.close()
        await self._heartbeat.remove()
        for listener in self._listeners:
            await listener.close()
        await self._consumers.close()

    def _heartbeat_fields(self) -> dict[str, Callable[[], Any]]:
        fields: dict[str, Callable[[], Any]] = {WorkerField.PAUSED: lambda: self._pause_gate.paused}
        if self._bullmq:
            fields[WorkerField.BULLMQ] = self._bullmq.readings
        return fields

    def _reason_for_holding(self) -> str:
        """Why no new jobs are taken; empty if they are."""
        return "; ".join(filter(None, (self._pressure_gate.why, self._pause_gate.why)))


def _create_tasks(*work: Coroutine[Any, Any, Any]) -> list[asyncio.Task[Any]]:
    return [asyncio.create_task(part) for part in work]


def build_bullmq_worker(
    settings: WorkerSettings, url: str, registry: Registry
) -> BullMQWorker | None:
    """None if BULLMQ_QUEUES is not set."""
    if not settings.bullmq_queues:
        return None
    from sluice.worker.bullmq.consumer import BullMQWorker  # needs the optional package `bullmq`

    return BullMQWorker(url, settings, registry)


def build_worker_services(
    settings: WorkerSettings,
    url: str,
    consumers: QueueConsumers,
    heartbeat_fields: dict[str, Callable[[], Any]],
) -> WorkerServices:
    home = consumers.home
    return WorkerServices(
        home.connections.client,
        home.limits,
        home.workflows,
        home.images,
        settings.keys,
        home.worker,
        home.webhooks,
        subscribe=lambda on_message: PipelinedConnection(url, on_message=on_message),
        partitions=settings.partitions,
        heartbeat_fields=heartbeat_fields,
    )


def build_watchdog(consumers: QueueConsumers, bullmq: BullMQWorker | None = None) -> Watchdog:
    """The status that systemd shows is `3 running, 12 waiting`."""
    bullmq_slots = bullmq.slots if bullmq else []

    async def waiting_status() -> str:
        return f"{(await consumers.read_queues()).waiting or 0} waiting"

    def problem() -> str:
        if not consumers.leases_healthy:
            return "leases are not renewed"
        return bullmq.problem() if bullmq else ""

    return Watchdog(
        lambda: f"{consumers.slots.busy + sum(each.busy for each in bullmq_slots)} running",
        waiting_status,
        problem,
    )


def build_identity(settings: WorkerSettings) -> WorkerIdentity:
    return WorkerIdentity(
        settings.worker_group,
        settings.consumer,
        settings.lease_ms,
        settings.default_ttl_s,
        settings.max_attempts,
    )


def build_capacity(settings: WorkerSettings) -> Capacity:
    return Capacity(
        settings.max_inflight,
        settings.count,
        settings.block_ms,
        parse_limits(settings.task_limits),
        parse_limits(settings.task_limits_global),
    )


def build_registry(settings: WorkerSettings) -> Registry:
    """The built-in handlers, then the user's (WORKER_HANDLERS), which may replace them."""
    from sluice.worker.handlers import builtin  # many imports, which the echo worker does not need

    registry = Registry()
    builtin.register(registry, settings)
    for module in settings.handler_modules:
        registry.load(module)
    registry.toolbox.check()
    return registry


def run(settings: WorkerSettings) -> int:
    """Run a worker with all handlers until it is stopped; returns the exit code."""
    return run_with(build_registry(settings), settings)


def run_with(registry: Registry, settings: WorkerSettings) -> int:
    """Run a worker with these handlers until it is stopped; returns the exit code."""
    if settings.bullmq_queues:
        from sluice.worker.bullmq.main import require_package

        require_package()
    runtime.run_service(settings, lambda url: serve(settings, url, registry))
    return 0


def main() -> None:
    """Entry point of `python -m sluice.worker`."""
    runtime.run_process(lambda: load_settings(WorkerSettings), run)
