"""Reads the history on demand and caches it, so that each sample is read and evaluated once."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from itertools import dropwhile
from typing import Final

from sluice.common.contracts.stats import ONE_SECOND, RESOLUTIONS, Resolution
from sluice.gateway.observability.history.rings import Rings
from sluice.gateway.observability.history.samples import Point, Sample, make_point, window_of

#: Samples read per command; reading a whole ring at once would block the event loop for too long.
PAGE: Final = 100


class _RingCache:
    """The cached points of one ring."""

    def __init__(self, resolution: Resolution) -> None:
        self.resolution = resolution
        self.points: deque[Point] = deque(maxlen=resolution.length)
        self.window: deque[Sample] = deque(maxlen=window_of(resolution))
        self.reading = asyncio.Lock()

    @property
    def last_ts(self) -> int:
        return self.points[-1].ts if self.points else 0

    def forget(self) -> None:
        self.points.clear()
        self.window.clear()

    def add(self, sample: Sample) -> None:
        self.window.append(sample)
        self.points.append(make_point(self.window, self.resolution))


class HistoryReader:
    """Reads and caches all rings; nothing is cached before the first request."""

    def __init__(self, rings: Rings) -> None:
        self._rings = rings
        self._caches = {resolution: _RingCache(resolution) for resolution in RESOLUTIONS}

    async def points(self, resolution: Resolution, after: int = 0) -> list[Point]:
        """Every point later than a time, oldest first; raises StoreUnavailable."""
        ring = self._caches[resolution]
        async with ring.reading:
            await self._read_on(ring)
        if ring.last_ts <= after:
            return []
        return list(dropwhile(lambda each: each.ts <= after, ring.points))

    @property
    def newest(self) -> Sample | None:
        """The newest one-second sample that was read."""
        near: Sequence[Sample] = self._caches[ONE_SECOND].window
        return near[-1] if near else None

    async def _read_on(self, ring: _RingCache) -> None:
        while True:
            # The last known sample is read again: if it is gone, the ring was replaced.
            found = await self._rings.after(ring.resolution, ring.last_ts - 1, count=PAGE)
            if ring.points and (not found or found[0].ts != ring.last_ts):
                ring.forget()
                continue
            before = ring.last_ts
            for sample in found:
                if sample.ts > ring.last_ts:  # a third-party writer may add several at one time
                    ring.add(sample)
            if len(found) < PAGE or ring.last_ts == before:
                return
            await asyncio.sleep(0)
