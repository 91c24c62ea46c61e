"""Takes no new work while the queue is paused; what runs goes on."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from common.aio import cancel
from common.contracts.queue import paused_key
from common.jobs.pause import Pause, parse_pause
from common.process.host import (
    SAMPLE_INTERVAL_S,
    Host,
    HostReadings,
    PressureBound,
    PressureGauge,
    unmeasured_bounds,
)
from common.redis.connection import TRANSIENT_ERRORS
from worker.queue.slots import Slots

log = logging.getLogger(__name__)

#: Seconds between two looks, for what the control channel did not tell; the first one is repeated
#: sooner, for until then nobody knows.
CHECK_EVERY_S: Final = 5.0
RETRY_S: Final = 0.5
#: Why the slots are held.
PAUSED: Final = "paused"


class PauseGate:
    """Holds the slots, which everybody asks before taking a message: then nobody takes any."""

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
        slots.suspend(PAUSED)  # until it is known

    @property
    def paused(self) -> bool:
        return self._pause is not None

    @property
    def why(self) -> str:
        """Why no new work is begun, in words; empty when it is."""
        if self._pause is None:
            return ""
        return "the queue is paused" + (f": {self._pause.why}" if self._pause.why else "")

    def check_now(self) -> None:
        self._wake.set()

    async def run(self) -> None:
        """Look until canceled; trouble is left to the next look."""
        while True:
            try:
                await self.run_once()
            except (RedisError, *TRANSIENT_ERRORS) as error:
                log.debug("whether the queue is paused is asked later: %s", error)
            except Exception:  # whatever it is, the next look must come
                log.exception("whether the queue is paused is asked later")
            waking = asyncio.ensure_future(self._wake.wait())
            try:
                await asyncio.wait({waking}, timeout=self._every_s if self._known else RETRY_S)
            finally:
                await cancel(waking)

    async def run_once(self) -> None:
        """Look once, and hold or go on."""
        self._wake.clear()
        try:
            reply = await self._client.get(self._key)
        except TRANSIENT_ERRORS:
            raise
        except ResponseError as error:
            # Something else lies there, or we may not look: then it is nobody's pause.
            log.log(
                logging.DEBUG if self._known else logging.WARNING,
                "whether the queue is paused cannot be asked: %s",
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
                log.info("the queue goes on; jobs are taken again")


#: Why the slots are held.
OVERLOADED: Final = "pressure"


class PressureGate:
    """Holds the slots, which everybody asks before taking a message: then nobody takes any."""

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
            log.warning("%s cannot be heeded: this box, or our sandbox, does not tell", blind)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why no new work is begun, in words; empty when it is."""
        return self._gauge.reasons

    @property
    def why(self) -> str:
        return "; ".join(self.reasons)

    def host_readings(self) -> HostReadings:
        """The last readings, for the heartbeat."""
        return replace(self.readings, hottest=None)

    async def run(self) -> None:
        """Look at the box until canceled."""
        while True:
            try:
                self.run_once()
            except Exception:  # whatever it is, the next look must come
                log.exception("the box was not looked at after an unexpected fault")
            await asyncio.sleep(SAMPLE_INTERVAL_S)

    def run_once(self) -> None:
        """Look once, and hold or go on."""
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
