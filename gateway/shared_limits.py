"""Who has the places that workers share: the limits that they name, and Redis' list of the jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from common import codec
from common.contracts.workers import TASK_LABELS
from common.heartbeats import Heartbeat, WaitingReading
from gateway.state import GatewayState

#: Running jobs that are named of each limit.
MOST_HOLDERS = 32
#: Limits that are looked at; workers that agree with each other have a few.
MOST_LIMITS = 32


class Holder(NamedTuple):
    """A job that has a place, and until when unless its worker renews that."""

    job_id: str
    until_ms: int


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
    keys = state.settings.keys
    async with state.client.pipeline(transaction=False) as pipe:
        for name in names:
            pipe.zcount(keys.running(name), now_ms, "+inf")
            pipe.zrangebyscore(
                keys.running(name), now_ms, "+inf", start=0, num=MOST_HOLDERS, withscores=True
            )
        replies = await pipe.execute(raise_on_error=False)
    return [
        SharedLimit(
            name,
            places[name],
            running if isinstance(running, int) else None,
            [] if isinstance(held, Exception) else [_holder(*entry) for entry in held],
        )
        for name, running, held in zip(names, replies[::2], replies[1::2])
    ]


def waiting_in(workers: Sequence[Heartbeat]) -> dict[str, WaitingReading]:
    """What waits for a place, by task, as the worker saw it that was heard of last."""
    if not workers:
        return {}
    seen = max(workers, key=lambda beat: beat.seen_ms).limits.waiting
    return {task: seen[task] for task in TASK_LABELS if task in seen}


def _holder(member: bytes, until_ms: float) -> Holder:
    # A foreign hand may have written `+inf`.
    return Holder(codec.text(member)[:256], int(min(until_ms, 1 << 52)))
