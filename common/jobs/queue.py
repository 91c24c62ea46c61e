"""QueueStore: maintenance of the queue, scheduled jobs, dead letters."""

from __future__ import annotations

import asyncio
import logging
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from redis.asyncio import Redis

from sluice.common import codec
from sluice.common.contracts.access import TAIL_DIGITS
from sluice.common.contracts.jobs import DataField, DeadLetterField, JobKeys
from sluice.common.contracts.queue import Answer, Operation
from sluice.common.errors import CorruptKey, SluiceError
from sluice.common.jobs.options import JobOptions
from sluice.common.jobs.store import NO_LANES, read_reply, reply_int
from sluice.common.process import crashpoints
from sluice.common.process.crashpoints import CrashPoint
from sluice.common.redis.batching import ScriptBatcher
from sluice.common.redis.scripts import Argument, Record, Reply

#: Entries checked by one TRIM; they are read with their payloads.
TRIM_PAGE = 64
#: Acknowledged entries behind an older pending one that are not worth deleting individually.
TRIM_TOLERANCE = 16
#: Active jobs of an API key checked by one PRUNE_QUOTA.
QUOTA_PAGE_SIZE = 64
_FIRST = "-"
_FAR_MS = 1 << 52


class DueJobs(NamedTuple):
    """Scheduled jobs that are due, and milliseconds until the next one; None without one."""

    job_ids: list[str | bytes]
    next_ms: int | None


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An entry of the dead-letter stream."""

    id: str
    reason: str
    message_id: str
    ts: int
    fields: bytes
    job_id: str
    attempts: int
    first_error: bytes
    last_error: bytes
    #: As in the lease; None if the lease no longer existed.
    options: bytes | None = None

    @classmethod
    def from_entry(cls, entry_id: bytes, fields: dict[bytes, bytes]) -> DeadLetter:
        def get(field: str) -> bytes:
            return fields.get(field.encode(), b"")

        return cls(
            id=entry_id.decode(),
            reason=codec.decode_text(get(DeadLetterField.REASON)),
            message_id=codec.decode_text(get(DeadLetterField.MESSAGE_ID)),
            ts=codec.parse_int(get(DeadLetterField.TS)),
            # The JSON contains the payload's bytes unchanged, even if they are invalid UTF-8.
            fields=codec.decode_text(get(DeadLetterField.FIELDS)).encode(),
            job_id=codec.decode_text(get(DeadLetterField.JOB_ID)),
            attempts=codec.parse_int(get(DeadLetterField.ATTEMPTS)),
            first_error=get(DeadLetterField.FIRST_ERROR),
            last_error=get(DeadLetterField.LAST_ERROR),
            options=fields.get(DeadLetterField.OPTIONS.encode()),
        )

    def view(self) -> dict[str, object]:
        return {
            "id": self.id,
            DeadLetterField.REASON: self.reason,
            DeadLetterField.JOB_ID: self.job_id or None,
            DeadLetterField.MESSAGE_ID: self.message_id,
            DeadLetterField.TS: self.ts,
            DeadLetterField.ATTEMPTS: self.attempts,
            DeadLetterField.FIRST_ERROR: codec.json_fragment(self.first_error),
            DeadLetterField.LAST_ERROR: codec.json_fragment(self.last_error),
            DeadLetterField.FIELDS: codec.json_fragment(self.fields),
        }

    def message_fields(self) -> dict[str, Any]:
        return codec.parse_payload(self.fields)


class DeadLetterRedrive(NamedTuple):
    """A dead letter to be enqueued again as a new job."""

    letter_id: str
    job_id: str
    task: str
    payload: str
    ttl_s: int
    delay_ms: int = 0
    #: Options of the new job (`sluice.common.jobs.options`).
    options: bytes = b""
    #: The public id of the dead letter, if it differs from its stream id.
    name: str = ""


class QueueStore:
    """Operations on the queue that do not belong to a single job."""

    def __init__(
        self,
        client: Redis,
        keys: JobKeys,
        batcher: ScriptBatcher,
        lanes: Mapping[str, ScriptBatcher] = NO_LANES,
    ) -> None:
        """`lanes`: batchers for lanes in addition to the normal one."""
        self._client = client
        self.keys = keys
        self._batcher = batcher
        self._lanes = lanes

    @property
    def queues(self) -> Sequence[QueueStore]:
        """The queue of every partition: only this one. See `PartitionedQueue`."""
        return (self,)

    # -- maintenance -----------------------------------------------------------------------

    async def trim(self, pages: int = 32) -> int:
        """Delete acknowledged queue entries, at most `pages` pages; returns how many."""
        cursor: Argument = _FIRST
        removed = 0
        for _ in range(pages):
            args = (cursor, TRIM_PAGE, TRIM_TOLERANCE)
            reply = await self._batcher.call(Record(Operation.TRIM.value, (), args))
            removed += reply_int(reply)
            cursor = reply.more[0]
            if not cursor:
                break
        return removed

    async def remove_idle_consumers(self, group: str, idle_ms: int) -> int:
        """Remove consumers without pending messages and idle for so long; returns how many."""
        record = Record(Operation.REMOVE_IDLE_CONSUMERS.value, (), (group, idle_ms))
        return reply_int(await self._batcher.call(record))

    async def prune_quota(self, active_key: str) -> int:
        """Remove ended or missing jobs from a key's quota; returns how many."""
        pruned, position = 0, 0
        while True:
            end = position + QUOTA_PAGE_SIZE - 1
            members = await read_reply(self._client.zrange(active_key, position, end))
            if not members:
                return pruned
            hashes = [self.keys.job(codec.decode_text(member)) for member in members]
            record = Record(Operation.PRUNE_QUOTA.value, (active_key, *hashes), members)
            removed = reply_int(await self._batcher.call(record))
            pruned += removed
            position += len(members) - removed

    # -- schedule --------------------------------------------------------------------------

    async def due_jobs(self, limit: int) -> DueJobs:
        """The scheduled jobs that are due by the clock of Redis."""
        async with self._client.pipeline(transaction=False) as pipe:
            pipe.time()
            pipe.zrange(self.keys.scheduled, 0, limit - 1, withscores=True)
            reply = await read_reply(pipe.execute())
        if reply is None:
            return DueJobs([], None)
        (seconds, micros), entries = reply
        now_ms = seconds * 1000 + micros // 1000
        ready = [_name(member) for member, due_ms in entries if due_ms <= now_ms]
        # A third party may have written `+inf`.
        later = [int(min(due_ms, _FAR_MS)) - now_ms for _, due_ms in entries if due_ms > now_ms]
        return DueJobs(ready, min(later) if later else None)

    async def promote(self, job_ids: Sequence[str | bytes]) -> list[Reply | CorruptKey]:
        """Move due jobs to the queue: OK, WAIT, ALREADY, TERMINAL or MISSING for each.

        An id that is not valid UTF-8 is passed as bytes; otherwise it could never be removed.
        """
        return await self._batcher.submit([self._promotion(job_id) for job_id in job_ids])

    def _promotion(self, job_id: str | bytes) -> Record:
        keys = self.keys
        name = job_id if isinstance(job_id, str) else codec.decode_text(job_id)
        record_keys = [keys.job(name), keys.scheduled]
        if self._lanes:
            record_keys.append(keys.lease(name))
            record_keys += [keys.for_lane(lane).stream for lane in self._lanes]
        return Record(Operation.PROMOTE.value, record_keys, (job_id, *self._lanes))

    # -- dead letters ----------------------------------------------------------------------

    async def dead_letters(self, before: str, count: int) -> list[DeadLetter]:
        """Dead letters older than an id (`+` for all), newest first."""
        if before == "0-0":  # nothing is older, and Redis rejects the range
            return []
        end = before if before == "+" else f"({before}"
        entries = await read_reply(
            self._client.xrevrange(self.keys.dead_letters, end, "-", count=count)
        )
        return [DeadLetter.from_entry(*entry) for entry in entries or ()]

    async def dead_letter(self, letter_id: str) -> DeadLetter | None:
        entries = await read_reply(
            self._client.xrange(self.keys.dead_letters, letter_id, letter_id, count=1)
        )
        return DeadLetter.from_entry(*entries[0]) if entries else None

    async def count_dead_letters(self) -> int:
        return int(await read_reply(self._client.xlen(self.keys.dead_letters)) or 0)

    async def redrive(self, letter: DeadLetterRedrive, schedule_limit: int) -> Reply:
        """Create a new job from a dead letter, once: CREATED, LIMITED or MISSING."""
        keys, job_id = self.keys, letter.job_id
        record_keys = [keys.job(job_id), keys.events(job_id), keys.lease(job_id)]
        record_keys += [keys.scheduled, keys.redriven(letter.letter_id)]
        data = codec.dumps({DataField.DEAD_LETTER_ID: letter.name or letter.letter_id})
        args: list[Argument] = [letter.letter_id, letter.job_id, letter.task, letter.payload]
        args += (letter.ttl_s, letter.delay_ms, data, schedule_limit, letter.options)
        record = Record(Operation.REDRIVE.value, record_keys, args, size=len(letter.payload))
        lane = JobOptions.from_json(letter.options).lane
        return await self._lanes.get(lane or "", self._batcher).call(record)

    def redriven_job_id(self, letter_id: str, of_job: str = "", draw: int = 0) -> str:
        """The id of the job created from a dead letter: always the same one.

        It ends like the id of the original job, which identifies the tenant. `draw` gives another
        id if that one does not fit the partition.
        """
        drawn = f" {draw}" if draw else ""
        job_id = str(uuid.uuid5(_REDRIVE_NAMESPACE, f"{self.keys.dead_letters} {letter_id}{drawn}"))
        return job_id[:-TAIL_DIGITS] + of_job[-TAIL_DIGITS:] if _UUID.match(of_job) else job_id

    async def find_redriven_job(self, letter_id: str) -> str | None:
        """The id of the job to which a dead letter, since removed, was recently redriven."""
        raw = await read_reply(self._client.get(self.keys.redriven(letter_id)))
        return None if raw is None else codec.decode_text(raw)

    async def purge(self, letter_ids: Sequence[str]) -> int:
        """Delete dead letters; returns how many there were."""
        if not letter_ids:
            return 0
        return int(await read_reply(self._client.xdel(self.keys.dead_letters, *letter_ids)) or 0)


