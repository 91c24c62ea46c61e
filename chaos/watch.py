"""Clients that watch a job over SSE, through every disconnection, to its end."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from chaos import http
from chaos.http import Unanswered
from common.contracts.jobs import TERMINAL, FrameType

_WAIT_S = 0.3
#: Now and then a client leaves by itself after an event, as people do.
_LEAVES = 0.1
#: Frames that say that something was missed.
_BAD_NEWS = (FrameType.GAP, FrameType.GONE)


@dataclass
class Watched:
    """What a client saw of a job, over all its connections."""

    job_id: str
    #: Ids in the order they came.
    ids: list[str] = field(default_factory=list)
    connections: int = 0
    ended: bool = False
    #: Answers and frames that must not be.
    faults: list[str] = field(default_factory=list)


class Watchers:
    """All clients that watch."""

    def __init__(self, gateways: Sequence[int]) -> None:
        self._gateways = gateways
        self._tasks: set[asyncio.Task[None]] = set()
        self.watched: list[Watched] = []
        self.statuses: Counter[int] = Counter()

    @property
    def open(self) -> int:
        """How many are still watching."""
        return len(self._tasks)

    def watch(self, job_id: str) -> None:
        """Follow a job to its end."""
        watched = Watched(job_id)
        self.watched.append(watched)
        task = asyncio.ensure_future(self._follow(watched))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def stop(self) -> None:
        """Watch no more."""
        for task in self._tasks:
            task.cancel()

    async def _follow(self, watched: Watched) -> None:
        while not watched.ended:
            try:
                await self._connect(watched)
            except Unanswered:
                await asyncio.sleep(_WAIT_S)

    async def _connect(self, watched: Watched) -> None:
        last = watched.ids[-1] if watched.ids else ""
        async with http.events(random.choice(self._gateways), watched.job_id, last) as stream:
            watched.connections += 1
            self.statuses[stream.status] += 1
            if stream.status == 204:
                watched.ended = True
            elif stream.status == 200:
                await self._read(watched, stream)
            elif stream.status != 503:
                watched.faults.append(f"the stream was answered with {stream.status}")
                watched.ended = stream.status != 500  # of which it is to be seen what follows
        await asyncio.sleep(_WAIT_S)

    async def _read(self, watched: Watched, stream: http.EventStream) -> None:
        """To the end of the stream even after the last event: nothing may follow it."""
        async for frame in stream.frames():
            if frame.type in _BAD_NEWS:
                watched.faults.append(f"the stream said {frame.type}")
            if frame.id:
                watched.ids.append(frame.id)
                watched.ended = watched.ended or frame.type in TERMINAL
                if not watched.ended and random.random() < _LEAVES:
                    return
