"""JobStore: one method per state change; the only code that writes a job."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, NamedTuple

from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from common import codec
from common.access_limits import Limits
from common.coalescer import Coalescer
from common.connection import TRANSIENT_ERRORS
from common.contracts.jobs import SAVED_STEP, TASKS, DeadReason, JobKeys, LeaseField, QueueField
from common.contracts.scripts import Answer, Operation
from common.counts import COUNT_FIELDS, JobCounts
from common.errors import (
    CorruptKey,
    IdempotencyConflict,
    QueueFull,
    QuotaExceeded,
    RateLimited,
    ScheduleFull,
    StoreUnavailable,
)
from common.new_job import Accepted as Accepted
from common.new_job import NewJob as NewJob
from common.scripts import Argument, Record, Reply

# Looking up an enum's value costs more than the rest of building a record.
_ENQUEUE, _BEGIN, _NEXT, _RENEW, _EMIT, _FINISH = (
    Operation.ENQUEUE.value,
    Operation.BEGIN.value,
    Operation.NEXT.value,
    Operation.RENEW.value,
    Operation.EMIT.value,
    Operation.FINISH.value,
)

_ATTEMPT, _TOKEN = LeaseField.ATTEMPT.value.encode(), LeaseField.TOKEN.value.encode()

NO_LANES: Mapping[str, Coalescer] = {}
NO_LIMITS: Mapping[str, str] = {}
NO_TERMS: Mapping[str, int | str] = {}
_UNLIMITED = Limits("", "")


class Claim(NamedTuple):
    """A message's wish to run its job; the token tells this try from every other."""

    job_id: str
    message_id: str
    token: str
    #: Most attempts, where the handler has a limit of its own; most running at once, where the
    #: task is limited across workers.
    most: int | str = ""
    places: int | str = ""


class Lease(NamedTuple):
    """The right to run one attempt of a job. Every write of the attempt proves it."""

    job_id: str
    message_id: str
    attempt: int
    token: str
    #: Key of the task's running jobs, where the task is limited across workers.
    limited_by: str = ""


class Fence(NamedTuple):
    """What proves an attempt to a script: these fields of the lease are as they were handed out."""

    lease_key: str
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
    #: Whether a dead letter is left for an operator to look at.
    dead: bool = False


class WorkerIdentity(NamedTuple):
    """Under which names a worker takes messages, and on which terms."""

    group: str
    consumer: str
    lease_ms: int
    default_ttl_s: int
    max_attempts: int = 5


