"""JobStore: one method per state change; the only code that writes a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from common import codec
from common.coalescer import Coalescer
from common.connection import TRANSIENT_ERRORS
from common.contracts.jobs import DeadReason, JobKeys
from common.contracts.scripts import Answer, Operation
from common.errors import CorruptKey, IdempotencyConflict, QueueFull, StoreUnavailable
from common.scripts import Argument, Record, Reply

# Looking up an enum's value costs more than the rest of building a record.
_ENQUEUE, _BEGIN, _RENEW, _EMIT, _FINISH, _DEAD, _TRIM = (
    operation.value for operation in Operation
)


@dataclass(frozen=True, slots=True)
class NewJob:
    """A validated request, ready to be accepted."""

    job_id: str
    task: str
    payload: bytes
    ttl_s: int
    idempotency_key: str | None = None
    idempotency_ttl_s: int = 0
    fingerprint: str = ""

    def __post_init__(self) -> None:
        if self.idempotency_key is not None and not self.fingerprint:
            raise ValueError("an idempotency key needs the request's fingerprint")


class Accepted(NamedTuple):
    """The job behind a request; `replayed` when an earlier request had made it."""

    job_id: str
    replayed: bool


class Claim(NamedTuple):
    """A message's wish to run its job; the token tells this try from every other."""

    job_id: str
    message_id: str
    token: str


class Lease(NamedTuple):
    """The right to run one attempt of a job. Every write of the attempt proves it."""

    job_id: str
    message_id: str
    attempt: int
    token: str


class PendingEvent(NamedTuple):
    """A handler's event on its way to Redis."""

    type: str
    step: str
    data: bytes


class Ending(NamedTuple):
    """How a job ends: status, the JSON it leaves behind, the terminal event."""

    status: str
    step: str
    data: bytes
    result: bytes = b""
    error: bytes = b""


class WorkerIdentity(NamedTuple):
    """Under which names a worker takes messages, and on which terms."""

    group: str
    consumer: str
    lease_ms: int
    default_ttl_s: int
    max_attempts: int = 5


class JobStore:
    """Reads and writes jobs. Writes travel through the coalescer, one script call for many."""

    def __init__(self, client: Redis, keys: JobKeys, coalescer: Coalescer) -> None:
        self._client = client
        self.keys = keys
        self._coalescer = coalescer

    # -- gateway ---------------------------------------------------------------------------

    async def enqueue(self, job: NewJob, group: str, backlog_limit: int) -> Accepted:
        """Accept a job whole; raises QueueFull or IdempotencyConflict and changes nothing."""
        keys = self.keys
        record_keys = [keys.job(job.job_id), keys.events(job.job_id)]
        if job.idempotency_key is not None:
            record_keys += (
                keys.idempotency(job.idempotency_key),
                keys.fingerprint(job.idempotency_key),
            )
        args: list[Argument] = [job.job_id, job.task, job.payload, job.ttl_s, group]
        args += (backlog_limit, job.idempotency_ttl_s, job.fingerprint)
        record = Record(_ENQUEUE, record_keys, args, size=len(job.payload))
        reply = await self._coalescer.call(record)
        if reply.answer is Answer.FULL:
            raise QueueFull(_as_int(reply))
        job_id = codec.text(reply.value) if isinstance(reply.value, bytes) else job.job_id
        if reply.answer is Answer.CONFLICT:
            raise IdempotencyConflict(job_id)
        return Accepted(job_id, replayed=reply.answer is Answer.REPLAYED)

    async def get(self, job_id: str) -> codec.Job | None:
        """The job, or None when there is none (any more)."""
        fields = await self._read(self._client.hgetall(self.keys.job(job_id)))
        return codec.Job.from_hash(fields, job_id) if fields else None

    async def finished_count(self) -> int:
        """How many jobs our workers have ended so far."""
        return codec.integer(await self._read(self._client.get(self.keys.finished)) or b"0")

    async def check_writable(self) -> None:
        """Prove that Redis answers and takes writes; raises StoreUnavailable."""
        await self._read(self._client.delete(self.keys.probe))

    # -- worker ----------------------------------------------------------------------------

    async def begin(
        self, claims: Sequence[Claim], worker: WorkerIdentity
    ) -> list[Reply | CorruptKey]:
        """Start the next attempt of each: RUN, BUSY, MISSING, or TERMINAL or EXHAUSTED (acked)."""
        return await self._coalescer.submit(
            [Record(_BEGIN, _job_keys(self.keys, claim.job_id), claim, worker) for claim in claims]
        )

    async def emit(
        self, lease: Lease, worker: WorkerIdentity, first: int, events: Sequence[PendingEvent]
    ) -> Answer:
        """Append events numbered from `first`: OK, LOST or GONE."""
        args: list[Argument] = [lease.job_id, lease.attempt, lease.token, first]
        for event in events:
            args += event
        keys = _job_keys(self.keys, lease.job_id)
        size = sum([len(event.data) for event in events])
        return (await self._coalescer.call(Record(_EMIT, keys, args, worker, size))).answer

    async def finish(
        self,
        lease: Lease,
        worker: WorkerIdentity,
        ending: Ending,
        first: int = 1,
        events: Sequence[PendingEvent] = (),
    ) -> Answer:
        """End the job and ack its message: OK, ALREADY, LOST or GONE."""
        args: list[Argument] = [lease.job_id, lease.attempt, lease.token]
        args += (lease.message_id, ending.status, ending.result, ending.error)
        args += (ending.step, ending.data, first)
        for event in events:
            args += event
        size = len(ending.result) + sum([len(event.data) for event in events])
        record = Record(_FINISH, _job_keys(self.keys, lease.job_id), args, worker, size)
        return (await self._coalescer.call(record)).answer

    async def dead(
        self, message_id: str, reason: DeadReason, fields: Mapping[bytes, bytes], group: str
    ) -> Answer:
        """Put a message aside that no job can be tied to, and ack it."""
        original = {codec.text(name): codec.text(value) for name, value in fields.items()}
        args = (group, message_id, reason.value, codec.dumps(original))
        return (await self._coalescer.call(Record(_DEAD, (), args))).answer

    async def trim(self) -> int:
        """Forget acknowledged queue entries; returns how many."""
        reply = await self._coalescer.call(Record(_TRIM, (), ()))
        return _as_int(reply)

    @staticmethod
    async def _read(command: Any) -> Any:
        try:
            return await command
        except TRANSIENT_ERRORS as error:
            raise StoreUnavailable(str(error)) from error
        except ResponseError as error:
            if str(error).startswith("WRONGTYPE"):
                return None  # whatever that key is, it is no job of ours
            raise StoreUnavailable(str(error)) from error
        except RedisError as error:
            raise StoreUnavailable(str(error)) from error


def renewal(lease: Lease, keys: JobKeys, worker: WorkerIdentity) -> Record:
    """The RENEW record of a lease; the keeper sends it on a connection of its own."""
    args = (lease.attempt, lease.token, lease.message_id)
    return Record(_RENEW, _job_keys(keys, lease.job_id), args, worker)


def _job_keys(keys: JobKeys, job_id: str) -> tuple[str, str, str]:
    return keys.job(job_id), keys.events(job_id), keys.lease(job_id)


def _as_int(reply: Reply) -> int:
    return int(reply.value or 0)
