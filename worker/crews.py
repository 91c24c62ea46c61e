"""The crews of a worker: one for each queue it serves, with lines of its own to its server.

They share the worker's places, its numbers and its handlers. Whatever there is one of in a process
means all of them: how much runs, what is deferred, how long the queues are.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from redis.exceptions import RedisError

from common.addresses import for_tag
from common.connection import REPLY_TIMEOUT_S, TRANSIENT_ERRORS, async_client, sync_client
from common.contracts.jobs import JobKeys
from common.contracts.lanes import Lane
from common.open_files import allow_files
from common.queue_reading import QueueReader, QueueReading, all_together
from common.store import WorkerIdentity
from common.wire import Commander, Wire
from worker.crew import Capacity, Commons, Crew, Lines
from worker.registry import Registry
from worker.run import Run
from worker.terms import WorkerTerms

if TYPE_CHECKING:
    from common.settings import WorkerSettings

log = logging.getLogger(__name__)

#: For single reads, and for what handlers keep in Redis beside their jobs.
CONNECTIONS = 4
#: Files that a worker may have open for each queue, at most: the above, writing, reading, renewing,
#: listening. And besides: logs, models, what handlers want.
FILES_PER_QUEUE = CONNECTIONS + 4
OTHER_FILES = 256
#: However short the lease, Redis gets so many seconds to answer.
SHORTEST_REPLY_S = 1.0
#: How many messages of a lane are taken for how many of another, while all have some. A lane of
#: tenants counts as the normal one.
WEIGHTS: Final = {Lane.HIGH.value: 8, Lane.NORMAL.value: 4, Lane.LOW.value: 1}
#: How long a server may take to tell about its queue while others have done so.
READING_S = 1.0


class Crews:
    """All crews of a process, the home partition's first."""

    def __init__(self, crews: Sequence[Crew], listening: Sequence[Commander] = ()) -> None:
        self._crews = tuple(crews)
        self._listening = tuple(listening)
        #: Where everything is that there is one of.
        self.home = home = self._crews[0]
        self.slots = home.slots
        self.tally = home.tally
        self.registry = home.registry
        self.worker = home.worker
        self.max_inflight = home.max_inflight

    def __iter__(self) -> Iterator[Crew]:
        return iter(self._crews)

    def __len__(self) -> int:
        return len(self._crews)

    # -- life ------------------------------------------------------------------------------

    def start(self) -> None:
        """Keep leases from now on."""
        for crew in self._crews:
            crew.leases.start()

    def reading(self) -> Coroutine[Any, Any, None]:
        """Everybody who reads; ends when all have been stopped."""
        if len(self._crews) == 1:
            return self.home.reader.run()
        return self._read_all()

    async def _read_all(self) -> None:
        await asyncio.gather(*(crew.reader.run() for crew in self._crews))

    def taking(self) -> list[Coroutine[Any, Any, None]]:
        """Everybody else who takes messages."""
        return [
            work
            for crew in self._crews
            for work in (
                crew.recovery.run(),
                crew.deferred.run(crew.admission.offer),
                crew.waiting.run(crew.admission.call),
            )
        ]

    def caring(self) -> list[Coroutine[Any, Any, None]]:
        """Everybody who looks after a queue."""
        listening = (crew.control.run(line) for crew, line in zip(self._crews, self._listening))
        return [
            *listening,
            *(crew.janitor.run() for crew in self._crews),
            *(crew.promoter.run() for crew in self._crews if crew.promoter),
        ]

    async def close(self) -> None:
        """Let go of everything."""
        for crew in self._crews:
            crew.leases.ask_to_stop()
        for crew in self._crews:
            await crew.close()
        lines = {id(line): line for crew in self._crews for line in crew.lines.in_loop}
        for line in (*self._listening, *lines.values()):
            await line.aclose()

    # -- sums ------------------------------------------------------------------------------

    @property
    def served(self) -> str:
        """The queues, in words."""
        more = len(self._crews) - 1
        return self.home.keys.queue + (f" and {more} more" if more else "")

    @property
    def deferred(self) -> int:
        """Messages that may not run yet."""
        return sum(len(crew.deferred) for crew in self._crews)

    @property
    def running(self) -> Iterator[Run]:
        """The attempts that run."""
        return itertools.chain.from_iterable(crew.executor.running for crew in self._crews)

    @property
    def events_emitted(self) -> int:
        """How many events handlers have emitted."""
        return sum(crew.executor.events_emitted for crew in self._crews)

    @property
    def waiting(self) -> Mapping[str, tuple[int, int]]:
        """By task, how many wait for a place of their task, and since when the oldest does."""
        found: dict[str, tuple[int, int]] = {}
        for crew in self._crews:
            for task, number in crew.waiting.numbers.items():
                since = crew.waiting.oldest_ms.get(task, 0)
                known, oldest = found.get(task, (0, 0))
                found[task] = known + number, min(filter(None, (since, oldest)), default=0)
        return found

    @property
    def keeps_leases(self) -> bool:
        """Whether leases are renewed. Those of a server that is away cannot be, and are given up:
        that is no reason to end what goes on elsewhere."""
        return any(crew.leases.healthy for crew in self._crews)

    async def read_queues(self) -> QueueReading:
        """How all queues stand together; raises where no server answers."""
        if len(self._crews) == 1:
            return await self._read_queue(self.home)
        readings = [asyncio.ensure_future(self._read_queue(crew)) for crew in self._crews]
        try:
            await asyncio.wait(readings, timeout=READING_S)
        finally:
            for each in readings:
                each.cancel()
        await asyncio.wait(readings)
        known = [each.result() for each in readings if not each.cancelled() and _answered(each)]
        if not known:
            raise ConnectionError("no partition answers")
        return all_together([*known, *[QueueReading()] * (len(readings) - len(known))])

    async def _read_queue(self, crew: Crew) -> QueueReading:
        return await QueueReader(crew.keys.stream, self.worker.group).read(crew.lines.client)


