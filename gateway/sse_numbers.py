"""What is counted of event streams, once a batch and not once an event where that is possible."""

from __future__ import annotations

import time
from typing import Final

from common.histogram import Histogram
from gateway.frames import Frame

#: Upper bounds of the buckets for the time from an event's writing to its sending.
LAG_BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0)


class SseNumbers:
    """The numbers of one hub."""

    __slots__ = ("bytes", "events", "gaps", "lag", "resumes", "slow", "slow_closed")

    def __init__(self) -> None:
        self.events = self.bytes = self.resumes = self.gaps = self.slow = self.slow_closed = 0
        self.lag = Histogram(LAG_BOUNDS_S)

    def sent(self, batch: list[Frame], size: int, *, live: bool, numbered: bool = False) -> None:
        """A batch goes to a client; only of a live one it matters how old it is."""
        self.bytes += size
        last = batch[-1]
        if last.id:
            # Notices come alone or, rarely, first: the difference is not worth a look at each.
            self.events += len(batch)
            if live:
                written_ms = last.ts if numbered else last.position[0]
                late_s = time.time() - written_ms / 1000
                self.lag.observe(late_s if late_s > 0.0 else 0.0)
