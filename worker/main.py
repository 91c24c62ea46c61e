"""`python -m worker`: the wiring, from settings to a drained stop."""

from __future__ import annotations

import asyncio
import logging
import signal

from common import runtime
from common.coalescer import Coalescer
from common.connection import async_client, sync_client
from common.settings import WorkerSettings
from common.store import JobStore, WorkerIdentity
from common.wire import Wire
from worker.executor import Executor
from worker.handlers import echo
from worker.intake import Intake
from worker.janitor import Janitor
from worker.lease import LeaseKeeper
from worker.reader import Reader
from worker.recovery import Recovery
from worker.registry import Registry
from worker.slots import Slots

log = logging.getLogger(__name__)

#: How long a stopping worker waits for its last read to return.
LAST_READ_S = 2.0


async def serve(settings: WorkerSettings, url: str, registry: Registry) -> None:
    """Take jobs until SIGTERM or SIGINT, then let the running ones finish."""
    worker = WorkerIdentity(
        settings.worker_group,
        settings.consumer,
        settings.lease_ms,
        settings.default_ttl_s,
        settings.max_attempts,
    )
    client = async_client(url, connections=2)
    writing = Wire(url)
    reading = Wire(url, block_s=settings.block_ms / 1000)
    renewing = sync_client(url, reply_timeout_s=min(5.0, settings.lease_ms / 3000))
    coalescer = Coalescer(writing, settings.keys)
    store = JobStore(client, settings.keys, coalescer)
    leases = LeaseKeeper(renewing, settings.keys, worker)
    slots = Slots(settings.max_inflight)
    executor = Executor(store, registry, leases, worker, slots.leave)
    reader = Reader(
        reading,
        settings.queue_stream_key,
        worker,
        slots,
        Intake(store, worker),
        executor,
        settings.count,
        settings.block_ms,
    )

    leases.start()
    recovery = Recovery(writing, settings.queue_stream_key, worker, slots, reader)
    caretakers = [asyncio.create_task(caretaker.run()) for caretaker in (recovery, Janitor(store))]
    stop = _stop_signal()
    reading_task = asyncio.create_task(reader.run())
    log.info("worker %s takes jobs from %s", worker.consumer, settings.queue_stream_key)
    try:
        await asyncio.wait({reading_task, stop}, return_when=asyncio.FIRST_COMPLETED)
        caretakers[0].cancel()  # a stopping worker takes over nothing
        await drain(reader, reading_task, slots, executor, settings.shutdown_grace_s)
    finally:
        for task in caretakers:
            task.cancel()
        leases.stop()
        await coalescer.close()
        for connection in (writing, reading, client):
            await connection.aclose()


async def drain(
    reader: Reader,
    reading: asyncio.Task[None],
    slots: Slots,
    executor: Executor,
    grace_s: float,
) -> None:
    """Stop reading, let running jobs finish, leave the rest pending. Leases go on meanwhile."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + grace_s
    reader.stop()
    log.info("stopping: %d jobs get %.0f s to finish", slots.busy, grace_s)
    # A read that blocks longer is given up; what Redis hands it then is claimed by the next.
    await asyncio.wait({reading}, timeout=min(grace_s, LAST_READ_S))
    reading.cancel()
    settled = await reader.settle(max(0.0, deadline - loop.time()))
    if not settled or not await slots.wait_idle(max(0.0, deadline - loop.time())):
        log.warning("%d jobs did not finish in time and stay pending", slots.busy)
        executor.abandon()
        await reader.cancel()
        await slots.cancel()
    log.info("stopped")
    if reading.done() and not reading.cancelled():
        reading.result()  # a reader that broke is no clean stop


def _stop_signal() -> asyncio.Future[None]:
    loop = asyncio.get_running_loop()
    stop: asyncio.Future[None] = loop.create_future()

    def on_signal() -> None:
        if not stop.done():
            stop.set_result(None)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    return stop


def build_registry(settings: WorkerSettings) -> Registry:
    """The shipped handlers, then the user's, which may replace them."""
    registry = Registry()
    echo.register(registry, settings.echo_delay_ms)
    for module in settings.handler_modules:
        registry.load(module)
    return registry


def run(settings: WorkerSettings) -> int:
    """Run a worker with all its handlers to its end; returns the exit code."""
    return run_with(build_registry(settings), settings)


def run_with(registry: Registry, settings: WorkerSettings) -> int:
    """Run a worker with these handlers to its end; returns the exit code."""
    with runtime.redis_url(settings) as url:
        runtime.run_loop(serve(settings, url, registry))
    return 0


def main() -> None:
    """Entry point of `python -m worker`."""
    runtime.run_process(WorkerSettings, run)
