"""How soon a client that was turned away should come back, from the measured drain rate."""

from __future__ import annotations

import asyncio
import logging
import random
import time

from common.errors import SluiceError
from common.store import JobStore

log = logging.getLogger(__name__)

SAMPLE_EVERY_S = 2.0
#: Weight of the newest sample.
SMOOTHING = 0.4
#: Said while no rate is known yet, and as the bounds of what is ever said.
UNKNOWN_S = 5.0
SHORTEST_S, LONGEST_S = 1.0, 300.0


class DrainRate:
    """Jobs ended per second, smoothed over the last few samples."""

    def __init__(self, store: JobStore) -> None:
        self._store = store
        self._last: tuple[float, int] | None = None
        self._per_second = 0.0

    @property
    def per_second(self) -> float:
        """The rate as it stands."""
        return self._per_second

    async def run(self) -> None:
        """Sample until canceled."""
        while True:
            try:
                await self.run_once()
            except SluiceError as error:
                log.debug("drain rate not sampled: %s", error)
            except Exception:  # whatever it is, the next sample must come
                log.exception("drain rate not sampled after an unexpected fault")
            await asyncio.sleep(SAMPLE_EVERY_S)

    async def run_once(self) -> None:
        """Take one sample."""
        self.sample(time.monotonic(), (await self._store.counts()).ended)

    def sample(self, now: float, finished: int) -> None:
        """Note how many jobs had ended by `now`."""
        if self._last is not None:
            then, before = self._last
            # After a FLUSHALL the counter starts again below where it was.
            rate = max(0, finished - before) / max(now - then, 0.001)
            self._per_second += SMOOTHING * (rate - self._per_second)
        self._last = now, finished

    def retry_after_s(self, backlog: int, limit: int) -> float:
        """Seconds until there is likely room, spread by a fifth so that not all come at once."""
        known = self._per_second > 0.01
        return within_bounds((backlog - limit + 1) / self._per_second if known else UNKNOWN_S)


def within_bounds(seconds: float) -> float:
    """A time to come back, neither at once nor never, and spread by a fifth."""
    return min(max(seconds, SHORTEST_S), LONGEST_S) * random.uniform(0.8, 1.2)
