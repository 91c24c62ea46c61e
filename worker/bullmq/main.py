"""`python -m worker.bullmq`: a worker for BullMQ's queues alone.

With handlers of the user's own (WORKER_HANDLERS) it has those, and no more than they need. Without
any it has the shipped ones, and with them everything that they need.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from functools import partial
from typing import Final

from common.aio import cancel
from common.errors import SettingsError
from common.features.bullmq import package
from common.observability import tracing_setup
from common.process import runtime
from common.process.host import pressure_bounds
from common.process.systemd import Watchdog
from common.settings.base import load_settings
from common.settings.worker import WorkerSettings
from worker.monitoring.intake_gate import PressureGate
from worker.monitoring.shutdown import StopSignals
from worker.registry import Registry

TAKE: Final = "moveToActive-11"
FINISH: Final = "moveToFinished-14"
DELAY: Final = "moveToDelayed-11"
RETRY: Final = "retryJob-11"
RELEASE: Final = "moveJobFromActiveToWait-9"
STALLED: Final = "moveStalledJobsToWait-9"
RENEW: Final = "extendLocks-1"
PROGRESS: Final = "updateProgress-3"
LOG: Final = "addLog-2"
SCHEDULE: Final = "updateJobScheduler-12"
SCRIPTS: Final = (
    TAKE, FINISH, DELAY, RETRY, RELEASE, STALLED, RENEW, PROGRESS, LOG, SCHEDULE,
)  # fmt: skip


def require_package() -> None:
    """Raise SettingsError unless the package is there, and the one we know."""
    package.require_package("BULLMQ_QUEUES", SCRIPTS)


log = logging.getLogger(__name__)


async def serve(settings: WorkerSettings, url: str, registry: Registry) -> None:
    """Take jobs until SIGTERM or SIGINT, then let the running ones finish."""
    from worker.bullmq.consumer import BullMQWorker  # needs a package that nobody else does

    bullmq_worker = BullMQWorker(url, settings, registry)
    pressure_gate = PressureGate(
        bullmq_worker.slots[0], pressure_bounds(settings), more_slots=bullmq_worker.slots[1:]
    )
    pressure_gate.run_once()  # before anything is taken
    watchdog = Watchdog(
        bullmq_worker.running_status, bullmq_worker.waiting_status, bullmq_worker.problem
    )
    signals = StopSignals()
    signals.install()
    bullmq_worker.start()
    background_tasks = [asyncio.create_task(part) for part in (pressure_gate.run(), watchdog.run())]
    try:
        await signals.stop_requested.wait()
        watchdog.notify_stopping()
        log.info("stopping: %s", bullmq_worker.running_status())
        await bullmq_worker.drain(signals)
        log.info("stopped")
    finally:
        await bullmq_worker.close()
        await cancel(*background_tasks)


def run(settings: WorkerSettings) -> int:
    """Run such a worker to its end; returns the exit code."""
    if not settings.bullmq_queues:
        raise SettingsError("BULLMQ_QUEUES is not set: name the queues to take jobs from")
    require_package()
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
    runtime.check_configured_redis(settings)
    tracing_setup.start(settings.service)
    try:
        with runtime.redis_url(settings) as url:
            runtime.run_loop(serving(settings, url, registry))
    finally:
        tracing_setup.stop()
    return 0


def main() -> None:
    """Entry point of `python -m worker.bullmq`."""
    runtime.run_process(lambda: load_settings(WorkerSettings), run)
