"""Tells everybody, every few seconds, that this worker lives, what it does and has done."""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from redis.exceptions import RedisError

from common import process
from common.connection import TRANSIENT_ERRORS
from common.contracts.jobs import JobKeys
from common.contracts.workers import MOST_NAMED, MOST_WORKERS
from common.host import Readings
from common.loop_lag import LoopLag
from common.queue_reading import QueueReading
from common.version import VERSION
from worker.crews import Crews
from worker.signs import (
    MEMBERS,
    LimitReading,
    LimitsReading,
    RunningJob,
    Sign,
    WaitingReading,
)

log = logging.getLogger(__name__)

#: A worker that missed so many beats is gone.
BEATS_MISSED = 3
SHORTEST_LIFE_S = 3
#: Seconds after which the name of a worker that fell silent is forgotten.
NAME_KEPT_S = 3600
#: How long a stopping worker tries to take its name off the list.
FAREWELL_S = 1.0
NO_LIMITS = LimitsReading()
_TROUBLE = (RedisError, *TRANSIENT_ERRORS)


class HeartbeatSender:
    """Writes one small JSON and a name on a list; both are gone soon after the worker is."""

    def __init__(
        self,
        crews: Crews,
        keys: JobKeys,
        every_s: float,
        loop_lag: LoopLag,
        look_at_box: Callable[[], Readings] = Readings,
        holding_why: Callable[[], str] = lambda: "",
        telling: Mapping[str, Callable[[], Any]] | None = None,
    ) -> None:
        self._crews = crews
        self._client = crews.home.lines.client
        self._keys = keys
        self._every_s = every_s
        self._loop_lag = loop_lag
        self._look_at_box = look_at_box
        self._holding_why = holding_why
        #: What services say of themselves, by member.
        self._telling = {} if telling is None else telling
        self._started_ms = int(time.time() * 1000)
        self._host = socket.gethostname()
        self._life_s = max(SHORTEST_LIFE_S, math.ceil(BEATS_MISSED * every_s))

    async def run(self) -> None:
        """Beat until canceled; trouble is left to the next beat."""
        while True:
            try:
                await self.run_once()
            except _TROUBLE as error:
                log.debug("no sign of life this time: %s", error)
            except Exception:  # whatever it is, a worker that works must not look dead
                log.exception("no sign of life this time")
            await asyncio.sleep(self._every_s)

    async def run_once(self) -> Sign:
        """Beat once."""
        client, keys, consumer = self._client, self._keys, self._crews.worker.consumer
        beat = self.beat(await self._crews.read_queues())
        now_ms = beat.seen_ms
        async with client.pipeline(transaction=False) as pipe:
            pipe.set(keys.worker(consumer), beat.to_json(), ex=self._life_s)
            pipe.zadd(keys.workers, {consumer: now_ms})
            pipe.zremrangebyscore(keys.workers, "-inf", now_ms - NAME_KEPT_S * 1000)
            pipe.zremrangebyrank(keys.workers, 0, -MOST_WORKERS - 1)
            pipe.expire(keys.workers, NAME_KEPT_S)
            await pipe.execute()
        return beat

    async def leave(self) -> None:
        """A worker that stops in good order is gone at once."""
        client, keys, consumer = self._client, self._keys, self._crews.worker.consumer
        try:
            async with client.pipeline(transaction=False) as pipe:
                pipe.delete(keys.worker(consumer))
                pipe.zrem(keys.workers, consumer)
                await asyncio.wait_for(pipe.execute(), FAREWELL_S)
        except (asyncio.TimeoutError, *_TROUBLE) as error:
            log.debug("the last sign of life runs out by itself: %r", error)

    def beat(self, queue: QueueReading) -> Sign:
        """What there is to say now."""
        crews = self._crews
        usage = process.usage()
        why = self._holding_why()
        tasks = crews.registry.tasks
        return Sign(
            consumer=crews.worker.consumer,
            host=self._host,
            pid=os.getpid(),
            version=VERSION,
            started_ms=self._started_ms,
            seen_ms=int(time.time() * 1000),
            every_s=self._every_s,
            tasks=tasks,
            in_flight=crews.slots.busy,
            max_inflight=crews.max_inflight,
            deferred=crews.deferred,
            running=self._running(),
            draining=crews.slots.interrupted,
            holding=bool(why),
            holding_why=why,
            loop_lag_s=self._loop_lag.worst_s,
            rss_bytes=usage.rss_bytes,
            open_fds=usage.open_fds,
            cpu_s=usage.cpu_s,
            events=crews.events_emitted,
            box=self._look_at_box(),
            queue=queue,
            tally=crews.tally.view(tasks),
            limits=self._limits(),
            **{member: tell() for member, tell in self._telling.items() if member in MEMBERS},
        )

    def _limits(self) -> LimitsReading:
        limits, waiting = self._crews.home.limits, self._crews.waiting
        if not limits and not waiting:
            return NO_LIMITS
        running = Counter(run.attempt.task for run in self._crews.running)
        return LimitsReading(
            here=[
                LimitReading(name=each.limit.name, places=each.limit.places, running=each.running)
                for each in limits.here
            ],
            across=[
                LimitReading(
                    name=limit.name,
                    places=limit.places,
                    running=sum(running[task] for task in limit.tasks),
                )
                for limit in limits.across
            ],
            closed={task: why[:1000] for task, why in limits.closed.items()},
            waiting={
                task: WaitingReading(number=number, oldest_ms=oldest_ms)
                for task, (number, oldest_ms) in itertools.islice(waiting.items(), MOST_NAMED)
                if number
            },
        )

    def _running(self) -> list[RunningJob]:
        now_ms = int(time.time() * 1000)
        return [
            RunningJob(
                job_id=run.lease.job_id[:256],
                task=run.attempt.task[:256],
                attempt=run.lease.attempt,
                since_ms=now_ms - run.context.elapsed_ms,
            )
            for run in itertools.islice(self._crews.running, MOST_NAMED)
        ]
