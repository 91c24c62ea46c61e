"""Limits that workers share, and the jobs that hold their slots."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from redis.exceptions import RedisError

from sluice.common import codec
from sluice.common.aio import wait_for
from sluice.common.contracts.workers import WAITING_LABELS
from sluice.common.jobs.partition_clients import PartitionClient
from sluice.common.observability.heartbeats import Heartbeat, WaitingReading
from sluice.common.redis.connection import TRANSIENT_ERRORS, execute_pipeline
from sluice.gateway.observability.snapshot.partitions import total
from sluice.gateway.state import GatewayState

#: Maximum number of running jobs listed per limit.
MOST_HOLDERS = 32
#: Maximum number of limits read. Workers with the same settings have only a few.
MOST_LIMITS = 32
#: Timeout for each of several partitions, in seconds.
PARTITION_TIMEOUT_S = 0.3


class SlotHolder(NamedTuple):
    """A job that holds a slot until a time, unless its worker renews it."""

    job_id: str
    until_ms: int


#: Number of running jobs, None if unknown, and some of them.
_RunningJobs = tuple[int | None, list[SlotHolder]]


class SharedLimit(NamedTuple):
    """A concurrency limit across all workers."""

    name: str
    #: Number of slots.
    places: int
    #: None if unknown.
    running: int | None
    holders: list[SlotHolder]


async def shared_limits(
    state: GatewayState, workers: Sequence[Heartbeat], now_ms: int
) -> list[SharedLimit]:
    """All limits that workers report. If they differ, the most recent heartbeat is used.

    Takes one more round trip, or none if there are no limits across workers.
    """
    slots = {
        limit.name: limit.places
        for beat in sorted(workers, key=lambda beat: beat.seen_ms)
        for limit in beat.limits.across
    }
    names = sorted(slots)[:MOST_LIMITS]
    if not names:
        return []
    lines = state.lines
    if len(lines) == 1:
        pages = [await _read_running(lines.home, names, now_ms)]
    else:
        pages = await asyncio.gather(
            *(_read_running_in_time(line, names, now_ms) for line in lines)
        )
    return [
        SharedLimit(
            name,
            # Each partition enforces the limit separately.
            slots[name] * len(lines),
            total([page[at][0] for page in pages]),
            [holder for page in pages for holder in page[at][1]][:MOST_HOLDERS],
        )
        for at, name in enumerate(names)
    ]


async def _read_running_in_time(
    line: PartitionClient, names: Sequence[str], now_ms: int
) -> list[_RunningJobs]:
    """Like `_read_running`; unknown if the partition does not answer in time."""
    try:
        return await wait_for(PARTITION_TIMEOUT_S, _read_running(line, names, now_ms))
    except (RedisError, asyncio.TimeoutError, *TRANSIENT_ERRORS):
        return [(None, [])] * len(names)


async def _read_running(
    line: PartitionClient, names: Sequence[str], now_ms: int
) -> list[_RunningJobs]:
    keys = line.keys
    async with line.client.pipeline(transaction=False) as pipe:
        for name in names:
            pipe.zcount(keys.running(name), now_ms, "+inf")
            pipe.zrangebyscore(
                keys.running(name), now_ms, "+inf", start=0, num=MOST_HOLDERS, withscores=True
            )
        replies = await execute_pipeline(pipe)
    return [
        (
            running if isinstance(running, int) else None,
            [] if isinstance(held, Exception) else [_holder(*entry) for entry in held],
        )
        for running, held in zip(replies[::2], replies[1::2])
    ]


def waiting_in(workers: Sequence[Heartbeat]) -> dict[str, WaitingReading]:
    """Jobs that wait for a slot, by task, from the most recent heartbeat."""
    if not workers:
        return {}
    waiting = max(workers, key=lambda beat: beat.seen_ms).limits.waiting
    return {task: waiting[task] for task in WAITING_LABELS if task in waiting}


def _holder(member: bytes, until_ms: float) -> SlotHolder:
    # A third-party writer may have set `+inf`.
    return SlotHolder(codec.decode_text(member)[:256], int(min(until_ms, 1 << 52)))