def _answered(reading: asyncio.Future[QueueReading]) -> bool:
    fault = reading.exception()
    if fault is not None and not isinstance(fault, (RedisError, *TRANSIENT_ERRORS)):
        raise fault
    return fault is None


def hire(
    settings: WorkerSettings,
    url: str,
    registry: Registry,
    worker: WorkerIdentity,
    capacity: Capacity,
    terms: WorkerTerms,
) -> Crews:
    """A crew for each partition, and for each lane of it; the home's normal one first."""
    lanes = settings.lane_names
    queues = [
        (keys.in_lane(lane), WEIGHTS.get(lane, WEIGHTS[Lane.NORMAL.value]) if lanes else 1)
        for lane in (Lane.NORMAL.value, *lanes)
        for keys in settings.partitions.keys
    ]
    _make_room(len(queues))
    commons = Commons(capacity, len(queues))
    lines: dict[str, Lines] = {}
    crews = [
        Crew(
            *(_lines(settings, url, keys, lines), keys, worker, registry, commons, terms),
            weight,
            lanes,
        )
        for keys, weight in queues
    ]
    listening: list[Wire] = []
    for crew in crews:
        if not crew.keys.lane:  # the normal ones come first, and hear for all
            own = [each for each in crews if each.keys.lane and each.keys.tag == crew.keys.tag]
            crew.control.lanes = [each.control for each in own]
            listening.append(Wire(for_tag(url, crew.keys.tag), on_message=crew.control.heard))
    return Crews(crews, listening)


def _make_room(queues: int) -> None:
    """Each queue has connections of its own; one that finds no room would be read by nobody."""
    wanted = OTHER_FILES + FILES_PER_QUEUE * queues
    allowed = allow_files(wanted)
    if allowed < wanted:
        log.warning(
            "this process may open %d files only, and %d queues may want %d (LimitNOFILE= of the "
            "unit, or ulimit -n)",
            *(allowed, queues, wanted),
        )


def _lines(settings: WorkerSettings, url: str, keys: JobKeys, known: dict[str, Lines]) -> Lines:
    """Partitions of one server share what many may use at once."""
    url = for_tag(url, keys.tag)
    # Whoever has a short lease must not wait long for a connection that fell silent.
    patience_s = min(REPLY_TIMEOUT_S, max(settings.lease_ms / 1000, SHORTEST_REPLY_S))
    reading = Wire(url, block_s=settings.block_ms / 1000, reply_timeout_s=patience_s)
    renewing = sync_client(url, reply_timeout_s=min(REPLY_TIMEOUT_S, settings.lease_ms / 3000))
    if url in known:
        return Lines(known[url].client, known[url].writing, reading, renewing)
    client = async_client(url, connections=CONNECTIONS)
    known[url] = Lines(client, Wire(url, reply_timeout_s=patience_s), reading, renewing)
    return known[url]