_REDRIVE_NAMESPACE = uuid.UUID("5f0c2e0e-6f0b-4a55-8d8e-3b8f7a2d9c11")
_UUID = re.compile(r"\A[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\Z")


def _name(member: bytes) -> str | bytes:
    try:
        return member.decode()
    except UnicodeDecodeError:
        return member


log = logging.getLogger(__name__)

#: Jobs promoted by one call.
PROMOTE_PAGE_SIZE = 64
#: Longest time between two checks of the schedule: another process may have added a job.
LONGEST_WAIT_S = 0.5
_PROGRESS = (Answer.OK, Answer.TERMINAL, Answer.MISSING)


class Promoter:
    """Moves due jobs from the schedule to the queue."""

    def __init__(self, store: QueueStore) -> None:
        self._store = store

    async def run(self) -> None:
        """Promote until canceled; errors are logged and the next round tries again."""
        while True:
            wait_s = LONGEST_WAIT_S
            try:
                wait_s = await self.run_once()
            except SluiceError as error:
                log.warning("cannot promote scheduled jobs: %s", error)
            except Exception:
                log.exception("cannot promote scheduled jobs: unexpected error")
            await asyncio.sleep(wait_s)

    async def run_once(self) -> float:
        """Promote what is due; returns seconds until the next check."""
        due = await self._store.due_jobs(PROMOTE_PAGE_SIZE)
        if not due.job_ids:
            next_s = LONGEST_WAIT_S if due.next_ms is None else due.next_ms / 1000
            return min(next_s, LONGEST_WAIT_S)
        crashpoints.reach(CrashPoint.BEFORE_PROMOTE)
        outcomes = await self._store.promote(due.job_ids)
        crashpoints.reach(CrashPoint.AFTER_PROMOTE)
        if not any(isinstance(o, Reply) and o.answer in _PROGRESS for o in outcomes):
            return LONGEST_WAIT_S  # another process was faster, or a key is corrupt
        faults = [outcome for outcome in outcomes if isinstance(outcome, SluiceError)]
        if faults:
            raise faults[0]
        return 0.0
