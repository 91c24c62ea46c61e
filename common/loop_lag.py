"""How late an event loop is: the delay that every job, request and stream of it suffers."""

from __future__ import annotations

import asyncio
from collections import deque

SAMPLE_EVERY_S = 0.5
#: The worst of so many samples is told, so that a stall between two looks is seen.
SAMPLES_KEPT = 30


class LoopLag:
    """Sleeps a little, again and again, and notes how much longer that took."""

    def __init__(self, every_s: float = SAMPLE_EVERY_S) -> None:
        self._every_s = every_s
        self._samples: deque[float] = deque(maxlen=SAMPLES_KEPT)

    @property
    def worst_s(self) -> float:
        """The longest delay of the last few seconds."""
        return max(self._samples, default=0.0)

    async def run(self) -> None:
        """Measure until canceled."""
        while True:
            await self.run_once()

    async def run_once(self) -> None:
        """Measure once."""
        loop = asyncio.get_running_loop()
        due = loop.time() + self._every_s
        await asyncio.sleep(self._every_s)
        self.note(loop.time() - due)

    def note(self, late_s: float) -> None:
        """Take a delay into account."""
        self._samples.append(max(0.0, late_s))
