"""Who has the places that workers share: the limits that they name, and Redis' list of the jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from redis.exceptions import RedisError

from common import codec
from common.connection import TRANSIENT_ERRORS
from common.contracts.workers import WAITING_LABELS
from common.heartbeats import Heartbeat, WaitingReading
from common.partition_lines import Line
from common.patience import within
from common.pipelines import replies_of
from gateway.partition_facts import total
from gateway.state import GatewayState

#: Running jobs that are named of each limit.
MOST_HOLDERS = 32
#: Limits that are looked at; workers that agree with each other have a few.
MOST_LIMITS = 32
#: How long one partition of several may take to say who has its places.
ASKED_S = 0.3


class Holder(NamedTuple):
    """A job that has a place, and until when unless its worker renews that."""

    job_id: str
    until_ms: int


#: How many run, None where Redis would not say, and some of them.
_Held = tuple[int | None, list[Holder]]


class SharedLimit(NamedTuple):
    """Places across all workers."""

    name: str
    places: int
    #: None where Redis would not say.
    running: int | None
    holders: list[Holder]


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
        pages = [await _ask(lines.home, names, now_ms)]
    else:
        pages = await asyncio.gather(*(_ask_in_time(line, names, now_ms) for line in lines))
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


async def _ask_in_time(line: Line, names: Sequence[str], now_ms: int) -> list[_Held]:
    """A partition that is away says nothing, and holds up nobody."""
    try:
        return await within(ASKED_S, _ask(line, names, now_ms))
    except (RedisError, asyncio.TimeoutError, *TRANSIENT_ERRORS):
        return [(None, [])] * len(names)


async def _ask(line: Line, names: Sequence[str], now_ms: int) -> list[_Held]:
    keys = line.keys
    async with line.client.pipeline(transaction=False) as pipe:
        for name in names:
            pipe.zcount(keys.running(name), now_ms, "+inf")
            pipe.zrangebyscore(
                keys.running(name), now_ms, "+inf", start=0, num=MOST_HOLDERS, withscores=True
            )
        replies = await replies_of(pipe)
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


def _holder(member: bytes, until_ms: float) -> Holder:
    # A foreign hand may have written `+inf`.
    return Holder(codec.text(member)[:256], int(min(until_ms, 1 << 52)))
