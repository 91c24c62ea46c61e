"""QueueStore: what concerns the queue as a whole: trimming, the schedule, dead letters."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from redis.asyncio import Redis

from common import codec
from common.coalescer import Coalescer
from common.contracts.access import TAIL_DIGITS
from common.contracts.jobs import DataField, DeadField, JobKeys
from common.contracts.scripts import Operation
from common.errors import CorruptKey
from common.options import JobOptions
from common.scripts import Argument, Record, Reply
from common.store import NO_LANES, as_int, read

#: Entries one TRIM looks at: they are read with their payloads.
TRIM_PAGE = 64
#: Acknowledged entries behind an older pending one that are not worth deleting one by one.
TRIM_TOLERATES = 16
#: Active jobs of a key that one SETTLE looks at.
SETTLE_PAGE = 64
_FIRST = "-"
_FAR_MS = 1 << 52


class Due(NamedTuple):
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
        """From XRANGE."""

        def get(field: DeadField) -> bytes:
            return fields.get(field.value.encode(), b"")

        return cls(
            id=entry_id.decode(),
            reason=codec.text(get(DeadField.REASON)),
            message_id=codec.text(get(DeadField.MESSAGE_ID)),
            ts=codec.integer(get(DeadField.TS)),
            # A payload that was no text went into the JSON as it was.
            fields=codec.text(get(DeadField.FIELDS)).encode(),
            job_id=codec.text(get(DeadField.JOB_ID)),
            attempts=codec.integer(get(DeadField.ATTEMPTS)),
            first_error=get(DeadField.FIRST_ERROR),
            last_error=get(DeadField.LAST_ERROR),
            options=fields.get(DeadField.OPTIONS.value.encode()),
        )

    def view(self) -> dict[str, object]:
        """As JSON for people and programs."""
        return {
            "id": self.id,
            DeadField.REASON.value: self.reason,
            DeadField.JOB_ID.value: self.job_id or None,
            DeadField.MESSAGE_ID.value: self.message_id,
            DeadField.TS.value: self.ts,
            DeadField.ATTEMPTS.value: self.attempts,
            DeadField.FIRST_ERROR.value: codec.fragment(self.first_error),
            DeadField.LAST_ERROR.value: codec.fragment(self.last_error),
            DeadField.FIELDS.value: codec.fragment(self.fields),
        }

    def original(self) -> dict[str, Any]:
        """The queue message's fields."""
        return codec.payload_object(self.fields)


class Redrive(NamedTuple):
    """A dead letter that becomes a job again."""

    letter_id: str
    job_id: str
    task: str
    payload: str
    ttl_s: int
    delay_ms: int = 0
    #: Whose rights it has (`common.options`).
    options: bytes = b""
    #: What clients call the letter, where that is not its id.
    name: str = ""


