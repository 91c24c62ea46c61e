"""`python -m worker`: the wiring, from settings to a drained stop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from common import runtime, tracing_setup
from common.cancellation import cancel
from common.checked_settings import worker_settings
from common.contracts.workers import WorkerField
from common.loop_lag import LoopLag
from common.options import Backoff
from common.pressure import bounds_of
from common.store import WorkerIdentity
from common.task_limits import parse_limits
from common.watchdog import Watchdog
from common.wire import Wire
from worker.auditing import Auditing, LateAuditor
from worker.crew import Capacity
from worker.crews import Crews, hire
from worker.heartbeat import HeartbeatSender
from worker.pausing import Pausing
from worker.pressure import Pressure
from worker.registry import Registry
from worker.services import House
from worker.shutdown import StopSignals, drain
from worker.terms import WorkerTerms

if TYPE_CHECKING:
    from common.settings import WorkerSettings
    from worker.bullmq.door import BullDoor

log = logging.getLogger(__name__)


async def serve(
    settings: WorkerSettings, url: str, registry: Registry, *, takes_stream: bool = True
) -> None:
    """Take jobs until SIGTERM or SIGINT, then let the running ones finish.

    Without `takes_stream` those of BullMQ's queues only.
    """
    crews = hire(settings, url, registry, identity(settings), capacity(settings), terms(settings))
    home = crews.home
    client = home.lines.client
    auditing = Auditing(LateAuditor(crews), client, settings.keys, settings.audit_every_s)
    loop_lag = LoopLag()
    bullmq = bullmq_door(settings, url, registry)
    pressure = Pressure(crews.slots, bounds_of(settings), also=bullmq.slots if bullmq else ())
    pressure.run_once()  # before anything is taken
    pausing = Pausing(client, settings.keys.queue, crews.slots)
    home.control.on_pause = pausing.look_now
    house = House(
        *(client, home.limits, home.workflows, home.images, settings.keys, home.worker),
        home.webhooks,
        listen=lambda heard: Wire(url, on_message=heard),
        partitions=settings.partitions,
    )
    if bullmq:
        house.telling[WorkerField.BULLMQ.value] = bullmq.readings
    house.telling[WorkerField.PAUSED.value] = lambda: pausing.paused
    heartbeat = HeartbeatSender(
        crews,
        settings.keys,
        settings.heartbeat_s,
        loop_lag,
        pressure.box,
        lambda: "; ".join(filter(None, (pressure.why, pausing.why))),
        house.telling,
    )
    signals = StopSignals()
    signals.listen()
    services = registry.services
    for service in services:
        await service.start(house)
    crews.start()
    if bullmq:
        bullmq.start()
    takers = _start(*crews.taking()) if takes_stream else []
    caretakers = _start(
        *crews.caring(), auditing.run(), loop_lag.run(), heartbeat.run(), pressure.run(),
        pausing.run(), *(each.run() for each in services),
    )  # fmt: skip
    stop, taking = _start(
        signals.asked.wait(), crews.reading() if takes_stream else signals.asked.wait()
    )
    if takes_stream:
        log.info("worker %s takes jobs from %s", settings.consumer, crews.served)
    watchdog = worker_watchdog(crews, bullmq)
    caretakers += _start(watchdog.run())
    try:
        await asyncio.wait({taking, stop}, return_when=asyncio.FIRST_COMPLETED)
        for taker in takers:  # a stopping worker takes over nothing
            taker.cancel()
        watchdog.stopping()
        draining = [drain(crews, taking, settings.shutdown_grace_s, signals)]
        if bullmq:
            draining.append(bullmq.drain(signals))
        faults = [each for each in await asyncio.gather(*draining, return_exceptions=True) if each]
        if faults:
            raise faults[0]
    finally:
        await cancel(*takers, *caretakers, stop, taking)
        if bullmq:
            await bullmq.close()
        for service in services:
            await service.close()
        await heartbeat.leave()
        await crews.close()


def _start(*work: Coroutine[Any, Any, Any]) -> list[asyncio.Task[Any]]:
    return [asyncio.create_task(part) for part in work]


def bullmq_door(settings: WorkerSettings, url: str, registry: Registry) -> BullDoor | None:
    """BullMQ's queues, where any are named."""
    if not settings.bullmq_queues:
        return None
    from worker.bullmq.door import BullDoor  # needs a package that nobody else does

    return BullDoor(url, settings, registry, terms(settings))


def worker_watchdog(crews: Crews, bullmq: BullDoor | None = None) -> Watchdog:
    """Looks after a worker: `3 running, 12 waiting`."""
    doors = bullmq.slots if bullmq else []

    async def look() -> str:
        return f"{(await crews.read_queues()).waiting or 0} waiting"

    def trouble() -> str:
        if not crews.keeps_leases:
            return "leases are not renewed"
        return bullmq.trouble() if bullmq else ""

    return Watchdog(
        lambda: f"{crews.slots.busy + sum(each.busy for each in doors)} running",
        look,
        trouble,
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
    if settings.bullmq_queues:
        from worker.bullmq import required

        required.check()
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
    runtime.run_process(worker_settings, run)
