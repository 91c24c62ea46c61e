"""Clients that watch a job over SSE to its end and reconnect after every disconnect."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from chaos import http
from chaos.http import Unanswered
from sluice.common.contracts.jobs import TERMINAL, FrameType

_WAIT_S = 0.3
#: Probability that a client disconnects by itself after an event.
_DISCONNECT_PROBABILITY = 0.1
#: Frames that report missed events.
_GAP_FRAMES = (FrameType.GAP, FrameType.GONE)


@dataclass
class Watched:
    """What a client received about a job, over all its connections."""

    job_id: str
    #: Event ids in the order of arrival.
    ids: list[str] = field(default_factory=list)
    connections: int = 0
    ended: bool = False
    #: Unexpected responses and frames.
    faults: list[str] = field(default_factory=list)


class Watchers:
    """All watching clients."""

    def __init__(self, gateways: Sequence[int]) -> None:
        self._gateways = gateways
        self._tasks: set[asyncio.Task[None]] = set()
        self.watched: list[Watched] = []
        self.statuses: Counter[int] = Counter()

    @property
    def open(self) -> int:
        return len(self._tasks)

    def watch(self, job_id: str) -> None:
        watched = Watched(job_id)
        self.watched.append(watched)
        task = asyncio.ensure_future(self._follow(watched))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def stop(self) -> None:
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
                watched.faults.append(f"the stream request was answered with {stream.status}")
                # after a 500 the client reconnects, to see what follows
                watched.ended = stream.status != 500
        await asyncio.sleep(_WAIT_S)

    async def _read(self, watched: Watched, stream: http.EventStream) -> None:
        """Reads to the end of the stream even after the last event: nothing may follow it."""
        async for frame in stream.frames():
            if frame.type in _GAP_FRAMES:
                watched.faults.append(f"the stream sent {frame.type}")
            if frame.id:
                watched.ids.append(frame.id)
                watched.ended = watched.ended or frame.type in TERMINAL
                if not watched.ended and random.random() < _DISCONNECT_PROBABILITY:
                    return