class QueueStore:
    """Reads and writes what no single job owns."""

    def __init__(
        self,
        client: Redis,
        keys: JobKeys,
        coalescer: Coalescer,
        lanes: Mapping[str, Coalescer] = NO_LANES,
    ) -> None:
        """`lanes`: what carries jobs of lanes beside the normal one."""
        self._client = client
        self.keys = keys
        self._coalescer = coalescer
        self._lanes = lanes

    @property
    def each(self) -> Sequence[QueueStore]:
        """The queue of every partition: this one alone, see `common.partition_queue`."""
        return (self,)

    # -- care ------------------------------------------------------------------------------

    async def trim(self, pages: int = 32) -> int:
        """Forget acknowledged queue entries, up to so many pages of them; returns how many."""
        cursor: Argument = _FIRST
        removed = 0
        for _ in range(pages):
            args = (cursor, TRIM_PAGE, TRIM_TOLERATES)
            reply = await self._coalescer.call(Record(Operation.TRIM.value, (), args))
            removed += as_int(reply)
            cursor = reply.more[0]
            if not cursor:
                break
        return removed

    async def forget_consumers(self, group: str, idle_ms: int) -> int:
        """Remove consumers that hold nothing and were not seen for so long; returns how many."""
        record = Record(Operation.FORGET.value, (), (group, idle_ms))
        return as_int(await self._coalescer.call(record))

    async def settle(self, active_key: str) -> int:
        """Forget a key's active jobs that have ended or are gone; returns how many they were."""
        settled, position = 0, 0
        while True:
            end = position + SETTLE_PAGE - 1
            members = await read(self._client.zrange(active_key, position, end))
            if not members:
                return settled
            hashes = [self.keys.job(codec.text(member)) for member in members]
            record = Record(Operation.SETTLE.value, (active_key, *hashes), members)
            forgotten = as_int(await self._coalescer.call(record))
            settled += forgotten
            position += len(members) - forgotten

    # -- schedule --------------------------------------------------------------------------

    async def due(self, limit: int) -> Due:
        """Which scheduled jobs are due, by the clock of Redis."""
        async with self._client.pipeline(transaction=False) as pipe:
            pipe.time()
            pipe.zrange(self.keys.scheduled, 0, limit - 1, withscores=True)
            reply = await read(pipe.execute())
        if reply is None:
            return Due([], None)
        (seconds, micros), entries = reply
        now_ms = seconds * 1000 + micros // 1000
        ready = [_name(member) for member, due_ms in entries if due_ms <= now_ms]
        # A foreign hand may have written `+inf`.
        later = [int(min(due_ms, _FAR_MS)) - now_ms for _, due_ms in entries if due_ms > now_ms]
        return Due(ready, min(later) if later else None)

    async def promote(self, job_ids: Sequence[str | bytes]) -> list[Reply | CorruptKey]:
        """Put due jobs on the queue: OK, WAIT, ALREADY, TERMINAL or MISSING for each.

        An id that is no text is taken as it lies in the schedule, or it would lie there for ever.
        """
        return await self._coalescer.submit([self._promotion(job_id) for job_id in job_ids])

    def _promotion(self, job_id: str | bytes) -> Record:
        keys = self.keys
        name = job_id if isinstance(job_id, str) else codec.text(job_id)
        record_keys = [keys.job(name), keys.scheduled]
        if self._lanes:
            record_keys.append(keys.lease(name))
            record_keys += [keys.in_lane(lane).stream for lane in self._lanes]
        return Record(Operation.PROMOTE.value, record_keys, (job_id, *self._lanes))

    # -- dead letters ----------------------------------------------------------------------

    async def dead_letters(self, before: str, count: int) -> list[DeadLetter]:
        """Dead letters older than an id (`+` for all), newest first."""
        if before == "0-0":  # nothing is older, and Redis refuses to look
            return []
        end = before if before == "+" else f"({before}"
        entries = await read(self._client.xrevrange(self.keys.dead_letters, end, "-", count=count))
        return [DeadLetter.from_entry(*entry) for entry in entries or ()]

    async def dead_letter(self, letter_id: str) -> DeadLetter | None:
        """One dead letter, or None."""
        entries = await read(
            self._client.xrange(self.keys.dead_letters, letter_id, letter_id, count=1)
        )
        return DeadLetter.from_entry(*entries[0]) if entries else None

    async def count_dead_letters(self) -> int:
        """How many there are."""
        return int(await read(self._client.xlen(self.keys.dead_letters)) or 0)

    async def redrive(self, letter: Redrive, schedule_limit: int) -> Reply:
        """Make a new job of a dead letter, once: CREATED, LIMITED or MISSING."""
        keys, job_id = self.keys, letter.job_id
        record_keys = [keys.job(job_id), keys.events(job_id), keys.lease(job_id)]
        record_keys += [keys.scheduled, keys.redriven(letter.letter_id)]
        data = codec.dumps({DataField.DEAD_LETTER_ID.value: letter.name or letter.letter_id})
        args: list[Argument] = [letter.letter_id, letter.job_id, letter.task, letter.payload]
        args += (letter.ttl_s, letter.delay_ms, data, schedule_limit, letter.options)
        record = Record(Operation.REDRIVE.value, record_keys, args, size=len(letter.payload))
        lane = JobOptions.from_json(letter.options).lane
        return await self._lanes.get(lane or "", self._coalescer).call(record)

    def redriven_job_id(self, letter_id: str, of_job: str = "", draw: int = 0) -> str:
        """The id of the job that a dead letter becomes: the same one, however often one asks.

        It ends as the id of the letter's job does, which is how one knows whose it is. `draw`: for
        another one, where that does not fit.
        """
        drawn = f" {draw}" if draw else ""
        job_id = str(uuid.uuid5(_REDRIVEN, f"{self.keys.dead_letters} {letter_id}{drawn}"))
        return job_id[:-TAIL_DIGITS] + of_job[-TAIL_DIGITS:] if _UUID.match(of_job) else job_id

    async def redriven_before(self, letter_id: str) -> str | None:
        """The id of the job that a dead letter, which is gone now, became not long ago."""
        raw = await read(self._client.get(self.keys.redriven(letter_id)))
        return None if raw is None else codec.text(raw)

    async def purge(self, letter_ids: Sequence[str]) -> int:
        """Forget dead letters for good; returns how many there were."""
        if not letter_ids:
            return 0
        return int(await read(self._client.xdel(self.keys.dead_letters, *letter_ids)) or 0)


_REDRIVEN = uuid.UUID("5f0c2e0e-6f0b-4a55-8d8e-3b8f7a2d9c11")
_UUID = re.compile(r"\A[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\Z")


def _name(member: bytes) -> str | bytes:
    try:
        return member.decode()
    except UnicodeDecodeError:
        return member
