"""JobStore: one method per state change; the only code that writes a job."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from sluice.common import codec
from sluice.common.contracts import values_of
from sluice.common.contracts.jobs import (
    CHECKPOINT_PREFIX,
    TASKS,
    DeadReason,
    JobKeys,
    LeaseField,
    QueueField,
)
from sluice.common.contracts.queue import Answer, Operation
from sluice.common.errors import (
    CorruptKey,
    IdempotencyConflict,
    QueueFull,
    QuotaExceeded,
    RateLimited,
    ScheduleFull,
    StoreUnavailable,
)
from sluice.common.jobs.limits import KeyLimits
from sluice.common.jobs.queue_stats import COUNT_FIELDS, JobCounts
from sluice.common.redis.batching import ScriptBatcher
from sluice.common.redis.connection import TRANSIENT_ERRORS
from sluice.common.redis.scripts import Argument, Record, Reply


@dataclass(frozen=True, slots=True)
class NewJob:
    """A validated request."""

    job_id: str
    task: str
    payload: bytes
    ttl_s: int
    idempotency_key: str | None = None
    idempotency_ttl_s: int = 0
    fingerprint: str = ""
    #: The request's limit of attempts, and its other options (`sluice.common.jobs.options`).
    max_attempts: int | None = None
    options: bytes = b""
    #: Milliseconds until it is due, and the maximum number of scheduled jobs.
    delay_ms: int = 0
    schedule_limit: int = 0
    #: The tenant, which scopes Idempotency-Keys, and the limits of the caller's key.
    tenant: str = ""
    limits: KeyLimits | None = None
    #: Empty for the normal lane; also part of `options`, for when it is promoted or redriven.
    lane: str = ""
    #: Whether it may get another id, and with that another partition.
    any_partition: bool = False

    def __post_init__(self) -> None:
        if self.idempotency_key is not None and not self.fingerprint:
            raise ValueError("an idempotency key needs the request's fingerprint")


class AcceptedJob(NamedTuple):
    """The job of a request; `replayed` if an earlier request created it."""

    job_id: str
    replayed: bool


# Looking up an enum's value costs more than the rest of building a record.
_ENQUEUE, _BEGIN, _FETCH_AND_BEGIN, _RENEW, _EMIT, _FINISH = (
    Operation.ENQUEUE.value,
    Operation.BEGIN.value,
    Operation.FETCH_AND_BEGIN.value,
    Operation.RENEW.value,
    Operation.EMIT.value,
    Operation.FINISH.value,
)

_ATTEMPT, _TOKEN = LeaseField.ATTEMPT.encode(), LeaseField.TOKEN.encode()

NO_LANES: Mapping[str, ScriptBatcher] = {}
NO_LIMITS: Mapping[str, str] = {}
NO_ATTEMPT_LIMITS: Mapping[str, int | str] = {}
_UNLIMITED = KeyLimits("", "")


class Claim(NamedTuple):
    """A message's request to run its job; the token identifies this try."""

    job_id: str
    message_id: str
    token: str
    #: Maximum number of attempts if the handler has its own limit; maximum number of running jobs
    #: if the task is limited across workers.
    max_attempts: int | str = ""
    max_running: int | str = ""


class Lease(NamedTuple):
    """The right to run one attempt of a job. Every write of the attempt presents it."""

    job_id: str
    message_id: str
    attempt: int
    token: str
    #: Key of the task's running jobs if the task is limited across workers.
    limited_by: str = ""


class Fence(NamedTuple):
    """Proof that an attempt is current: a script compares these fields with the lease."""

    lease_key: str
    attempt: int
    token: str


class PendingEvent(NamedTuple):
    """An event of a handler that is not stored yet."""

    type: str
    step: str
    data: bytes


class JobOutcome(NamedTuple):
    """How a job ends: status, result or error as JSON, and the terminal event."""

    status: str
    step: str
    data: bytes
    result: bytes = b""
    error: bytes = b""
    #: Whether a dead letter is written.
    dead_letter: bool = False


class WorkerIdentity(NamedTuple):
    """The consumer name of a worker, and its defaults."""

    group: str
    consumer: str
    lease_ms: int
    default_ttl_s: int
    max_attempts: int = 5


