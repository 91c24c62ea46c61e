"""Reads jobs for the audit: many per round trip, long event streams page by page."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from sluice.common import codec
from sluice.common.contracts import values_of
from sluice.common.contracts.jobs import JobField, JobKeys, LeaseField, QueueField
from sluice.common.contracts.queue import EXTRA_LANES
from sluice.common.jobs.audit.rules import (
    CheckContext,
    EventSummary,
    JobSnapshot,
    KeyTtls,
    QueueEntryState,
    SuspectedViolation,
    find_violations,
    needs_owner_check,
)
from sluice.common.jobs.store import read_reply

#: Entries read per page; they include their payloads.
QUEUE_PAGE_SIZE = 100
#: Entries read at most; of a longer queue only the beginning is checked.
MOST_ENTRIES = 250_000
_JOB_ID = QueueField.JOB_ID.encode()
_NEVER = (-1, 0)
_NOT_THERE = ("WRONGTYPE", "NOGROUP", "no such key")


@dataclass(frozen=True, slots=True)
class QueueSnapshot:
    """The state of every job on the queue when it was read."""

    entry_states: dict[bytes, QueueEntryState]
    #: False if the queue is longer than MOST_ENTRIES.
    complete: bool = True

    def state_of(self, job_id: str) -> QueueEntryState | None:
        """The state of a job's entries; None if it has none."""
        return self.entry_states.get(job_id.encode())


async def read_queue(
    client: Redis, keys: JobKeys, group: str, pause_s: float = 0.0
) -> QueueSnapshot:
    """Read the queue once, with all its lanes."""
    standings: dict[bytes, QueueEntryState] = {}
    complete = [
        await _collect(client, keys.for_lane(lane).stream, group, pause_s, standings)
        for lane in ("", *EXTRA_LANES)
    ]
    return QueueSnapshot(standings, all(complete))


async def _collect(
    client: Redis, queue: str, group: str, pause_s: float, standings: dict[bytes, QueueEntryState]
) -> bool:
    """Add the entries of a stream; returns whether the whole stream was read.

    The last delivered id is read first and pending entries after it, so that an entry that seems
    acknowledged really is, regardless of what happens in between.
    """
    delivered = await _last_delivered(client, queue, group)
    # Most jobs have equal states: a long queue shares a few objects.
    shared: dict[QueueEntryState, QueueEntryState] = {}
    start, seen = "-", 0
    while True:
        page = await _or_nothing(client.xrange(queue, start, "+", count=QUEUE_PAGE_SIZE))
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
                before = standings.get(job_id, QueueEntryState(0, False))
                standing = QueueEntryState(before.entries + 1, before.open or is_open)
                standings[job_id] = shared.setdefault(standing, standing)
        seen += len(page)
        if seen >= MOST_ENTRIES:
            return False
        start = f"({last}"
        await asyncio.sleep(pause_s)


async def _last_delivered(client: Redis, queue: str, group: str) -> tuple[int, int]:
    for info in await _or_nothing(client.xinfo_groups(queue)):
        if codec.decode_text(info["name"]) == group:
            return _position(codec.decode_text(info["last-delivered-id"]))
    return _NEVER


async def _pending(client: Redis, queue: str, group: str, first: str, last: str) -> set[bytes]:
    """The pending entries of a page, and those deleted within its range."""
    pending: set[bytes] = set()
    while True:
        rows = await _or_nothing(client.xpending_range(queue, group, first, last, QUEUE_PAGE_SIZE))
        pending.update(row["message_id"] for row in rows)
        if len(rows) < QUEUE_PAGE_SIZE:
            return pending
        first = f"({rows[-1]['message_id'].decode()}"


async def _or_nothing(command: Awaitable[Any]) -> Any:
    """A reply; empty if the queue or the group does not exist (yet)."""
    try:
        return await command
    except ResponseError as error:
        if any(reason in str(error) for reason in _NOT_THERE):
            return ()
        raise


def _position(entry_id: str) -> tuple[int, int]:
    return codec.parse_stream_id(entry_id) or _NEVER


#: Events read together with the job; most jobs have no more.
FIRST_EVENTS = 8
#: Events read per page of a longer stream.
EVENTS_PAGE_SIZE = 200
_ASKED = [JobField.JOB_ID, JobField.STATUS, JobField.UPDATED_TS]
#: One more than there should be: enough to detect that a hash has too many.
_FIELDS_ASKED = len(values_of(JobField)) + 1


