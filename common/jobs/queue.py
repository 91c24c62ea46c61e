"""QueueStore: what concerns the queue as a whole: trimming, the schedule, dead letters."""

from __future__ import annotations

import asyncio
import logging
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from redis.asyncio import Redis

from common import codec
from common.contracts.access import TAIL_DIGITS
from common.contracts.jobs import DataField, DeadLetterField, JobKeys
from common.contracts.queue import Answer, Operation
from common.errors import CorruptKey, SluiceError
from common.jobs.options import JobOptions
from common.jobs.store import NO_LANES, read_reply, reply_int
from common.process import crashpoints
from common.process.crashpoints import CrashPoint
from common.redis.batching import ScriptBatcher
from common.redis.scripts import Argument, Record, Reply

#: Entries one TRIM looks at: they are read with their payloads.
TRIM_PAGE = 64
#: Acknowledged entries behind an older pending one that are not worth deleting one by one.
TRIM_TOLERANCE = 16
#: Active jobs of a key that one SETTLE looks at.
QUOTA_PAGE_SIZE = 64
_FIRST = "-"
_FAR_MS = 1 << 52


class DueJobs(NamedTuple):
    """Scheduled jobs whose time has come, and milliseconds until the next one's; None for none."""

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
    #: As in the lease; None where nobody knows any more.
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
            # A payload that was no text went into the JSON as it was.
            fields=codec.decode_text(get(DeadLetterField.FIELDS)).encode(),
            job_id=codec.decode_text(get(DeadLetterField.JOB_ID)),
            attempts=codec.parse_int(get(DeadLetterField.ATTEMPTS)),
            first_error=get(DeadLetterField.FIRST_ERROR),
            last_error=get(DeadLetterField.LAST_ERROR),
            options=fields.get(DeadLetterField.OPTIONS.encode()),
        )

    def view(self) -> dict[str, object]:
        """As JSON for people and programs."""
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
    """A dead letter that becomes a job again."""

    letter_id: str
    job_id: str
    task: str
    payload: str
    ttl_s: int
    delay_ms: int = 0
    #: Whose rights it has (`common.jobs.options`).
    options: bytes = b""
    #: What clients call the letter, where that is not its id.
    name: str = ""


class QueueStore:
    """Reads and writes what no single job owns."""

    def __init__(
        self,
        client: Redis,
        keys: JobKeys,
        batcher: ScriptBatcher,
        lanes: Mapping[str, ScriptBatcher] = NO_LANES,
    ) -> None:
        """`lanes`: what carries jobs of lanes beside the normal one."""
        self._client = client
        self.keys = keys
        self._batcher = batcher
        self._lanes = lanes

    @property
    def queues(self) -> Sequence[QueueStore]:
        """The queue of every partition: this one alone, see `common.jobs.partitioned_queue`."""
        return (self,)

    # -- care ------------------------------------------------------------------------------

    async def trim(self, pages: int = 32) -> int:
        """Forget acknowledged queue entries, up to so many pages of them; returns how many."""
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
        """Remove consumers that hold nothing and were not seen for so long; returns how many."""
        record = Record(Operation.REMOVE_IDLE_CONSUMERS.value, (), (group, idle_ms))
        return reply_int(await self._batcher.call(record))

    async def prune_quota(self, active_key: str) -> int:
        """Forget a key's active jobs that have ended or are gone; returns how many they were."""
        settled, position = 0, 0
        while True:
            end = position + QUOTA_PAGE_SIZE - 1
            members = await read_reply(self._client.zrange(active_key, position, end))
            if not members:
                return settled
            hashes = [self.keys.job(codec.decode_text(member)) for member in members]
            record = Record(Operation.PRUNE_QUOTA.value, (active_key, *hashes), members)
            forgotten = reply_int(await self._batcher.call(record))
            settled += forgotten
            position += len(members) - forgotten

    # -- schedule --------------------------------------------------------------------------

    async def due_jobs(self, limit: int) -> DueJobs:
        """Which scheduled jobs are due, by the clock of Redis."""
        async with self._client.pipeline(transaction=False) as pipe:
            pipe.time()
            pipe.zrange(self.keys.scheduled, 0, limit - 1, withscores=True)
            reply = await read_reply(pipe.execute())
        if reply is None:
            return DueJobs([], None)
        (seconds, micros), entries = reply
        now_ms = seconds * 1000 + micros // 1000
        ready = [_name(member) for member, due_ms in entries if due_ms <= now_ms]
        # A foreign hand may have written `+inf`.
        later = [int(min(due_ms, _FAR_MS)) - now_ms for _, due_ms in entries if due_ms > now_ms]
        return DueJobs(ready, min(later) if later else None)

    async def promote(self, job_ids: Sequence[str | bytes]) -> list[Reply | CorruptKey]:
        """Put due jobs on the queue: OK, WAIT, ALREADY, TERMINAL or MISSING for each.

        An id that is no text is taken as it lies in the schedule, or it would lie there for ever.
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
        if before == "0-0":  # nothing is older, and Redis refuses to look
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
        """Make a new job of a dead letter, once: CREATED, LIMITED or MISSING."""
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
        """The id of the job that a dead letter becomes: the same one, however often one asks.

        It ends as the id of the letter's job does, which is how one knows whose it is. `draw`: for
        another one, where that does not fit.
        """
        drawn = f" {draw}" if draw else ""
        job_id = str(uuid.uuid5(_REDRIVE_NAMESPACE, f"{self.keys.dead_letters} {letter_id}{drawn}"))
        return job_id[:-TAIL_DIGITS] + of_job[-TAIL_DIGITS:] if _UUID.match(of_job) else job_id

    async def find_redriven_job(self, letter_id: str) -> str | None:
        """The id of the job that a dead letter, which is gone now, became not long ago."""
        raw = await read_reply(self._client.get(self.keys.redriven(letter_id)))
        return None if raw is None else codec.decode_text(raw)

    async def purge(self, letter_ids: Sequence[str]) -> int:
        """Forget dead letters for good; returns how many there were."""
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
#: Looks this often, whatever the schedule says: somebody else may have added a job.
LONGEST_WAIT_S = 0.5
_PROGRESS = (Answer.OK, Answer.TERMINAL, Answer.MISSING)


class Promoter:
    """Looks at the schedule's beginning now and then, and as soon as its first job is due."""

    def __init__(self, store: QueueStore) -> None:
        self._store = store

    async def run(self) -> None:
        """Promote until canceled; trouble is left to the next round."""
        while True:
            wait_s = LONGEST_WAIT_S
            try:
                wait_s = await self.run_once()
            except SluiceError as error:
                log.warning("scheduled jobs wait: %s", error)
            except Exception:
                log.exception("scheduled jobs wait after an unexpected fault")
            await asyncio.sleep(wait_s)

    async def run_once(self) -> float:
        """Promote what is due; returns seconds until the next look."""
        due = await self._store.due_jobs(PROMOTE_PAGE_SIZE)
        if not due.job_ids:
            next_s = LONGEST_WAIT_S if due.next_ms is None else due.next_ms / 1000
            return min(next_s, LONGEST_WAIT_S)
        crashpoints.reach(CrashPoint.BEFORE_PROMOTE)
        outcomes = await self._store.promote(due.job_ids)
        crashpoints.reach(CrashPoint.AFTER_PROMOTE)
        if not any(isinstance(o, Reply) and o.answer in _PROGRESS for o in outcomes):
            return LONGEST_WAIT_S  # others were faster, or something is odd: no haste
        faults = [outcome for outcome in outcomes if isinstance(outcome, SluiceError)]
        if faults:
            raise faults[0]
        return 0.0