class JobStore:
    """Reads and writes jobs. The batcher sends many writes in one script call."""

    def __init__(
        self,
        client: Redis,
        keys: JobKeys,
        batcher: ScriptBatcher,
        lanes: Mapping[str, ScriptBatcher] = NO_LANES,
    ) -> None:
        """`lanes`: batchers for new jobs of lanes in addition to the normal one."""
        self._client = client
        self.keys = keys
        self._batcher = batcher
        self._lanes = lanes

    @property
    def queue(self) -> str:
        return self.keys.stream

    # -- gateway ---------------------------------------------------------------------------

    def new_id(self, draw: Callable[[], str]) -> str:
        """A new id for a job that may go to any partition; there is only one."""
        return draw()

    async def enqueue(self, job: NewJob, group: str, backlog_limit: int) -> AcceptedJob:
        """Accept a job, or raise the reason why not and change nothing."""
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
            args += _option_arguments(job)
        record = Record(_ENQUEUE, record_keys, args, size=len(job.payload))
        batcher = self._lanes[job.lane] if job.lane else self._batcher
        reply = await batcher.call(record)
        if reply.answer is Answer.FULL:
            raise QueueFull(reply_int(reply))
        if reply.answer is Answer.LIMITED:
            raise ScheduleFull(reply_int(reply))
        if reply.answer is Answer.RATE:
            raise RateLimited(reply_int(reply))
        if reply.answer is Answer.QUOTA:
            raise QuotaExceeded(reply_int(reply))
        job_id = codec.decode_text(reply.value) if isinstance(reply.value, bytes) else job.job_id
        if reply.answer is Answer.CONFLICT:
            raise IdempotencyConflict(job_id)
        return AcceptedJob(job_id, replayed=reply.answer is Answer.REPLAYED)

    async def is_replay(self, job: NewJob) -> bool:
        """True if the Idempotency-Key was used before, with this request or another."""
        if job.idempotency_key is None:
            return False
        key = self.keys.idempotency(job.idempotency_key, job.tenant)
        return await read_reply(self._client.get(key)) is not None

    async def get(self, job_id: str) -> codec.Job | None:
        """The job; None if it does not exist (any more)."""
        fields = await read_reply(self._client.hgetall(self.keys.job(job_id)))
        return codec.Job.from_hash(fields, job_id) if fields else None

    async def cancel(self, job_id: str, group: str, data: bytes, default_ttl_s: int) -> Reply:
        """Cancel a job that is not running, or request it of its worker.

        Returns CANCELED, CANCELING, ALREADY or MISSING.
        """
        keys = self.keys
        record_keys = (*_job_keys(keys, job_id), keys.scheduled)
        args = (job_id, group, keys.control, data, default_ttl_s)
        return await self._batcher.call(Record(Operation.CANCEL.value, record_keys, args))

    async def counts(self) -> JobCounts:
        """Numbers of jobs accepted and ended so far."""
        return JobCounts.from_values(
            await read_reply(self._client.hmget(self.keys.counts, list(COUNT_FIELDS))) or ()
        )

    async def check_writable(self) -> None:
        """Check that Redis answers and accepts writes; raises StoreUnavailable."""
        await read_reply(self._client.delete(self.keys.probe))

    # -- worker ----------------------------------------------------------------------------

    async def begin(
        self, claims: Sequence[Claim], worker: WorkerIdentity, limits: Mapping[str, str] = NO_LIMITS
    ) -> list[Reply | CorruptKey]:
        """Start the next attempt of each job: RUN, BUSY, WAIT, LIMITED or MISSING; or TERMINAL or
        EXHAUSTED, which ack the message. `limits` maps the tokens of limited tasks to the key of
        their running jobs."""
        return await self._batcher.submit(
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

    def fetch_record(
        self,
        token: str,
        most: int,
        worker: WorkerIdentity,
        after: str = "",
        attempt_limits: Mapping[str, int | str] = NO_ATTEMPT_LIMITS,
    ) -> Record:
        """Fetch messages and begin their jobs: OK, the messages, and the answer of BEGIN for each.

        If the record is sent again, it returns pending messages newer than `after`, which was
        delivered before. `attempt_limits` has the maximum number of attempts of tasks with their
        own limit, or DO_NOT_BEGIN.
        """
        args: list[Argument] = [token, most, self.keys.job(""), ""]
        for limit in attempt_limits.items():
            args += limit
        repeated = [*args[:3], f"({after}" if after else "-", *args[4:]]
        return Record(_FETCH_AND_BEGIN, (), args, worker, repeated=repeated)

    async def emit(
        self, lease: Lease, worker: WorkerIdentity, first: int, events: Sequence[PendingEvent]
    ) -> Answer:
        """Append events numbered from `first`: OK, LOST or GONE."""
        args: list[Argument] = [lease.job_id, lease.attempt, lease.token, first]
        for event in events:
            args += event
        keys = _job_keys(self.keys, lease.job_id)
        size = sum([len(event.data) for event in events])
        return (await self._batcher.call(Record(_EMIT, keys, args, worker, size))).answer

    async def save(
        self,
        lease: Lease,
        worker: WorkerIdentity,
        name: str,
        value: bytes,
        first: int = 1,
        events: Sequence[PendingEvent] = (),
    ) -> Answer:
        """Store a checkpoint for later attempts, after the events before it: OK, LOST or GONE."""
        args: list[Argument] = [lease.job_id, lease.attempt, lease.token]
        args += (f"{CHECKPOINT_PREFIX}{name}", value, first)
        for event in events:
            args += event
        keys = _job_keys(self.keys, lease.job_id)
        size = len(value) + sum([len(event.data) for event in events])
        record = Record(Operation.SAVE_CHECKPOINT.value, keys, args, worker, size)
        return (await self._batcher.call(record)).answer

    async def saved(self, lease: Lease) -> dict[str, bytes] | None:
        """All checkpoints of the job; None if the attempt is not current any more."""
        held = await read_reply(self._client.hgetall(self.keys.lease(lease.job_id))) or {}
        fence = (held.get(_ATTEMPT), held.get(_TOKEN))
        if fence != (str(lease.attempt).encode(), lease.token.encode()):
            return None
        steps = ((codec.decode_text(field), value) for field, value in held.items())
        return {
            field[len(CHECKPOINT_PREFIX) :]: value
            for field, value in steps
            if field.startswith(CHECKPOINT_PREFIX)
        }

    async def children(self, lease: Lease) -> dict[str, Any]:
        """Results of child jobs; only BullMQ jobs have any."""
        return {}

    def fence(self, lease: Lease) -> Fence:
        """The proof that a script of a feature needs to check that the attempt is current."""
        return Fence(self.keys.lease(lease.job_id), lease.attempt, lease.token)

    def finish(
        self,
        lease: Lease,
        worker: WorkerIdentity,
        ending: JobOutcome,
        first: int = 1,
        events: Sequence[PendingEvent] = (),
    ) -> Coroutine[Any, Any, Answer]:
        """End the job and ack its message: OK, ALREADY, LOST or GONE."""
        args: list[Argument] = [ending.status, ending.result, ending.error]
        args += (ending.step, ending.data, "1" if ending.dead_letter else "")
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
        """Schedule another attempt: OK, CANCELED, LOST or GONE.

        `free`: this attempt does not count towards the limit.
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
        """Release the job, so that another worker can take it at once: OK, LOST or GONE."""
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
        """Send the outcome of an attempt, with its remaining events."""
        args: list[Argument] = [lease.job_id, lease.attempt, lease.token, lease.message_id]
        args += report
        args.append(first)
        for event in events:
            args += event
        size += sum([len(event.data) for event in events])
        keys = _job_keys(self.keys, lease.job_id, lease.limited_by)
        return (await self._batcher.call(Record(operation, keys, args, worker, size))).answer

    async def dead_letter(
        self, message_id: str, reason: DeadReason, fields: Mapping[bytes, bytes], group: str
    ) -> Answer:
        """Dead-letter a message without a valid job, and ack it: OK, EXPIRED or ALREADY."""
        original = {
            codec.decode_text(name): codec.decode_text(value) for name, value in fields.items()
        }
        job_id, task, payload = (original.get(field, "") for field in values_of(QueueField))
        keys: tuple[str, ...] = ()
        if codec.JOB_ID_PATTERN.match(job_id) and task in TASKS:  # else no client can look it up
            keys = _job_keys(self.keys, job_id)
        args: list[Argument] = [group, message_id, reason.value, codec.dumps(original)]
        args += (job_id, task, payload)
        return (await self._batcher.call(Record(Operation.DEAD_LETTER.value, keys, args))).answer


async def read_reply(command: Any) -> Any:
    """Await a reply; raises StoreUnavailable. None if the key has the wrong type."""
    try:
        return await command
    except TRANSIENT_ERRORS as error:
        raise StoreUnavailable(str(error)) from error
    except ResponseError as error:
        if str(error).startswith("WRONGTYPE"):
            return None  # the key belongs to another application
        raise StoreUnavailable(str(error)) from error
    except RedisError as error:
        raise StoreUnavailable(str(error)) from error


def renewal_record(lease: Lease, keys: JobKeys, worker: WorkerIdentity) -> Record:
    """The RENEW record of a lease, which the lease keeper sends on a separate connection."""
    args = (lease.attempt, lease.token, lease.message_id, lease.job_id)
    return Record(_RENEW, _job_keys(keys, lease.job_id, lease.limited_by), args, worker)


def _job_keys(keys: JobKeys, job_id: str, limited_by: str = "") -> tuple[str, ...]:
    if limited_by:
        return keys.job(job_id), keys.events(job_id), keys.lease(job_id), limited_by
    return keys.job(job_id), keys.events(job_id), keys.lease(job_id)


def _option_arguments(job: NewJob) -> list[Argument]:
    """ENQUEUE's arguments for a request with options or limits."""
    args: list[Argument] = [job.delay_ms, job.schedule_limit, *(job.limits or _UNLIMITED)[2:]]
    if job.max_attempts is not None:
        args += (LeaseField.MAX_ATTEMPTS, job.max_attempts)
    if job.options:
        args += (LeaseField.OPTIONS, job.options)
    return args


def reply_int(reply: Reply) -> int:
    return int(reply.value or 0)
