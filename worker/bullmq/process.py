"""`python -m worker.bullmq`: a worker for BullMQ's queues alone.

With handlers of the user's own (WORKER_HANDLERS) it has those, and no more than they need. Without
any it has the shipped ones, and with them everything that they need.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from functools import partial
from typing import TYPE_CHECKING

from common import runtime, tracing_setup
from common.cancellation import cancel
from common.checked_settings import worker_settings
from common.errors import SettingsError
from common.options import Backoff
from common.pressure import bounds_of
from common.watchdog import Watchdog
from worker.bullmq import required
from worker.pressure import Pressure
from worker.registry import Registry
from worker.shutdown import StopSignals
from worker.terms import WorkerTerms

if TYPE_CHECKING:
    from common.settings import WorkerSettings

log = logging.getLogger(__name__)


async def serve(settings: WorkerSettings, url: str, registry: Registry) -> None:
    """Take jobs until SIGTERM or SIGINT, then let the running ones finish."""
    from worker.bullmq.door import BullDoor  # needs a package that nobody else does

    door = BullDoor(url, settings, registry, terms(settings))
    pressure = Pressure(door.slots[0], bounds_of(settings), also=door.slots[1:])
    pressure.run_once()  # before anything is taken
    watchdog = Watchdog(door.busy, door.look, door.trouble)
    signals = StopSignals()
    signals.listen()
    door.start()
    caretakers = [asyncio.create_task(part) for part in (pressure.run(), watchdog.run())]
    try:
        await signals.asked.wait()
        watchdog.stopping()
        log.info("stopping: %s", door.busy())
        await door.drain(signals)
        log.info("stopped")
    finally:
        await door.close()
        await cancel(*caretakers)


def terms(settings: WorkerSettings) -> WorkerTerms:
    """On which terms jobs run; attempts and backoff are their own."""
    return WorkerTerms(
        settings.max_attempts,
        settings.job_timeout_s or None,
        Backoff(settings.retry_backoff_s, max_s=settings.retry_backoff_max_s),
        settings.cancel_grace_s,
    )


def run(settings: WorkerSettings) -> int:
    """Run such a worker to its end; returns the exit code."""
    if not settings.bullmq_queues:
        raise SettingsError("BULLMQ_QUEUES is not set: name the queues to take jobs from")
    required.check()
    registry = Registry()
    for module in settings.handler_modules:
        registry.load(module)
    serving = serve
    if registry.services or not settings.handler_modules:
        from worker import main as whole  # brings much with it

        registry = registry if settings.handler_modules else whole.build_registry(settings)
        serving = partial(whole.serve, takes_stream=False)
    gc.collect()
    gc.freeze()  # what is loaded by now stays: no later look for garbage need pass through it
    runtime.look_at_redis(settings)
    tracing_setup.start(settings.service)
    try:
        with runtime.redis_url(settings) as url:
            runtime.run_loop(serving(settings, url, registry))
    finally:
        tracing_setup.stop()
    return 0


def main() -> None:
    """Entry point of `python -m worker.bullmq`."""
    runtime.run_process(worker_settings, run)
