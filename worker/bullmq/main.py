"""`python -m sluice.worker.bullmq`: a worker for BullMQ queues only.

With WORKER_HANDLERS it has only these handlers and loads only what they need. Without, it has the
built-in handlers and the services that they need.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Final

from sluice.common.aio import cancel
from sluice.common.errors import SettingsError
from sluice.common.features.bullmq import package
from sluice.common.process import runtime
from sluice.common.process.host import pressure_bounds
from sluice.common.process.systemd import Watchdog
from sluice.common.settings.base import load_settings
from sluice.common.settings.worker import WorkerSettings
from sluice.worker.monitoring.intake_gate import PressureGate
from sluice.worker.monitoring.shutdown import StopSignals
from sluice.worker.registry import Registry

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
    """Raise SettingsError unless the package `bullmq` is installed in the supported version."""
    package.require_package("BULLMQ_QUEUES", SCRIPTS)


log = logging.getLogger(__name__)


async def serve(settings: WorkerSettings, url: str, registry: Registry) -> None:
    """Run jobs until SIGTERM or SIGINT, then let the running ones finish."""
    from sluice.worker.bullmq.consumer import BullMQWorker  # needs the optional package `bullmq`

    bullmq_worker = BullMQWorker(url, settings, registry)
    pressure_gate = PressureGate(
        bullmq_worker.slots[0], pressure_bounds(settings), more_slots=bullmq_worker.slots[1:]
    )
    pressure_gate.run_once()  # before the first job is taken
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
    """Run a worker for BullMQ queues until it is stopped; returns the exit code."""
    if not settings.bullmq_queues:
        raise SettingsError("BULLMQ_QUEUES is not set: name the queues to take jobs from")
    require_package()
    registry = Registry()
    for module in settings.handler_modules:
        registry.load(module)
    run_worker = serve
    if registry.services or not settings.handler_modules:
        from sluice.worker import main as full_worker  # imports much more

        if not settings.handler_modules:
            registry = full_worker.build_registry(settings)
        run_worker = partial(full_worker.serve, takes_stream=False)
    runtime.run_service(settings, lambda url: run_worker(settings, url, registry))
    return 0


def main() -> None:
    """Entry point of `python -m sluice.worker.bullmq`."""
    runtime.run_process(lambda: load_settings(WorkerSettings), run)
