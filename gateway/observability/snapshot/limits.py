"""Who has the places that workers share: the limits that they name, and Redis' list of the jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from redis.exceptions import RedisError

from common import codec
from common.aio import wait_for
from common.contracts.workers import WAITING_LABELS
from common.jobs.partition_clients import PartitionClient
from common.observability.heartbeats import Heartbeat, WaitingReading
from common.redis.connection import TRANSIENT_ERRORS, execute_pipeline
from gateway.observability.snapshot.partitions import total
from gateway.state import GatewayState

#: Running jobs that are named of each limit.
MOST_HOLDERS = 32
#: Limits that are looked at; workers that agree with each other have a few.
MOST_LIMITS = 32
#: How long one partition of several may take to say who has its places.
PARTITION_TIMEOUT_S = 0.3


class SlotHolder(NamedTuple):
    """A job that has a place, and until when unless its worker renews that."""

    job_id: str
    until_ms: int


#: How many run, None where Redis would not say, and some of them.
_RunningJobs = tuple[int | None, list[SlotHolder]]


class SharedLimit(NamedTuple):
    """Places across all workers."""

    name: str
    places: int
    #: None where Redis would not say.
    running: int | None
    holders: list[SlotHolder]


async def shared_limits(
    state: GatewayState, workers: Sequence[Heartbeat], now_ms: int
) -> list[SharedLimit]:
    """Every limit that some worker knows; of workers that differ, the one heard of last is right.

    One more round trip, and none where nothing is limited across workers.
    """
    places = {
        limit.name: limit.places
        for beat in sorted(workers, key=lambda beat: beat.seen_ms)
        for limit in beat.limits.across
    }
    names = sorted(places)[:MOST_LIMITS]
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
            # Each partition counts for itself.
            places[name] * len(lines),
            total([page[at][0] for page in pages]),
            [holder for page in pages for holder in page[at][1]][:MOST_HOLDERS],
        )
        for at, name in enumerate(names)
    ]


async def _read_running_in_time(
    line: PartitionClient, names: Sequence[str], now_ms: int
) -> list[_RunningJobs]:
    """A partition that is away says nothing, and holds up nobody."""
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
    """What waits for a place, by task, as the worker saw it that was heard of last."""
    if not workers:
        return {}
    seen = max(workers, key=lambda beat: beat.seen_ms).limits.waiting
    return {task: seen[task] for task in WAITING_LABELS if task in seen}


def _holder(member: bytes, until_ms: float) -> SlotHolder:
    # A foreign hand may have written `+inf`.
    return SlotHolder(codec.decode_text(member)[:256], int(min(until_ms, 1 << 52)))
