"""`python -m worker`: the wiring, from settings to a drained stop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from common.aio import cancel
from common.contracts.workers import WorkerField
from common.jobs.limits import parse_limits
from common.jobs.options import Backoff
from common.jobs.store import WorkerIdentity
from common.observability import tracing_setup
from common.process import runtime
from common.process.host import pressure_bounds
from common.process.systemd import Watchdog
from common.process.usage import LoopLag
from common.redis.pipelined import PipelinedConnection
from common.settings.base import load_settings
from common.settings.worker import WorkerSettings
from worker.execution.outcome import WorkerDefaults
from worker.monitoring.audit import LazyAuditor, PeriodicAudit
from worker.monitoring.heartbeat import HeartbeatSender
from worker.monitoring.intake_gate import PauseGate, PressureGate
from worker.monitoring.shutdown import StopSignals, drain
from worker.queue.consumers import Capacity, QueueConsumers, build_consumers
from worker.registry import Registry, WorkerServices

if TYPE_CHECKING:
    from worker.bullmq.consumer import BullMQWorker

log = logging.getLogger(__name__)


async def serve(
    settings: WorkerSettings, url: str, registry: Registry, *, takes_stream: bool = True
) -> None:
    """Take jobs until SIGTERM or SIGINT, then let the running ones finish.

    Without `takes_stream` those of BullMQ's queues only.
    """
    consumers = build_consumers(
        settings,
        url,
        registry,
        build_identity(settings),
        build_capacity(settings),
        build_defaults(settings),
    )
    home = consumers.home
    client = home.connections.client
    audit = PeriodicAudit(LazyAuditor(consumers), client, settings.keys, settings.audit_every_s)
    loop_lag = LoopLag()
    bullmq = build_bullmq_worker(settings, url, registry)
    pressure_gate = PressureGate(
        consumers.slots, pressure_bounds(settings), more_slots=bullmq.slots if bullmq else ()
    )
    pressure_gate.run_once()  # before anything is taken
    pause_gate = PauseGate(client, settings.keys.queue, consumers.slots)
    home.control.on_pause = pause_gate.check_now
    worker_services = WorkerServices(
        *(client, home.limits, home.workflows, home.images, settings.keys, home.worker),
        home.webhooks,
        subscribe=lambda heard: PipelinedConnection(url, on_message=heard),
        partitions=settings.partitions,
    )
    if bullmq:
        worker_services.heartbeat_fields[WorkerField.BULLMQ] = bullmq.readings
    worker_services.heartbeat_fields[WorkerField.PAUSED] = lambda: pause_gate.paused
    heartbeat = HeartbeatSender(
        consumers,
        settings.keys,
        settings.heartbeat_s,
        loop_lag,
        pressure_gate.host_readings,
        lambda: "; ".join(filter(None, (pressure_gate.why, pause_gate.why))),
        worker_services.heartbeat_fields,
    )
    signals = StopSignals()
    signals.install()
    services = registry.services
    for service in services:
        await service.start(worker_services)
    consumers.start()
    if bullmq:
        bullmq.start()
    take_tasks = _create_tasks(*consumers.take_loops()) if takes_stream else []
    background_tasks = _create_tasks(
        *consumers.maintenance_loops(),
        *(audit.run(), loop_lag.run(), heartbeat.run(), pressure_gate.run(), pause_gate.run()),
        *(each.run() for each in services),
    )
    stop, read_task = _create_tasks(
        signals.stop_requested.wait(),
        consumers.read() if takes_stream else signals.stop_requested.wait(),
    )
    if takes_stream:
        log.info("worker %s takes jobs from %s", settings.consumer, consumers.description)
    watchdog = build_watchdog(consumers, bullmq)
    background_tasks += _create_tasks(watchdog.run())
    try:
        await asyncio.wait({read_task, stop}, return_when=asyncio.FIRST_COMPLETED)
        for task in take_tasks:  # a stopping worker takes over nothing
            task.cancel()
        watchdog.notify_stopping()
        draining = [drain(consumers, read_task, settings.shutdown_grace_s, signals)]
        if bullmq:
            draining.append(bullmq.drain(signals))
        faults = [each for each in await asyncio.gather(*draining, return_exceptions=True) if each]
        if faults:
            raise faults[0]
    finally:
        await cancel(*take_tasks, *background_tasks, stop, read_task)
        if bullmq:
            await bullmq.close()
        for service in services:
            await service.close()
        await heartbeat.remove()
        await consumers.close()


def _create_tasks(*work: Coroutine[Any, Any, Any]) -> list[asyncio.Task[Any]]:
    return [asyncio.create_task(part) for part in work]


def build_bullmq_worker(
    settings: WorkerSettings, url: str, registry: Registry
) -> BullMQWorker | None:
    """BullMQ's queues, where any are named."""
    if not settings.bullmq_queues:
        return None
    from worker.bullmq.consumer import BullMQWorker  # needs a package that nobody else does

    return BullMQWorker(url, settings, registry, build_defaults(settings))


def build_watchdog(consumers: QueueConsumers, bullmq: BullMQWorker | None = None) -> Watchdog:
    """Looks after a worker: `3 running, 12 waiting`."""
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
    """Under which names this worker takes messages."""
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


def build_defaults(settings: WorkerSettings) -> WorkerDefaults:
    """On which terms it runs jobs that name none of their own."""
    return WorkerDefaults(
        settings.max_attempts,
        settings.job_timeout_s or None,
        Backoff(settings.retry_backoff_s, max_s=settings.retry_backoff_max_s),
        settings.cancel_grace_s,
    )


def build_registry(settings: WorkerSettings) -> Registry:
    """The shipped handlers, then the user's, which may replace them."""
    from worker.handlers import builtin  # brings much with it, which the echo worker does without

    registry = Registry()
    builtin.register(registry, settings)
    for module in settings.handler_modules:
        registry.load(module)
    registry.toolbox.check()
    return registry


def run(settings: WorkerSettings) -> int:
    """Run a worker with all its handlers to its end; returns the exit code."""
    return run_with(build_registry(settings), settings)


def run_with(registry: Registry, settings: WorkerSettings) -> int:
    """Run a worker with these handlers to its end; returns the exit code."""
    if settings.bullmq_queues:
        from worker.bullmq import main as required

        required.require_package()
    runtime.check_configured_redis(settings)
    tracing_setup.start(settings.service)
    try:
        with runtime.redis_url(settings) as url:
            runtime.run_loop(serve(settings, url, registry))
    finally:
        tracing_setup.stop()
    return 0


def main() -> None:
    """Entry point of `python -m worker`."""
    runtime.run_process(lambda: load_settings(WorkerSettings), run)
