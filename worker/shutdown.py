"""How a worker stops: politely at the first signal, in a hurry at the second."""

from __future__ import annotations

import asyncio
import logging
import signal
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError

from common.connection import TRANSIENT_ERRORS

if TYPE_CHECKING:
    from worker.crew import Crew
    from worker.crews import Crews

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
    crews: Crews, reading: asyncio.Task[None], grace_s: float, signals: StopSignals | None = None
) -> None:
    """Stop reading, let running jobs finish, hand the rest back. Leases go on meanwhile."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + grace_s
    for crew in crews:
        crew.reader.stop()
    log.info("stopping: %d jobs get %.0f s to finish", crews.slots.busy, grace_s)
    await asyncio.wait({reading}, timeout=min(grace_s, LAST_READ_S))
    if not reading.done():  # it blocks for longer: hang up, so that Redis hands it nothing more
        reading.cancel()
        for crew in crews:
            await crew.lines.reading.aclose()
    await _hand_back_messages(crews)
    finishing = asyncio.ensure_future(_finish(crews, deadline))
    waits: set[asyncio.Task[Any]] = {finishing}
    if signals is not None:
        waits.add(asyncio.ensure_future(signals.insisted.wait()))
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    if not finishing.done() or not finishing.result():
        await _hand_back(crews)
    await _hand_back_messages(crews)
    for wait in waits:
        wait.cancel()
    log.info("stopped")
    if reading.done() and not reading.cancelled():
        reading.result()  # a reader that broke is no clean stop


async def _finish(crews: Crews, deadline: float) -> bool:
    """Whether everything that was taken has ended in time."""
    left_s = deadline - asyncio.get_running_loop().time()
    settled = await _settle(crews, max(0.0, left_s))
    left_s = deadline - asyncio.get_running_loop().time()
    return settled and await crews.slots.wait_idle(max(0.0, left_s))


async def _settle(crews: Crews, timeout_s: float) -> bool:
    return all(await asyncio.gather(*(crew.admission.settle(timeout_s) for crew in crews)))


async def _hand_back(crews: Crews) -> None:
    log.warning("%d jobs did not finish in time and are handed back", crews.slots.busy)
    for crew in crews:
        crew.executor.abandon()
    if not await _settle(crews, LAST_BEGIN_S):
        await asyncio.gather(*(crew.admission.cancel() for crew in crews))
    await crews.slots.cancel()
    await asyncio.gather(*(crew.executor.release_rest() for crew in crews))


async def _hand_back_messages(crews: Crews) -> None:
    """Whatever is pending here and does not run, another worker may have at once."""
    await asyncio.gather(*map(_hand_back_messages_of, crews))


async def _hand_back_messages_of(crew: Crew) -> None:
    running = crew.executor.message_ids
    try:
        await asyncio.wait_for(crew.recovery.hand_back_own(running), HAND_BACK_S)
    except (RedisError, asyncio.TimeoutError, *TRANSIENT_ERRORS) as error:
        log.warning("waiting messages are claimed after a lease: %r", error)