class JobStore:
    """Reads and writes jobs. Writes travel through the coalescer, one script call for many."""

    def __init__(
        self,
        client: Redis,
        keys: JobKeys,
        coalescer: Coalescer,
        lanes: Mapping[str, Coalescer] = NO_LANES,
    ) -> None:
        """`lanes`: what carries new jobs of lanes beside the normal one."""
        self._client = client
        self.keys = keys
        self._coalescer = coalescer
        self._lanes = lanes

    @property
    def queue(self) -> str:
        """Where jobs wait."""
        return self.keys.stream

    # -- gateway ---------------------------------------------------------------------------

    async def enqueue(self, job: NewJob, group: str, backlog_limit: int) -> Accepted:
        """Accept a job whole, or raise what forbids it and change nothing."""
        keys = self.keys
        record_keys = [keys.job(job.job_id), keys.events(job.job_id)]
        if job.idempotency_key is not None:
            record_keys += (
                keys.idempotency(job.idempotency_key, job.tenant),
                keys.fingerprint(job.idempotency_key, job.tenant),
            )
        args: list[Argument] = [job.job_id, job.task, job.payload, job.ttl_s, group]
        args += (backlog_limit, job.idempotency_ttl_s, job.fingerprint)
        if job.delay_ms or job.options or job.limits or job.max_attempts is not None:
            record_keys[2:2] = (keys.lease(job.job_id), keys.scheduled, *(job.limits or ())[:2])
            args += _wishes(job)
        record = Record(_ENQUEUE, record_keys, args, size=len(job.payload))
        coalescer = self._lanes[job.lane] if job.lane else self._coalescer
        reply = await coalescer.call(record)
        if reply.answer is Answer.FULL:
            raise QueueFull(as_int(reply))
        if reply.answer is Answer.LIMITED:
            raise ScheduleFull(as_int(reply))
        if reply.answer is Answer.RATE:
            raise RateLimited(as_int(reply))
        if reply.answer is Answer.QUOTA:
            raise QuotaExceeded(as_int(reply))
        job_id = codec.text(reply.value) if isinstance(reply.value, bytes) else job.job_id
        if reply.answer is Answer.CONFLICT:
            raise IdempotencyConflict(job_id)
        return Accepted(job_id, replayed=reply.answer is Answer.REPLAYED)

    async def is_repetition(self, job: NewJob) -> bool:
        """Whether its Idempotency-Key has made a job before, or met another request."""
        if job.idempotency_key is None:
            return False
        key = self.keys.idempotency(job.idempotency_key, job.tenant)
        return await read(self._client.get(key)) is not None

    async def get(self, job_id: str) -> codec.Job | None:
        """The job, or None when there is none (any more)."""
        fields = await read(self._client.hgetall(self.keys.job(job_id)))
        return codec.Job.from_hash(fields, job_id) if fields else None

    async def cancel(self, job_id: str, group: str, data: bytes, default_ttl_s: int) -> Reply:
        """End a job nobody runs, or ask for its end: CANCELED, CANCELING, ALREADY or MISSING."""
        keys = self.keys
        record_keys = (*_job_keys(keys, job_id), keys.scheduled)
        args = (job_id, group, keys.control, data, default_ttl_s)
        return await self._coalescer.call(Record(Operation.CANCEL.value, record_keys, args))

    async def counts(self) -> JobCounts:
        """How many jobs were accepted and ended so far."""
        return JobCounts.from_values(
            await read(self._client.hmget(self.keys.counts, list(COUNT_FIELDS))) or ()
        )

    async def check_writable(self) -> None:
        """Prove that Redis answers and takes writes; raises StoreUnavailable."""
        await read(self._client.delete(self.keys.probe))

    # -- worker ----------------------------------------------------------------------------

    async def begin(
        self, claims: Sequence[Claim], worker: WorkerIdentity, limits: Mapping[str, str] = NO_LIMITS
    ) -> list[Reply | CorruptKey]:
        """Start the next attempt of each. RUN, BUSY, WAIT, LIMITED or MISSING; or TERMINAL or
        EXHAUSTED, whose message is acked. `limits` has the running-jobs key of limited tokens."""
        return await self._coalescer.submit(
            [
                Record(
                    _BEGIN,
                    _job_keys(self.keys, claim.job_id, limits.get(claim.token, "")),
                    claim,
                    worker,
                )
                for claim in claims
            ]
        )

    def next(
        self,
        token: str,
        most: int,
        worker: WorkerIdentity,
        after: str = "",
        terms: Mapping[str, int | str] = NO_TERMS,
    ) -> Record:
        """Read messages and begin their jobs: OK, the messages, and what BEGIN says of each.

        They are newer than the message `after`, which was handed out before. `terms` has the most
        attempts of tasks that have a limit of their own, or LEAVE_ALONE.
        """
        args: list[Argument] = [token, most, self.keys.job(""), ""]
        for term in terms.items():
            args += term
        repeated = [*args[:3], f"({after}" if after else "-", *args[4:]]
        return Record(_NEXT, (), args, worker, repeated=repeated)

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

    async def save(
        self,
        lease: Lease,
        worker: WorkerIdentity,
        name: str,
        value: bytes,
        first: int = 1,
        events: Sequence[PendingEvent] = (),
    ) -> Answer:
        """Keep a step for later attempts, after the events before it: OK, LOST or GONE."""
        args: list[Argument] = [lease.job_id, lease.attempt, lease.token]
        args += (f"{SAVED_STEP}{name}", value, first)
        for event in events:
            args += event
        keys = _job_keys(self.keys, lease.job_id)
        size = len(value) + sum([len(event.data) for event in events])
        record = Record(Operation.SAVE.value, keys, args, worker, size)
        return (await self._coalescer.call(record)).answer

    async def saved(self, lease: Lease) -> dict[str, bytes] | None:
        """Every step that attempts of the job have kept; None if the attempt is over."""
        held = await read(self._client.hgetall(self.keys.lease(lease.job_id))) or {}
        fence = (held.get(_ATTEMPT), held.get(_TOKEN))
        if fence != (str(lease.attempt).encode(), lease.token.encode()):
            return None
        steps = ((codec.text(field), value) for field, value in held.items())
        return {
            field[len(SAVED_STEP) :]: value
            for field, value in steps
            if field.startswith(SAVED_STEP)
        }

    async def children(self, lease: Lease) -> dict[str, Any]:
        """What the jobs that this one waited for have returned: there are none."""
        return {}

    def fence(self, lease: Lease) -> Fence:
        """What a script of somebody else's needs to know whether the attempt still counts."""
        return Fence(self.keys.lease(lease.job_id), lease.attempt, lease.token)

    def finish(
        self,
        lease: Lease,
        worker: WorkerIdentity,
        ending: Ending,
        first: int = 1,
        events: Sequence[PendingEvent] = (),
    ) -> Coroutine[Any, Any, Answer]:
        """End the job and ack its message: OK, ALREADY, LOST or GONE."""
        args: list[Argument] = [ending.status, ending.result, ending.error]
        args += (ending.step, ending.data, "1" if ending.dead else "")
        return self._report(_FINISH, lease, worker, args, first, events, len(ending.result))

    def retry(
        self,
        lease: Lease,
        worker: WorkerIdentity,
        delay_ms: int,
        error: bytes,
        data: bytes,
        free: bool = False,
        first: int = 1,
        events: Sequence[PendingEvent] = (),
    ) -> Coroutine[Any, Any, Answer]:
        """Give the job another attempt later: OK, CANCELED, LOST or GONE.

        `free`: through no fault of its own, so this attempt does not count.
        """
        args: list[Argument] = [delay_ms, error, data, "1" if free else ""]
        return self._report(Operation.RETRY.value, lease, worker, args, first, events)

    def release(
        self,
        lease: Lease,
        worker: WorkerIdentity,
        data: bytes,
        first: int = 1,
        events: Sequence[PendingEvent] = (),
    ) -> Coroutine[Any, Any, Answer]:
        """Hand the job back for another worker to take up at once: OK, LOST or GONE."""
        return self._report(Operation.RELEASE.value, lease, worker, [data], first, events)

    async def _report(
        self,
        operation: str,
        lease: Lease,
        worker: WorkerIdentity,
        report: list[Argument],
        first: int,
        events: Sequence[PendingEvent],
        size: int = 0,
    ) -> Answer:
        """The last word of an attempt, with the events it has not sent yet."""
        args: list[Argument] = [lease.job_id, lease.attempt, lease.token, lease.message_id]
        args += report
        args.append(first)
        for event in events:
            args += event
        size += sum([len(event.data) for event in events])
        keys = _job_keys(self.keys, lease.job_id, lease.limited_by)
        return (await self._coalescer.call(Record(operation, keys, args, worker, size))).answer

    async def dead(
        self, message_id: str, reason: DeadReason, fields: Mapping[bytes, bytes], group: str
    ) -> Answer:
        """Put a message aside that no job can be tied to, and ack it: OK, EXPIRED or ALREADY."""
        original = {codec.text(name): codec.text(value) for name, value in fields.items()}
        job_id, task, payload = (original.get(field.value, "") for field in QueueField)
        keys: tuple[str, ...] = ()
        if codec.JOB_ID.match(job_id) and task in TASKS:  # else nobody could ask for it
            keys = _job_keys(self.keys, job_id)
        args: list[Argument] = [group, message_id, reason.value, codec.dumps(original)]
        args += (job_id, task, payload)
        return (await self._coalescer.call(Record(Operation.DEAD.value, keys, args))).answer


