"""Gates that suspend the slots: while the queue is paused, or the host is under pressure.

Running jobs continue; no new ones are taken.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from sluice.common.aio import cancel
from sluice.common.contracts.queue import paused_key
from sluice.common.jobs.pause import Pause, parse_pause
from sluice.common.process.host import (
    SAMPLE_INTERVAL_S,
    Host,
    HostReadings,
    PressureBound,
    PressureGauge,
    unmeasured_bounds,
)
from sluice.common.redis.connection import TRANSIENT_ERRORS
from sluice.worker.queue.slots import Slots

log = logging.getLogger(__name__)

#: Seconds between two checks, in case a message on the control channel was missed.
CHECK_EVERY_S: Final = 5.0
#: Seconds between two checks until the first has succeeded.
RETRY_S: Final = 0.5
#: Reason with which the slots are suspended.
PAUSED: Final = "paused"


class PauseGate:
    """Suspends the slots while the queue is paused, so that no messages are taken."""

    def __init__(
        self, client: Redis, queue: str, slots: Slots, every_s: float = CHECK_EVERY_S
    ) -> None:
        self._client = client
        self._key = paused_key(queue)
        self._slots = slots
        self._every_s = every_s
        self._wake = asyncio.Event()
        self._known = False
        self._pause: Pause | None = None
        slots.suspend(PAUSED)  # until the state is known

    @property
    def paused(self) -> bool:
        return self._pause is not None

    @property
    def why(self) -> str:
        """Why no new jobs are taken; empty if they are."""
        if self._pause is None:
            return ""
        return "the queue is paused" + (f": {self._pause.why}" if self._pause.why else "")

    def check_now(self) -> None:
        self._wake.set()

    async def run(self) -> None:
        """Check until canceled. After an error the next check tries again."""
        while True:
            try:
                await self.run_once()
            except (RedisError, *TRANSIENT_ERRORS) as error:
                log.debug("pause state not read: %s", error)
            except Exception:  # the checks must continue after any error
                log.exception("pause state not read after an unexpected error")
            waking = asyncio.ensure_future(self._wake.wait())
            try:
                await asyncio.wait({waking}, timeout=self._every_s if self._known else RETRY_S)
            finally:
                await cancel(waking)

    async def run_once(self) -> None:
        """Read the pause state once, and suspend or resume."""
        self._wake.clear()
        try:
            reply = await self._client.get(self._key)
        except TRANSIENT_ERRORS:
            raise
        except ResponseError as error:
            # The key has another type, or the ACL forbids the read: treated as not paused.
            log.log(
                logging.DEBUG if self._known else logging.WARNING,
                "pause state cannot be read: %s; the queue counts as not paused",
                error,
            )
            reply = None
        before, self._pause, known = self._pause, parse_pause(reply), self._known
        self._known = True
        if self._pause is not None:
            self._slots.suspend(PAUSED)
            if before is None:
                log.warning("no new jobs are taken: %s", self.why)
        elif before is not None or not known:
            self._slots.resume(PAUSED)
            if before is not None:
                log.info("queue resumed; jobs are taken again")


#: Reason with which the slots are suspended.
OVERLOADED: Final = "pressure"


class PressureGate:
    """Suspends the slots while a reading of the host exceeds its configured limit."""

    def __init__(
        self,
        slots: Slots,
        bounds: list[PressureBound],
        host: Host | None = None,
        clock: Callable[[], float] = time.monotonic,
        more_slots: Sequence[Slots] = (),
    ) -> None:
        self._slots = (slots, *more_slots)
        self._host = host or Host()
        self._gauge = PressureGauge(bounds)
        self._clock = clock
        self.readings = self._host.read()
        if blind := unmeasured_bounds(bounds, self.readings):
            log.warning("%s ignored: the host or the sandbox does not report the value", blind)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why no new jobs are taken; empty if they are."""
        return self._gauge.reasons

    @property
    def why(self) -> str:
        return "; ".join(self.reasons)

    def host_readings(self) -> HostReadings:
        """The last readings, for the heartbeat."""
        return replace(self.readings, hottest=None)

    async def run(self) -> None:
        """Check the host until canceled."""
        while True:
            try:
                self.run_once()
            except Exception:  # the checks must continue after any error
                log.exception("host not checked after an unexpected error")
            await asyncio.sleep(SAMPLE_INTERVAL_S)

    def run_once(self) -> None:
        """Check the host once, and suspend or resume."""
        self.readings = self._host.read()
        if not self._gauge.update(self.readings, self._clock()):
            return
        if self.reasons:
            log.warning("no new jobs are taken: %s", self.why)
            for slots in self._slots:
                slots.suspend(OVERLOADED)
        else:
            log.info("jobs are taken again")
            for slots in self._slots:
                slots.resume(OVERLOADED)
