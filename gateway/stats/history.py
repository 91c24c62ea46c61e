"""The history as this gateway knows it: every sample is read and worked out once."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from itertools import dropwhile
from typing import Final

from common.contracts.stats import RESOLUTIONS, SECONDS, Resolution
from gateway.stats.points import Point, point, window_of
from gateway.stats.rings import Rings
from gateway.stats.sample import Sample

#: Samples read in one go: a whole ring at once would hold up everybody else.
PAGE: Final = 100


class _Ring:
    """What is known of one ring."""

    def __init__(self, resolution: Resolution) -> None:
        self.resolution = resolution
        self.points: deque[Point] = deque(maxlen=resolution.length)
        self.near: deque[Sample] = deque(maxlen=window_of(resolution))
        self.reading = asyncio.Lock()

    @property
    def last_ts(self) -> int:
        return self.points[-1].ts if self.points else 0

    def forget(self) -> None:
        self.points.clear()
        self.near.clear()

    def add(self, sample: Sample) -> None:
        self.near.append(sample)
        self.points.append(point(self.near, self.resolution))


class History:
    """Read on demand; a gateway that nobody asks keeps nothing."""

    def __init__(self, rings: Rings) -> None:
        self._rings = rings
        self._known = {resolution: _Ring(resolution) for resolution in RESOLUTIONS}

    async def points(self, resolution: Resolution, after: int = 0) -> list[Point]:
        """Every point later than a time, oldest first; raises StoreUnavailable."""
        ring = self._known[resolution]
        async with ring.reading:
            await self._read_on(ring)
        if ring.last_ts <= after:
            return []
        return list(dropwhile(lambda each: each.ts <= after, ring.points))

    @property
    def newest(self) -> Sample | None:
        """The last sample of a second that was read."""
        near: Sequence[Sample] = self._known[SECONDS].near
        return near[-1] if near else None

    async def _read_on(self, ring: _Ring) -> None:
        while True:
            # The last known one is read again: where it is gone, the ring is another one.
            found = await self._rings.after(ring.resolution, ring.last_ts - 1, count=PAGE)
            if ring.points and (not found or found[0].ts != ring.last_ts):
                ring.forget()
                continue
            before = ring.last_ts
            for sample in found:
                if sample.ts > ring.last_ts:  # a foreign hand may have put several at one time
                    ring.add(sample)
            if len(found) < PAGE or ring.last_ts == before:
                return
            await asyncio.sleep(0)
