"""All data about a finished run: the responses to clients and the contents of Redis."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from redis.asyncio import Redis

from chaos.load import Posted
from chaos.run_log import HandlerRun
from chaos.watch import Watched
from sluice.common import codec
from sluice.common.contracts.jobs import (
    TERMINAL,
    WORKER_GROUP,
    DeadLetterField,
    EventField,
    JobField,
    JobKeys,
)
from sluice.common.jobs.partition_clients import PartitionClients

_PAGE = 200
_TYPE, _TS, _DATA = (field.encode() for field in (EventField.TYPE, EventField.TS, EventField.DATA))


@dataclass(frozen=True)
class Event:
    """An entry of a job's event stream."""

    id: str
    type: str
    ts: int
    data: Any = None

    @property
    def terminal(self) -> bool:
        return self.type in TERMINAL

    @property
    def attempt(self) -> int:
        """The attempt that the event belongs to; 0 if it names none."""
        attempt = self.data.get("attempt") if isinstance(self.data, dict) else None
        return attempt if isinstance(attempt, int) else 0


@dataclass(frozen=True)
class Record:
    """A job as stored in Redis; `fields` is empty if it does not exist."""

    job_id: str
    fields: dict[str, str]
    events: tuple[Event, ...]

    @property
    def status(self) -> str:
        """Status in the hash; empty if there is no hash."""
        return self.fields.get(JobField.STATUS, "")

    @property
    def error_kind(self) -> str:
        """Kind of the job's error; empty if there is none."""
        raw = self.fields.get(JobField.ERROR)
        return str(json.loads(raw).get("kind")) if raw else ""

    def of_type(self, kind: str) -> list[Event]:
        return [event for event in self.events if event.type == kind]


@dataclass(frozen=True)
class Leftovers:
    """Data that must not exist when all jobs have ended."""

    pending: int = 0
    unread: int = 0
    scheduled: int = 0
    #: Keys without a TTL.
    without_ttl: tuple[str, ...] = ()
    leases: tuple[str, ...] = ()
    #: Jobs that no client knows, for example when one request created two jobs.
    unknown_jobs: tuple[str, ...] = ()
    #: Number of dead dead_letters_by_job by job.
    dead_letters_by_job: Counter[str] = field(default_factory=Counter)


@dataclass
class History:
    """Everything that the checks read."""

    posted: list[Posted]
    records: dict[str, Record]
    leftovers: Leftovers = field(default_factory=Leftovers)
    watched: list[Watched] = field(default_factory=list)
    runs: list[HandlerRun] = field(default_factory=list)
    #: Unexpected behaviour of processes, and unexpected log clients.
    complaints: list[str] = field(default_factory=list)

    @property
    def accepted(self) -> Iterator[Posted]:
        """Requests that were accepted."""
        return (posted for posted in self.posted if posted.accepted)


async def read_records(clients: PartitionClients, job_ids: Sequence[str]) -> dict[str, Record]:
    found: dict[str, Record] = {}
    for partition, ids in clients.group_jobs(job_ids):
        found.update(await _records_of(partition.client, partition.keys, ids))
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
        for index, job_id in enumerate(page):
            fields, entries = replies[2 * index : 2 * index + 2]
            texts = {
                codec.decode_text(name): codec.decode_text(value) for name, value in fields.items()
            }
            found[job_id] = Record(job_id, texts, tuple(_event(*entry) for entry in entries))
    return found


async def read_leftovers(clients: PartitionClients, known: set[str]) -> Leftovers:
    """Reads the rest of the data in Redis; `known` are the ids of jobs that clients know."""
    each = [await _leftovers_of(partition.client, partition.keys, known) for partition in clients]
    return Leftovers(
        sum(left.pending for left in each),
        sum(left.unread for left in each),
        sum(left.scheduled for left in each),
        tuple(key for left in each for key in left.without_ttl),
        tuple(name for left in each for name in left.leases),
        tuple(name for left in each for name in left.unknown_jobs),
        sum((left.dead_letters_by_job for left in each), Counter()),
    )


async def _leftovers_of(client: Redis, keys: JobKeys, known: set[str]) -> Leftovers:
    pending, unread = await _backlog_of(client, keys)
    prefixes = keys.job(""), keys.idempotency(""), keys.fingerprint("")
    everything = [codec.decode_text(raw) async for raw in client.scan_iter(count=1000)]
    found = {key for key in everything if key.startswith(prefixes)}
    start = len(prefixes[0])
    names = {key[start:].partition(":")[0] for key in found if key.startswith(prefixes[0])}
    dead_letters_by_job = Counter(
        codec.decode_text(fields.get(DeadLetterField.JOB_ID.encode(), b""))
        for _, fields in await client.xrange(keys.dead_letters)
    )
    return Leftovers(
        pending,
        unread,
        int(await client.zcard(keys.scheduled)),
        tuple(await _without_ttl(client, sorted(found))),
        tuple(name for name in names if keys.lease(name) in found),
        tuple(name for name in names - known if keys.job(name) in found),
        dead_letters_by_job,
    )


async def _without_ttl(client: Redis, keys: Sequence[str]) -> list[str]:
    without_ttl: list[str] = []
    for start in range(0, len(keys), _PAGE):
        page = keys[start : start + _PAGE]
        async with client.pipeline(transaction=False) as pipe:
            for key in page:
                pipe.pttl(key)
            without_ttl += (
                key for key, left_ms in zip(page, await pipe.execute()) if left_ms == -1
            )
    return without_ttl


async def read_backlog(clients: PartitionClients) -> tuple[int, int]:
    """Number of pending messages, and of messages not yet delivered."""
    each = [await _backlog_of(partition.client, partition.keys) for partition in clients]
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
