"""Writes the worker's heartbeat to Redis every few seconds: state, running jobs and counters."""

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

from sluice.common.contracts.jobs import JobKeys
from sluice.common.contracts.workers import MOST_NAMED, MOST_WORKERS
from sluice.common.jobs.queue_stats import QueueReading
from sluice.common.observability.heartbeats import (
    HEARTBEAT_FIELDS,
    Heartbeat,
    LimitReading,
    LimitsReading,
    MachineReading,
    RunningJob,
    WaitingReading,
)
from sluice.common.process import usage as process
from sluice.common.process.host import HostReadings
from sluice.common.process.usage import LoopLag
from sluice.common.redis.connection import TRANSIENT_ERRORS
from sluice.common.version import VERSION
from sluice.worker.queue.consumers import QueueConsumers

log = logging.getLogger(__name__)

#: Beats after which a worker counts as gone.
MISSED_BEATS = 3
MIN_TTL_S = 3
#: Seconds after which the name of a worker without heartbeat is removed.
NAME_TTL_S = 3600
#: Seconds that a stopping worker tries to remove its heartbeat.
LEAVE_TIMEOUT_S = 1.0
NO_LIMITS = LimitsReading()
_REDIS_ERRORS = (RedisError, *TRANSIENT_ERRORS)


class HeartbeatSender:
    """Writes a JSON document and the worker's name in a sorted set. Both expire."""

    def __init__(
        self,
        consumers: QueueConsumers,
        keys: JobKeys,
        every_s: float,
        loop_lag: LoopLag,
        read_host: Callable[[], HostReadings] = HostReadings,
        holding_why: Callable[[], str] = lambda: "",
        fields: Mapping[str, Callable[[], Any]] | None = None,
    ) -> None:
        self._consumers = consumers
        self._client = consumers.home.connections.client
        self._keys = keys
        self._every_s = every_s
        self._loop_lag = loop_lag
        self._read_host = read_host
        self._holding_why = holding_why
        #: Functions of the members that services add.
        self._fields = {} if fields is None else fields
        self._started_ms = int(time.time() * 1000)
        self._host = socket.gethostname()
        self._ttl_s = max(MIN_TTL_S, math.ceil(MISSED_BEATS * every_s))

    async def run(self) -> None:
        """Send heartbeats until canceled. After an error the next beat tries again."""
        while True:
            try:
                await self.run_once()
            except _REDIS_ERRORS as error:
                log.debug("heartbeat not sent: %s", error)
            except Exception:  # the beats must continue, or the worker would count as gone
                log.exception("heartbeat not sent")
            await asyncio.sleep(self._every_s)

    async def run_once(self) -> Heartbeat:
        client, keys, consumer = self._client, self._keys, self._consumers.worker.consumer
        beat = self.build(await self._consumers.read_queues())
        now_ms = beat.seen_ms
        async with client.pipeline(transaction=False) as pipe:
            pipe.set(keys.worker(consumer), beat.to_json(), ex=self._ttl_s)
            pipe.zadd(keys.workers, {consumer: now_ms})
            pipe.zremrangebyscore(keys.workers, "-inf", now_ms - NAME_TTL_S * 1000)
            pipe.zremrangebyrank(keys.workers, 0, -MOST_WORKERS - 1)
            pipe.expire(keys.workers, NAME_TTL_S)
            await pipe.execute()
        return beat

    async def remove(self) -> None:
        """Remove the heartbeat, so that a worker that stops counts as gone at once."""
        client, keys, consumer = self._client, self._keys, self._consumers.worker.consumer
        try:
            async with client.pipeline(transaction=False) as pipe:
                pipe.delete(keys.worker(consumer))
                pipe.zrem(keys.workers, consumer)
                await asyncio.wait_for(pipe.execute(), LEAVE_TIMEOUT_S)
        except (asyncio.TimeoutError, *_REDIS_ERRORS) as error:
            log.debug("heartbeat not removed; it expires: %r", error)

    def build(self, queue: QueueReading) -> Heartbeat:
        consumers = self._consumers
        usage = process.process_usage()
        why = self._holding_why()
        tasks = consumers.registry.tasks
        return Heartbeat(
            consumer=consumers.worker.consumer,
            host=self._host,
            pid=os.getpid(),
            version=VERSION,
            started_ms=self._started_ms,
            seen_ms=int(time.time() * 1000),
            every_s=self._every_s,
            tasks=tasks,
            in_flight=consumers.slots.busy,
            max_inflight=consumers.max_inflight,
            deferred=consumers.deferred,
            running=self._running(),
            draining=consumers.slots.interrupted,
            holding=bool(why),
            holding_why=why,
            loop_lag_s=self._loop_lag.worst_s,
            rss_bytes=usage.rss_bytes,
            open_fds=usage.open_fds,
            cpu_s=usage.cpu_s,
            events=consumers.events_emitted,
            box=MachineReading.from_readings(self._read_host()),
            queue=queue,
            tally=consumers.counters.readings(tasks),
            limits=self._limits(),
            **{
                member: read()
                for member, read in self._fields.items()
                if member in HEARTBEAT_FIELDS
            },
        )

    def _limits(self) -> LimitsReading:
        limits, waiting = self._consumers.home.limits, self._consumers.waiting_by_task
        if not limits and not waiting:
            return NO_LIMITS
        running = Counter(attempt.job.task for attempt in self._consumers.running)
        return LimitsReading(
            here=[
                LimitReading(name=each.limit.name, places=each.limit.slots, running=each.running)
                for each in limits.here
            ],
            across=[
                LimitReading(
                    name=limit.name,
                    places=limit.slots,
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
                job_id=attempt.lease.job_id[:256],
                task=attempt.job.task[:256],
                attempt=attempt.lease.attempt,
                since_ms=now_ms - attempt.context.elapsed_ms,
            )
            for attempt in itertools.islice(self._consumers.running, MOST_NAMED)
        ]
