"""`python -m worker`: the wiring, from settings to a drained stop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from common import runtime, tracing_setup
from common.audit import Auditor, Pace
from common.cancellation import cancel
from common.connection import REPLY_TIMEOUT_S, async_client, sync_client
from common.loop_lag import LoopLag
from common.options import Backoff
from common.pressure import bounds_of
from common.queue_reading import QueueReader
from common.settings import WorkerSettings
from common.store import WorkerIdentity
from common.task_limits import parse_limits
from common.watchdog import Watchdog
from common.wire import Wire
from worker.auditing import Auditing
from worker.crew import Capacity, Crew, Lines
from worker.heartbeat import HeartbeatSender
from worker.pressure import Pressure
from worker.registry import Registry
from worker.services import House
from worker.shutdown import StopSignals, drain
from worker.terms import WorkerTerms

log = logging.getLogger(__name__)

#: An audit beside the jobs takes a twentieth of the loop's time, however many jobs there are.
AUDIT_PACE = Pace(pause_s=0.1)
#: For single reads, and for what handlers keep in Redis beside their jobs.
CONNECTIONS = 4
#: However short the lease, Redis gets so many seconds to answer.
SHORTEST_REPLY_S = 1.0


async def serve(settings: WorkerSettings, url: str, registry: Registry) -> None:
    """Take jobs until SIGTERM or SIGINT, then let the running ones finish."""
    client = async_client(url, connections=CONNECTIONS)
    # Whoever has a short lease must not wait long for a connection that fell silent.
    patience_s = min(REPLY_TIMEOUT_S, max(settings.lease_ms / 1000, SHORTEST_REPLY_S))
    writing = Wire(url, reply_timeout_s=patience_s)
    reading = Wire(url, block_s=settings.block_ms / 1000, reply_timeout_s=patience_s)
    renewing = sync_client(url, reply_timeout_s=min(REPLY_TIMEOUT_S, settings.lease_ms / 3000))
    lines = Lines(client, writing, reading, renewing)
    crew = Crew(
        lines,
        settings.keys,
        identity(settings),
        registry,
        capacity(settings),
        terms(settings),
    )
    listening = Wire(url, on_message=crew.control.heard)
    auditor = Auditor(client, settings.keys, settings.worker_group, AUDIT_PACE)
    auditing = Auditing(auditor, client, settings.keys, settings.audit_every_s)
    loop_lag = LoopLag()
    pressure = Pressure(crew.slots, bounds_of(settings))
    pressure.run_once()  # before anything is taken
    house = House(client, crew.limits)
    heartbeat = HeartbeatSender(
        crew,
        settings.keys,
        settings.heartbeat_s,
        loop_lag,
        pressure.box,
        lambda: pressure.why,
        house.telling,
    )
    signals = StopSignals()
    signals.listen()
    services = registry.services
    for service in services:
        await service.start(house)
    crew.leases.start()
    takers = _start(
        crew.recovery.run(),
        crew.deferred.run(crew.admission.offer),
        crew.waiting.run(crew.admission.call),
    )
    caretakers = _start(
        crew.control.run(listening), crew.janitor.run(), crew.promoter.run(), auditing.run(),
        loop_lag.run(), heartbeat.run(), pressure.run(), *(each.run() for each in services),
    )  # fmt: skip
    stop, taking = _start(signals.asked.wait(), crew.reader.run())
    log.info("worker %s takes jobs from %s", settings.consumer, settings.queue_stream_key)
    watchdog = worker_watchdog(settings, crew)
    caretakers += _start(watchdog.run())
    try:
        await asyncio.wait({taking, stop}, return_when=asyncio.FIRST_COMPLETED)
        for taker in takers:  # a stopping worker takes over nothing
            taker.cancel()
        watchdog.stopping()
        await drain(crew, taking, settings.shutdown_grace_s, signals)
    finally:
        await cancel(*takers, *caretakers, stop, taking)
        for service in services:
            await service.close()
        await heartbeat.leave()
        crew.leases.stop()
        await crew.waiting.close()
        await crew.coalescer.close()
        for connection in (writing, reading, listening, client):
            await connection.aclose()


def _start(*work: Coroutine[Any, Any, Any]) -> list[asyncio.Task[Any]]:
    return [asyncio.create_task(part) for part in work]


def worker_watchdog(settings: WorkerSettings, crew: Crew) -> Watchdog:
    """Looks after a worker: `3 running, 12 waiting`."""

    async def look() -> str:
        reader = QueueReader(settings.keys.queue, settings.worker_group)
        return f"{(await reader.read(crew.lines.client)).waiting or 0} waiting"

    return Watchdog(
        lambda: f"{crew.slots.busy} running",
        look,
        lambda: "" if crew.leases.healthy else "leases are not renewed",
    )


def identity(settings: WorkerSettings) -> WorkerIdentity:
    """Under which names this worker takes messages."""
    return WorkerIdentity(
        settings.worker_group,
        settings.consumer,
        settings.lease_ms,
        settings.default_ttl_s,
        settings.max_attempts,
    )


def capacity(settings: WorkerSettings) -> Capacity:
    """How much it takes on."""
    return Capacity(
        settings.max_inflight,
        settings.count,
        settings.block_ms,
        parse_limits(settings.task_limits),
        parse_limits(settings.task_limits_global),
    )


def terms(settings: WorkerSettings) -> WorkerTerms:
    """On which terms it runs jobs that name none of their own."""
    return WorkerTerms(
        settings.max_attempts,
        settings.job_timeout_s or None,
        Backoff(settings.retry_backoff_s, max_s=settings.retry_backoff_max_s),
        settings.cancel_grace_s,
    )


def build_registry(settings: WorkerSettings) -> Registry:
    """The shipped handlers, then the user's, which may replace them."""
    from worker import shipped  # brings much with it, which the echo worker does without

    registry = Registry()
    shipped.register(registry, settings)
    for module in settings.handler_modules:
        registry.load(module)
    registry.toolbox.check()
    return registry


def run(settings: WorkerSettings) -> int:
    """Run a worker with all its handlers to its end; returns the exit code."""
    return run_with(build_registry(settings), settings)


def run_with(registry: Registry, settings: WorkerSettings) -> int:
    """Run a worker with these handlers to its end; returns the exit code."""
    runtime.look_at_redis(settings)
    tracing_setup.start(settings.service)
    try:
        with runtime.redis_url(settings) as url:
            runtime.run_loop(serve(settings, url, registry))
    finally:
        tracing_setup.stop()
    return 0


def main() -> None:
    """Entry point of `python -m worker`."""
    runtime.run_process(WorkerSettings, run)
