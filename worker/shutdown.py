"""How a worker stops: politely at the first signal, in a hurry at the second."""

from __future__ import annotations

import asyncio
import logging
import signal
from typing import Any

from redis.exceptions import RedisError

from common.connection import TRANSIENT_ERRORS
from worker.crew import Crew

log = logging.getLogger(__name__)

#: How long a stopping worker waits for its last read to return.
LAST_READ_S = 2.0
#: How long it tries to hand back messages that do not run.
HAND_BACK_S = 2.0
#: How long it waits to hear whether messages it was about to run have begun.
LAST_BEGIN_S = 1.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """SIGTERM and SIGINT: the first asks, the second insists, the third is as if by default."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.insisted = asyncio.Event()

    def listen(self) -> None:
        """Take the signals over."""
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: signal.Signals) -> None:
        if not self.asked.is_set():
            self.asked.set()
        elif not self.insisted.is_set():
            self.insisted.set()
            for taken in _SIGNALS:
                asyncio.get_running_loop().remove_signal_handler(taken)
                signal.signal(taken, signal.SIG_DFL)  # not even a KeyboardInterrupt
            log.warning("told again to stop: jobs are handed back now")


async def drain(
    crew: Crew, reading: asyncio.Task[None], grace_s: float, signals: StopSignals | None = None
) -> None:
    """Stop reading, let running jobs finish, hand the rest back. Leases go on meanwhile."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + grace_s
    crew.reader.stop()
    log.info("stopping: %d jobs get %.0f s to finish", crew.slots.busy, grace_s)
    await asyncio.wait({reading}, timeout=min(grace_s, LAST_READ_S))
    if not reading.done():  # it blocks for longer: hang up, so that Redis hands it nothing more
        reading.cancel()
        await crew.lines.reading.aclose()
    await _hand_back_messages(crew)
    finishing = asyncio.ensure_future(_finish(crew, deadline))
    waits: set[asyncio.Task[Any]] = {finishing}
    if signals is not None:
        waits.add(asyncio.ensure_future(signals.insisted.wait()))
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    if not finishing.done() or not finishing.result():
        await _hand_back(crew)
    await _hand_back_messages(crew)
    for wait in waits:
        wait.cancel()
    log.info("stopped")
    if reading.done() and not reading.cancelled():
        reading.result()  # a reader that broke is no clean stop


async def _finish(crew: Crew, deadline: float) -> bool:
    """Whether everything that was taken has ended in time."""
    loop = asyncio.get_running_loop()
    settled = await crew.admission.settle(max(0.0, deadline - loop.time()))
    return settled and await crew.slots.wait_idle(max(0.0, deadline - loop.time()))


async def _hand_back(crew: Crew) -> None:
    log.warning("%d jobs did not finish in time and are handed back", crew.slots.busy)
    crew.executor.abandon()
    if not await crew.admission.settle(LAST_BEGIN_S):
        await crew.admission.cancel()
    await crew.slots.cancel()
    await crew.executor.release_rest()


async def _hand_back_messages(crew: Crew) -> None:
    """Whatever is pending here and does not run, another worker may have at once."""
    running = crew.executor.message_ids
    try:
        await asyncio.wait_for(crew.recovery.hand_back_own(running), HAND_BACK_S)
    except (RedisError, asyncio.TimeoutError, *TRANSIENT_ERRORS) as error:
        log.warning("waiting messages are claimed after a lease: %r", error)