async def read(command: Any) -> Any:
    """A reply, or StoreUnavailable; None where the key holds something else than it should."""
    try:
        return await command
    except TRANSIENT_ERRORS as error:
        raise StoreUnavailable(str(error)) from error
    except ResponseError as error:
        if str(error).startswith("WRONGTYPE"):
            return None  # whatever that key is, it is none of ours
        raise StoreUnavailable(str(error)) from error
    except RedisError as error:
        raise StoreUnavailable(str(error)) from error


def renewal(lease: Lease, keys: JobKeys, worker: WorkerIdentity) -> Record:
    """The RENEW record of a lease; the keeper sends it on a connection of its own."""
    args = (lease.attempt, lease.token, lease.message_id, lease.job_id)
    return Record(_RENEW, _job_keys(keys, lease.job_id, lease.limited_by), args, worker)


def _job_keys(keys: JobKeys, job_id: str, limited_by: str = "") -> tuple[str, ...]:
    if limited_by:
        return keys.job(job_id), keys.events(job_id), keys.lease(job_id), limited_by
    return keys.job(job_id), keys.events(job_id), keys.lease(job_id)


def _wishes(job: NewJob) -> list[Argument]:
    """ENQUEUE's arguments for a request that wishes more than to be done, or is limited."""
    args: list[Argument] = [job.delay_ms, job.schedule_limit, *(job.limits or _UNLIMITED)[2:]]
    if job.max_attempts is not None:
        args += (LeaseField.MAX_ATTEMPTS.value, job.max_attempts)
    if job.options:
        args += (LeaseField.OPTIONS.value, job.options)
    return args


def as_int(reply: Reply) -> int:
    """The number that came with a reply."""
    return int(reply.value or 0)
