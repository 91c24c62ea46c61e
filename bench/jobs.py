"""Batches of jobs: packed once, written to Redis as the gateway would, and verified afterwards."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain, islice

from bench.pipe import Pipe, Word, pack
from sluice.common.contracts import values_of
from sluice.common.contracts.jobs import (
    WORKER_GROUP,
    EventField,
    EventType,
    JobField,
    JobKeys,
    QueueField,
    Status,
    Step,
    Task,
)

KEYS = JobKeys()
TTL_S = 86_400
PAYLOAD_BYTES = 200
PAYLOAD = json.dumps({"text": "sluice " * 40}, separators=(",", ":"))[: PAYLOAD_BYTES - 2] + '"}'
#: A fixed time, because every process of a run must generate the same ids.
_STARTED_MS = 1_760_000_000_000
#: Events of a finished echo job: queued, running, message, done.
_EVENTS = 4


class VerificationError(Exception):
    """A measured program did not do its work."""


@dataclass(frozen=True)
class Batch:
    """Jobs and the commands that create them. Later batches of a run need larger tags."""

    job_ids: list[str]
    message_ids: list[str]
    packed: bytes

    @property
    def last_message_id(self) -> bytes:
        """Last delivered id of the group when all messages were delivered."""
        return self.message_ids[-1].encode()


def make_batch(
    count: int, tag: int, keys: JobKeys = KEYS, fits: Callable[[str], bool] = lambda _: True
) -> Batch:
    """`count` queued echo jobs with ids like UUIDs, equal for equal tags.

    They are in the partition of `keys`; `fits` selects the ids that belong to it.
    """
    every_id = (f"{tag:08x}-0000-4000-8000-{number:012x}" for number in itertools.count())
    job_ids = list(islice(filter(fits, every_id), count))
    message_ids = [f"{_STARTED_MS + tag}-{number}" for number in range(1, count + 1)]
    commands = (_creation(keys, *ids) for ids in zip(job_ids, message_ids))
    return Batch(job_ids, message_ids, pack(chain.from_iterable(commands)))


def _creation(keys: JobKeys, job_id: str, message_id: str) -> list[tuple[Word, ...]]:
    job, events, now, task = keys.job(job_id), keys.events(job_id), _STARTED_MS, Task.CHAT.value
    return [
        (
            "HSET", job, JobField.JOB_ID, job_id, JobField.TASK, task,
            JobField.PAYLOAD, PAYLOAD, JobField.STATUS, Status.QUEUED.value,
            JobField.CREATED_TS, now, JobField.UPDATED_TS, now,
            JobField.TTL_S, TTL_S, JobField.RESULT, "", JobField.ERROR, "",
        ),
        ("EXPIRE", job, TTL_S),
        ("XADD", events, "*", *event(EventType.QUEUED, Step.GATEWAY_ENQUEUE, "{}")),
        ("EXPIRE", events, TTL_S),
        (
            "XADD", keys.queue, message_id, QueueField.JOB_ID, job_id,
            QueueField.TASK, task, QueueField.PAYLOAD, PAYLOAD,
        ),
    ]  # fmt: skip


def event(kind: str, step: str, data: str) -> tuple[Word, ...]:
    return (
        EventField.TYPE, kind, EventField.TS, _STARTED_MS,
        EventField.STEP, step, EventField.DATA, data,
    )  # fmt: skip


def create_group(pipe: Pipe, keys: JobKeys = KEYS) -> None:
    """Creates an empty queue with the worker group."""
    pipe.one("XGROUP", "CREATE", keys.queue, WORKER_GROUP, "0", "MKSTREAM")


def is_drained(pipe: Pipe, batch: Batch, keys: JobKeys = KEYS) -> bool:
    """True if every message was delivered and acknowledged; very cheap for Redis."""
    (group,) = pipe.one("XINFO", "GROUPS", keys.queue)
    fields = dict(zip(group[::2], group[1::2]))
    return bool(fields[b"pending"] == 0 and fields[b"last-delivered-id"] == batch.last_message_id)


def verify(pipe: Pipe, batch: Batch, keys: JobKeys = KEYS) -> None:
    """Every job is done with a result and nine fields, has four events, and nothing is pending."""
    pending = pipe.one("XPENDING", keys.queue, WORKER_GROUP)[0]
    if pending:
        raise VerificationError(f"{pending} messages are still pending")
    hashes = pipe.ask([("HGETALL", keys.job(job_id)) for job_id in batch.job_ids])
    lasts = pipe.ask(
        [("XREVRANGE", keys.events(job_id), "+", "-", "COUNT", 10) for job_id in batch.job_ids]
    )
    for job_id, flat, entries in zip(batch.job_ids, hashes, lasts):
        job = {key.decode(): value.decode() for key, value in zip(flat[::2], flat[1::2])}
        if set(job) != set(values_of(JobField)):
            raise VerificationError(f"job {job_id} has the fields {sorted(job)}")
        if job[JobField.STATUS] != Status.DONE.value or not job[JobField.RESULT]:
            raise VerificationError(f"job {job_id} is {job[JobField.STATUS]}")
        newest = dict(zip(entries[0][1][::2], entries[0][1][1::2]))
        if len(entries) != _EVENTS or newest[b"type"] != Status.DONE.value.encode():
            raise VerificationError(f"job {job_id} has {len(entries)} events")
