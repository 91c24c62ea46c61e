"""Graceful shutdown of a worker: drains at the first signal, releases jobs at the second."""

from __future__ import annotations

import asyncio
import logging
import signal
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError

from sluice.common.redis.connection import TRANSIENT_ERRORS
from sluice.common.text import plural

if TYPE_CHECKING:
    from sluice.worker.queue.consumers import QueueConsumer, QueueConsumers

log = logging.getLogger(__name__)

#: Seconds that a stopping worker waits for its last read to return.
LAST_READ_S = 2.0
#: Seconds that it tries to release messages whose jobs do not run.
RELEASE_MESSAGES_S = 2.0
#: Seconds that it waits for the replies to BEGIN.
LAST_BEGIN_S = 1.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """SIGTERM and SIGINT. The first requests a graceful stop, the second forces it, the third kills
    the process."""

    def __init__(self) -> None:
        self.stop_requested = asyncio.Event()
        self.force_requested = asyncio.Event()

    def install(self) -> None:
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: signal.Signals) -> None:
        if not self.stop_requested.is_set():
            self.stop_requested.set()
        elif not self.force_requested.is_set():
            self.force_requested.set()
            for each in _SIGNALS:
                asyncio.get_running_loop().remove_signal_handler(each)
                signal.signal(each, signal.SIG_DFL)  # not even a KeyboardInterrupt
            log.warning("second stop signal: running jobs are released now")


async def drain(
    consumers: QueueConsumers,
    reading: asyncio.Task[None],
    grace_s: float,
    signals: StopSignals | None = None,
) -> None:
    """Stop reading, let running jobs finish, and release the rest. Leases are renewed meanwhile."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + grace_s
    for consumer in consumers:
        consumer.reader.stop()
    jobs = plural(consumers.slots.busy, "job gets", "jobs get")
    log.info("stopping: %s %.0f s to finish", jobs, grace_s)
    await asyncio.wait({reading}, timeout=min(grace_s, LAST_READ_S))
    if not reading.done():  # still blocked: disconnect, so that Redis delivers no more messages
        reading.cancel()
        for consumer in consumers:
            await consumer.connections.reading.aclose()
    await _release_messages(consumers)
    finishing = asyncio.ensure_future(_finish(consumers, deadline))
    waits: set[asyncio.Task[Any]] = {finishing}
    if signals is not None:
        waits.add(asyncio.ensure_future(signals.force_requested.wait()))
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    if not finishing.done() or not finishing.result():
        await _release_jobs(consumers)
    await _release_messages(consumers)
    for wait in waits:
        wait.cancel()
    log.info("stopped")
    if reading.done() and not reading.cancelled():
        reading.result()  # raises if the reader failed: that is not a clean stop


async def _finish(consumers: QueueConsumers, deadline: float) -> bool:
    """True if all jobs ended before the deadline."""
    left_s = deadline - asyncio.get_running_loop().time()
    settled = await _wait_started(consumers, max(0.0, left_s))
    left_s = deadline - asyncio.get_running_loop().time()
    return settled and await consumers.slots.wait_idle(max(0.0, left_s))


async def _wait_started(consumers: QueueConsumers, timeout_s: float) -> bool:
    return all(
        await asyncio.gather(
            *(consumer.admission.wait_started(timeout_s) for consumer in consumers)
        )
    )


async def _release_jobs(consumers: QueueConsumers) -> None:
    late = plural(
        consumers.slots.busy,
        "job did not finish in time and is",
        "jobs did not finish in time and are",
    )
    log.warning("%s released", late)
    for consumer in consumers:
        consumer.executor.begin_shutdown()
    if not await _wait_started(consumers, LAST_BEGIN_S):
        await asyncio.gather(*(consumer.admission.cancel() for consumer in consumers))
    await consumers.slots.cancel()
    await asyncio.gather(*(consumer.executor.release_remaining() for consumer in consumers))


async def _release_messages(consumers: QueueConsumers) -> None:
    """Let other workers claim the pending messages whose jobs do not run here."""
    await asyncio.gather(*map(_release_messages_of, consumers))


async def _release_messages_of(consumer: QueueConsumer) -> None:
    running = consumer.executor.message_ids
    try:
        await asyncio.wait_for(consumer.recovery.release_own(running), RELEASE_MESSAGES_S)
    except (RedisError, asyncio.TimeoutError, *TRANSIENT_ERRORS) as error:
        log.warning("pending messages not released: %r; claimed after a lease", error)
