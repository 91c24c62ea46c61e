"""Which jobs the queue still has in hand, read in small pages and without taking anything."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from common import codec
from common.audit_rules import Standing
from common.contracts.jobs import JobKeys, QueueField
from common.contracts.lanes import OTHER_LANES

#: Entries read at once; they come with their payloads.
PAGE = 100
#: Entries looked at; of a longer queue only the beginning is judged.
MOST_ENTRIES = 250_000
_JOB_ID = QueueField.JOB_ID.value.encode()
_NEVER = (-1, 0)
_NOT_THERE = ("WRONGTYPE", "NOGROUP", "no such key")


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """How every job on the queue stood when it was read."""

    standings: dict[bytes, Standing]
    #: False where the queue is longer than what was looked at.
    complete: bool = True

    def of(self, job_id: str) -> Standing | None:
        """How a job stands; None where the queue has no entry of it."""
        return self.standings.get(job_id.encode())


async def collect(client: Redis, keys: JobKeys, group: str, pause_s: float = 0.0) -> QueueFacts:
    """Read the queue once, in all its lanes."""
    standings: dict[bytes, Standing] = {}
    complete = [
        await _collect(client, keys.in_lane(lane).stream, group, pause_s, standings)
        for lane in ("", *OTHER_LANES)
    ]
    return QueueFacts(standings, all(complete))


async def _collect(
    client: Redis, queue: str, group: str, pause_s: float, standings: dict[bytes, Standing]
) -> bool:
    """Add what a stream says; returns whether all of it was looked at.

    What was delivered is asked first and what is pending after it, so that an entry seen as
    acknowledged has been acknowledged, whatever happens meanwhile.
    """
    delivered = await _last_delivered(client, queue, group)
    # Most jobs stand alike: a long queue shares a handful of these.
    shared: dict[Standing, Standing] = {}
    start, seen = "-", 0
    while True:
        page = await _or_nothing(client.xrange(queue, start, "+", count=PAGE))
        if not page:
            return True
        first, last = page[0][0].decode(), page[-1][0].decode()
        pending: set[bytes] = set()
        if _position(first) <= delivered:
            pending = await _pending(client, queue, group, first, last)
        for entry_id, fields in page:
            job_id = fields.get(_JOB_ID)
            if job_id is not None:
                is_open = entry_id in pending or _position(entry_id.decode()) > delivered
                before = standings.get(job_id, Standing(0, False))
                standing = Standing(before.entries + 1, before.open or is_open)
                standings[job_id] = shared.setdefault(standing, standing)
        seen += len(page)
        if seen >= MOST_ENTRIES:
            return False
        start = f"({last}"
        await asyncio.sleep(pause_s)


async def _last_delivered(client: Redis, queue: str, group: str) -> tuple[int, int]:
    for info in await _or_nothing(client.xinfo_groups(queue)):
        if codec.text(info["name"]) == group:
            return _position(codec.text(info["last-delivered-id"]))
    return _NEVER


async def _pending(client: Redis, queue: str, group: str, first: str, last: str) -> set[bytes]:
    """What is pending of a page; more than the page where entries were deleted."""
    pending: set[bytes] = set()
    while True:
        rows = await _or_nothing(client.xpending_range(queue, group, first, last, PAGE))
        pending.update(row["message_id"] for row in rows)
        if len(rows) < PAGE:
            return pending
        first = f"({rows[-1]['message_id'].decode()}"


async def _or_nothing(command: Awaitable[Any]) -> Any:
    """A reply, or nothing where there is no queue or no group (yet)."""
    try:
        return await command
    except ResponseError as error:
        if any(reason in str(error) for reason in _NOT_THERE):
            return ()
        raise


def _position(entry_id: str) -> tuple[int, int]:
    return codec.stream_id(entry_id) or _NEVER
