"""Everything that is known of a run when it is over: what was promised, and what Redis holds."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from redis.asyncio import Redis

from chaos.diary import Stint
from chaos.load import Posted
from chaos.watch import Watched
from common import codec
from common.contracts.jobs import (
    TERMINAL,
    WORKER_GROUP,
    DeadLetterField,
    EventField,
    JobField,
    JobKeys,
)
from common.jobs.partition_clients import PartitionClients

_PAGE = 200
_TYPE, _TS, _DATA = (field.encode() for field in (EventField.TYPE, EventField.TS, EventField.DATA))


@dataclass(frozen=True)
class Event:
    """An entry of a job's stream."""

    id: str
    type: str
    ts: int
    data: Any = None

    @property
    def terminal(self) -> bool:
        """Whether it says that the job has ended."""
        return self.type in TERMINAL

    @property
    def attempt(self) -> int:
        """The attempt it speaks of; 0 where it names none."""
        attempt = self.data.get("attempt") if isinstance(self.data, dict) else None
        return attempt if isinstance(attempt, int) else 0


@dataclass(frozen=True)
class Record:
    """A job as Redis holds it; without fields where it holds none."""

    job_id: str
    fields: dict[str, str]
    events: tuple[Event, ...]

    @property
    def status(self) -> str:
        """What the hash says; empty where there is none."""
        return self.fields.get(JobField.STATUS, "")

    @property
    def error_kind(self) -> str:
        """Why it failed, if it did."""
        raw = self.fields.get(JobField.ERROR)
        return str(json.loads(raw).get("kind")) if raw else ""

    def of_type(self, kind: str) -> list[Event]:
        """Its events of one type."""
        return [event for event in self.events if event.type == kind]


@dataclass(frozen=True)
class Leftovers:
    """What a quiet system must not have."""

    pending: int = 0
    unread: int = 0
    scheduled: int = 0
    #: Keys that would live for ever.
    endless: tuple[str, ...] = ()
    leases: tuple[str, ...] = ()
    #: Jobs that nobody was told of: an order that became two.
    strangers: tuple[str, ...] = ()
    #: How many dead letters each job has.
    letters: Counter[str] = field(default_factory=Counter)


@dataclass
class History:
    """All of it."""

    posted: list[Posted]
    records: dict[str, Record]
    leftovers: Leftovers = field(default_factory=Leftovers)
    watched: list[Watched] = field(default_factory=list)
    stints: list[Stint] = field(default_factory=list)
    #: What processes and their logs said that none should.
    complaints: list[str] = field(default_factory=list)

    @property
    def accepted(self) -> Iterator[Posted]:
        """Orders that were promised to be done."""
        return (posted for posted in self.posted if posted.accepted)


async def read_records(lines: PartitionClients, job_ids: Sequence[str]) -> dict[str, Record]:
    """What Redis holds of each job."""
    found: dict[str, Record] = {}
    for line, ids in lines.group_jobs(job_ids):
        found.update(await _records_of(line.client, line.keys, ids))
    return found


async def _records_of(client: Redis, keys: JobKeys, job_ids: Sequence[str]) -> dict[str, Record]:
    found: dict[str, Record] = {}
    for start in range(0, len(job_ids), _PAGE):
        page = job_ids[start : start + _PAGE]
        async with client.pipeline(transaction=False) as pipe:
            for job_id in page:
                pipe.hgetall(keys.job(job_id))
                pipe.xrange(keys.events(job_id))
            replies = await pipe.execute()
        for at, job_id in enumerate(page):
            fields, entries = replies[2 * at : 2 * at + 2]
            texts = {
                codec.decode_text(name): codec.decode_text(value) for name, value in fields.items()
            }
            found[job_id] = Record(job_id, texts, tuple(_event(*entry) for entry in entries))
    return found


async def read_leftovers(lines: PartitionClients, known: set[str]) -> Leftovers:
    """What else there is in Redis, of jobs that are known and others."""
    each = [await _leftovers_of(line.client, line.keys, known) for line in lines]
    return Leftovers(
        sum(left.pending for left in each),
        sum(left.unread for left in each),
        sum(left.scheduled for left in each),
        tuple(key for left in each for key in left.endless),
        tuple(name for left in each for name in left.leases),
        tuple(name for left in each for name in left.strangers),
        sum((left.letters for left in each), Counter()),
    )


async def _leftovers_of(client: Redis, keys: JobKeys, known: set[str]) -> Leftovers:
    pending, unread = await _backlog_of(client, keys)
    prefixes = keys.job(""), keys.idempotency(""), keys.fingerprint("")
    everything = [codec.decode_text(raw) async for raw in client.scan_iter(count=1000)]
    found = {key for key in everything if key.startswith(prefixes)}
    start = len(prefixes[0])
    names = {key[start:].partition(":")[0] for key in found if key.startswith(prefixes[0])}
    letters = Counter(
        codec.decode_text(fields.get(DeadLetterField.JOB_ID.encode(), b""))
        for _, fields in await client.xrange(keys.dead_letters)
    )
    return Leftovers(
        pending,
        unread,
        int(await client.zcard(keys.scheduled)),
        tuple(await _endless(client, sorted(found))),
        tuple(name for name in names if keys.lease(name) in found),
        tuple(name for name in names - known if keys.job(name) in found),
        letters,
    )


async def _endless(client: Redis, keys: Sequence[str]) -> list[str]:
    endless: list[str] = []
    for start in range(0, len(keys), _PAGE):
        page = keys[start : start + _PAGE]
        async with client.pipeline(transaction=False) as pipe:
            for key in page:
                pipe.pttl(key)
            endless += (key for key, left_ms in zip(page, await pipe.execute()) if left_ms == -1)
    return endless


async def read_backlog(lines: PartitionClients) -> tuple[int, int]:
    """Messages that were read and not acknowledged, and messages that were not read."""
    each = [await _backlog_of(line.client, line.keys) for line in lines]
    return sum(pending for pending, _ in each), sum(unread for _, unread in each)


async def _backlog_of(client: Redis, keys: JobKeys) -> tuple[int, int]:
    groups = await client.xinfo_groups(keys.queue) if await client.exists(keys.queue) else []
    for group in groups:
        if codec.decode_text(group["name"]) == WORKER_GROUP:
            start = f"({codec.decode_text(group['last-delivered-id'])}"
            return int(group["pending"]), len(await client.xrange(keys.queue, start, "+"))
    return 0, int(await client.xlen(keys.queue))


def _event(entry_id: bytes, fields: dict[bytes, bytes]) -> Event:
    return Event(
        entry_id.decode(),
        codec.decode_text(fields.get(_TYPE, b"")),
        codec.parse_int(fields.get(_TS, b"0")),
        codec.loads(fields.get(_DATA, b"null")),
    )
