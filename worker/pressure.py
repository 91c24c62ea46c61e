"""Takes no new work while the box is short of memory or too hot; what runs goes on."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from common.host import Host, Readings
from common.pressure import SAMPLE_EVERY_S, Bound, Gauge, unmeasured
from worker.slots import Slots

log = logging.getLogger(__name__)

#: Why the slots are held.
PRESSED: Final = "pressure"


class Pressure:
    """Holds the slots, which everybody asks before taking a message: then nobody takes any."""

    def __init__(
        self,
        slots: Slots,
        bounds: list[Bound],
        host: Host | None = None,
        clock: Callable[[], float] = time.monotonic,
        also: Sequence[Slots] = (),
    ) -> None:
        self._slots = (slots, *also)
        self._host = host or Host()
        self._gauge = Gauge(bounds)
        self._clock = clock
        self.readings = self._host.read()
        if blind := unmeasured(bounds, self.readings):
            log.warning("%s cannot be heeded: this box, or our sandbox, does not tell", blind)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why no new work is begun, in words; empty when it is."""
        return self._gauge.reasons

    @property
    def why(self) -> str:
        """The same in one line."""
        return "; ".join(self.reasons)

    def box(self) -> Readings:
        """The last readings, for the heartbeat."""
        return replace(self.readings, hottest=None)

    async def run(self) -> None:
        """Look at the box until canceled."""
        while True:
            try:
                self.run_once()
            except Exception:  # whatever it is, the next look must come
                log.exception("the box was not looked at after an unexpected fault")
            await asyncio.sleep(SAMPLE_EVERY_S)

    def run_once(self) -> None:
        """Look once, and hold or go on."""
        self.readings = self._host.read()
        if not self._gauge.look(self.readings, self._clock()):
            return
        if self.reasons:
            log.warning("no new jobs are taken: %s", self.why)
            for slots in self._slots:
                slots.hold(PRESSED)
        else:
            log.info("jobs are taken again")
            for slots in self._slots:
                slots.resume(PRESSED)