class JobCheck:
    """The result of checking one job once."""

    __slots__ = ("mark", "suspected")

    def __init__(self, facts: JobSnapshot, found: Sequence[SuspectedViolation]) -> None:
        self.mark = facts.mark
        self.suspected = {suspicion.rule: suspicion for suspicion in found}


class JobReader:
    """Reads and checks jobs; writes nothing."""

    def __init__(self, client: Redis, keys: JobKeys, grace_ms: int, pause_s: float) -> None:
        self._client = client
        self._keys = keys
        self._grace_ms = grace_ms
        self._pause_s = pause_s

    async def check(self, job_ids: Sequence[str], queue: QueueSnapshot) -> dict[str, JobCheck]:
        """The suspected violations of each job; jobs that do not exist are left out."""
        now_ms, found = await self._read(job_ids)
        around = {
            facts.job_id: CheckContext(
                now_ms, self._grace_ms, queue.state_of(facts.job_id), queue.complete
            )
            for facts in found
        }
        alone = [facts.job_id for facts in found if needs_owner_check(facts, around[facts.job_id])]
        await self._find_owners(alone, around)
        return {
            facts.job_id: JobCheck(facts, find_violations(facts, around[facts.job_id]))
            for facts in found
        }

    async def _read(self, job_ids: Sequence[str]) -> tuple[int, list[JobSnapshot]]:
        keys = self._keys
        async with self._client.pipeline(transaction=False) as pipe:
            pipe.time()
            for job_id in job_ids:
                pipe.hmget(keys.job(job_id), _ASKED)
                pipe.hrandfield(keys.job(job_id), _FIELDS_ASKED)  # HKEYS with a limit
                for key in (keys.job(job_id), keys.events(job_id), keys.lease(job_id)):
                    pipe.ttl(key)
                pipe.xrange(keys.events(job_id), "-", "+", count=FIRST_EVENTS)
            (seconds, micros), *replies = await pipe.execute(raise_on_error=False)
        found = []
        per_job = len(replies) // len(job_ids)
        for at, job_id in enumerate(job_ids):
            facts = await self._facts(job_id, replies[at * per_job : (at + 1) * per_job])
            if facts is not None:
                found.append(facts)
        return seconds * 1000 + micros // 1000, found

    async def _facts(self, job_id: str, replies: Sequence[Any]) -> JobSnapshot | None:
        record, names, *lifetimes, events = (_unless_wrong_type(reply) for reply in replies)
        if not names:  # expired meanwhile, or not a hash any more
            return None
        job_id_field, status, updated_ts = (value or b"" for value in record)
        return JobSnapshot(
            job_id=job_id,
            fields=frozenset(names),
            job_id_field=codec.decode_text(job_id_field),
            status=codec.decode_text(status),
            updated_ts=codec.parse_int(updated_ts),
            ttls=KeyTtls(*lifetimes),
            events=await self._summarize(job_id, events),
        )

    async def _summarize(self, job_id: str, events: Sequence[Any] | None) -> EventSummary:
        """Read all events of a job; the first page is given."""
        if events is None:
            return EventSummary(readable=False)
        summary = EventSummary()
        page, page_size = events, FIRST_EVENTS
        while True:
            for entry in page:
                summary.add(*entry)
            if len(page) < page_size:
                return summary
            await asyncio.sleep(self._pause_s)
            page_size = EVENTS_PAGE_SIZE
            key = self._keys.events(job_id)
            more = await read_reply(
                self._client.xrange(key, f"({summary.last_id}", "+", count=page_size)
            )
            if more is None:
                return EventSummary(readable=False)
            page = more

    async def _find_owners(self, job_ids: Sequence[str], around: dict[str, CheckContext]) -> None:
        """Read schedule and lease of jobs that have no open entry on the queue."""
        if not job_ids:
            return
        async with self._client.pipeline(transaction=False) as pipe:
            for job_id in job_ids:
                pipe.zscore(self._keys.scheduled, job_id)
                pipe.hget(self._keys.lease(job_id), LeaseField.DEADLINE_MS)
            replies = await pipe.execute(raise_on_error=False)
        for job_id, due, deadline in zip(job_ids, replies[::2], replies[1::2]):
            around[job_id] = around[job_id]._replace(
                is_scheduled=_unless_wrong_type(due) is not None,
                lease_deadline_ms=codec.parse_int(_unless_wrong_type(deadline) or b"0"),
            )


def _unless_wrong_type(reply: Any) -> Any:
    """A reply of a pipeline; None if the key has the wrong type."""
    if isinstance(reply, ResponseError) and "WRONGTYPE" in str(reply):
        return None
    if isinstance(reply, Exception):
        raise reply
    return reply
