"""The job contract: every key, field, status, event type and step of `contract.md`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from common.contracts.lanes import Lane

QUEUE_STREAM: Final = "jobs:stream"
WORKER_GROUP: Final = "workers"
DEAD_LETTER_STREAM: Final = "jobs:dlq"


class Task(str, Enum):
    """What a job may ask for."""

    CHAT = "chat"
    PLAN = "plan"
    CODE = "code"
    TOOL = "tool"
    RAG = "rag"
    EMBED = "embed"


#: The same as plain text, in the contract's order.
TASKS: Final = tuple(task.value for task in Task)


class Status(str, Enum):
    """Where a job stands."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    ERROR = "error"
    CANCELED = "canceled"


class EventType(str, Enum):
    """Types of events that Sluice itself writes; handlers may add their own."""

    QUEUED = "queued"
    SCHEDULED = "scheduled"
    RUNNING = "running"
    MESSAGE = "message"
    RETRY = "retry"
    RELEASED = "released"
    CANCELING = "canceling"
    DONE = "done"
    ERROR = "error"
    CANCELED = "canceled"


class FrameType(str, Enum):
    """Types that exist only on the wire to a client, never in Redis."""

    HELLO = "hello"
    GAP = "gap"
    GONE = "gone"
    SHUTDOWN = "shutdown"
    HEARTBEAT = "heartbeat"


class Step(str, Enum):
    """Who wrote an event."""

    GATEWAY_ENQUEUE = "gateway.enqueue"
    GATEWAY_SCHEDULE = "gateway.schedule"
    GATEWAY_CANCEL = "gateway.cancel"
    GATEWAY_REDRIVE = "gateway.redrive"
    GATEWAY_STREAM = "gateway.stream"
    WORKER_START = "worker.start"
    WORKER_ECHO = "worker.echo"
    WORKER_HANDLER = "worker.handler"
    WORKER_DONE = "worker.done"
    WORKER_ERROR = "worker.error"
    WORKER_RETRY = "worker.retry"
    WORKER_RELEASE = "worker.release"
    WORKER_CANCEL = "worker.cancel"
    WORKER_REPAIR = "worker.repair"


class QueueField(str, Enum):
    """The three fields of a queue message."""

    JOB_ID = "job_id"
    TASK = "task"
    PAYLOAD = "payload"


class JobField(str, Enum):
    """The nine fields of the job hash."""

    JOB_ID = "job_id"
    TASK = "task"
    PAYLOAD = "payload"
    STATUS = "status"
    CREATED_TS = "created_ts"
    UPDATED_TS = "updated_ts"
    TTL_S = "ttl_s"
    RESULT = "result"
    ERROR = "error"


class EventField(str, Enum):
    """The four fields of an event."""

    TYPE = "type"
    TS = "ts"
    STEP = "step"
    DATA = "data"


class LeaseField(str, Enum):
    """Our bookkeeping beside a job, in `job:{id}:lease`; foreign readers may ignore it."""

    ATTEMPT = "attempt"
    TOKEN = "token"
    OWNER = "owner"
    DEADLINE_MS = "deadline_ms"
    EVENT_SEQ = "event_seq"
    #: The request's own wishes.
    MAX_ATTEMPTS = "max_attempts"
    OPTIONS = "options"
    #: Between attempts: not before when, under which message, and what went wrong so far.
    NOT_BEFORE_MS = "not_before_ms"
    MESSAGE_ID = "message_id"
    RELEASED = "released"
    FIRST_ERROR = "first_error"
    LAST_ERROR = "last_error"
    #: When somebody asked for the end.
    CANCEL_MS = "cancel_ms"


class DataField(str, Enum):
    """Members of the JSON in `error` and in the `data` of our own events."""

    KIND = "kind"
    MESSAGE = "message"
    ATTEMPT = "attempt"
    BUDGET_S = "budget_s"
    MS = "ms"
    DELAY_MS = "delay_ms"
    MAX_ATTEMPTS = "max_attempts"
    RUN_AT_MS = "run_at_ms"
    STAGE = "stage"
    GRACE_S = "grace_s"
    REASON = "reason"
    DEAD_LETTER_ID = "dead_letter_id"


class CancelStage(str, Enum):
    """How far a cancellation has got, in the `stage` of an event."""

    ASKED = "asked"
    FORCED = "forced"
    COOPERATIVE = "cooperative"


class Option(str, Enum):
    """Members of the lease's `options`, as in the request: its body, then its headers."""

    TIMEOUT_S = "timeout_s"
    BACKOFF = "backoff"
    TRACEPARENT = "traceparent"
    TRACESTATE = "tracestate"
    #: Whose job it is, and which tools the caller's key may use; absent: nobody's, any.
    TENANT = "tenant"
    TOOLS = "tools"
    #: Absent: the normal one.
    LANE = "lane"


class BackoffField(str, Enum):
    """Members of `backoff`."""

    INITIAL_S = "initial_s"
    FACTOR = "factor"
    MAX_S = "max_s"
    JITTER = "jitter"


class DeadField(str, Enum):
    """Fields of a dead letter."""

    REASON = "reason"
    MESSAGE_ID = "message_id"
    TS = "ts"
    FIELDS = "fields"
    JOB_ID = "job_id"
    ATTEMPTS = "attempts"
    FIRST_ERROR = "first_error"
    LAST_ERROR = "last_error"
    #: The lease's, for the rights of a job that is made of the letter; absent where not known.
    OPTIONS = "options"


class DeadReason(str, Enum):
    """Why a message could not become a finished job."""

    NO_JOB_ID = "message_without_job_id"
    NO_JOB = "job_missing_or_expired"
    EXPIRED = "expired_before_start"
    CORRUPT = "job_keys_corrupt"
    EXHAUSTED = "attempts_exhausted"


class ErrorKind(str, Enum):
    """Kinds of job errors that come from us, not from a handler."""

    EXHAUSTED = "attempts_exhausted"
    EXPIRED = "expired_before_start"
    TIMEOUT = "timeout"


class CountField(str, Enum):
    """Fields of the counts hash: what gateways accepted, then how jobs ended, by their status."""

    ACCEPTED = "accepted"
    DONE = "done"
    ERROR = "error"
    CANCELED = "canceled"


class AuditField(str, Enum):
    """Fields of the audit hash: the last audit, and the sums of all of them."""

    LAST_TS = "last_ts"
    LAST_JOBS = "last_jobs"
    LAST_VIOLATIONS = "last_violations"
    LAST_MS = "last_ms"
    #: The first violations of the last audit, as JSON.
    LAST_FOUND = "last_found"
    JOBS_TOTAL = "jobs_total"
    VIOLATIONS_TOTAL = "violations_total"
    #: Of those, unfinished jobs that nobody was going to finish.
    LOST_TOTAL = "lost_total"


class SchemaField(str, Enum):
    """Members of what processes agree on before they share a Redis."""

    VERSION = "version"
    PARTITIONS = "partitions"


#: Of our bookkeeping; another one only where older processes could not go on beside newer ones.
SCHEMA_VERSION: Final = 1
TERMINAL: Final = frozenset({Status.DONE.value, Status.ERROR.value, Status.CANCELED.value})
RAW_PAYLOAD: Final = "_raw"
#: Before the name of a step that a handler has saved, in the lease.
SAVED_STEP: Final = "step:"
#: Before a task's name: the consumer that has the messages which wait for a place of the task.
WAITING_ROOM: Final = "waiting:"
TTL_MIN_S: Final = 1
TTL_MAX_S: Final = 30 * 24 * 3600
LEASE_MAX_MS: Final = 3_600_000
#: Newest jobs that can be listed.
INDEX_MAX: Final = 10_000
PARTITIONS_MAX: Final = 256


@dataclass(frozen=True)
class JobKeys:
    """Every Redis key of the job system, derived from the queue's name."""

    queue: str = QUEUE_STREAM
    dead_letters: str = DEAD_LETTER_STREAM
    #: How many jobs the index holds; 0 for none.
    index_max: int = INDEX_MAX
    #: What every name begins with; the queue's and the dead letters' do already. See `partition`.
    tag: str = ""
    #: Of which lane, where that is not the normal one; all lanes share everything but the stream.
    lane: str = ""

    @property
    def stream(self) -> str:
        """STREAM, messages that wait for a worker or are in work: the queue, or a lane's.

        Nothing else of the queue's begins like a lane's: gateways may read all but these.
        """
        return f"{self.queue}.lane:{self.lane}" if self.lane else self.queue

    def in_lane(self, lane: str) -> JobKeys:
        """The same keys with the stream of a lane."""
        return replace(self, lane="" if lane == Lane.NORMAL.value else lane)

    def partition(self, number: int) -> JobKeys:
        """The same keys in a partition of their own: under a hash tag, so that Redis Cluster keeps
        all of them on one server."""
        tag = f"{{{number}}}:"
        return JobKeys(tag + self.queue, tag + self.dead_letters, self.index_max, tag)

    def job(self, job_id: str) -> str:
        """HASH, the canonical job record."""
        return f"{self.tag}job:{job_id}"

    @property
    def every_job(self) -> str:
        """Pattern of the job records of all partitions."""
        return f"{'{*}:' if self.tag else ''}job:*"

    def events(self, job_id: str) -> str:
        """STREAM, what happened to the job."""
        return f"{self.tag}job:{job_id}:events"

    def lease(self, job_id: str) -> str:
        """HASH, who runs the job now; gone once the job is terminal."""
        return f"{self.tag}job:{job_id}:lease"

    def idempotency(self, key: str, tenant: str = "") -> str:
        """STRING, the job id that a client's Idempotency-Key made. Tenants have their own."""
        owner = f"idempotency.of:{tenant}" if tenant else "idempotency"
        return f"{self.tag}{owner}:{key}"

    def fingerprint(self, key: str, tenant: str = "") -> str:
        """STRING, digest of the request behind an Idempotency-Key."""
        owner = f"idempotency.fingerprint.of:{tenant}" if tenant else "idempotency.fingerprint"
        return f"{self.tag}{owner}:{key}"

    def redriven(self, letter_id: str) -> str:
        """STRING, the job id that a dead letter became."""
        return f"{self.queue}:redriven:{letter_id}"

    def running(self, task: str) -> str:
        """ZSET, jobs of a task that run now, by the end of their lease; only where limited."""
        return f"{self.queue}:running:{task}"

    @property
    def scheduled(self) -> str:
        """ZSET, accepted jobs that are not due yet, by the time they are."""
        return f"{self.queue}:scheduled"

    @property
    def control(self) -> str:
        """CHANNEL, ids of running jobs that are to be canceled. The lease is the truth."""
        return f"{self.queue}:control"

    @property
    def audit(self) -> str:
        """HASH, what the last audit found, and the sums of all of them."""
        return f"{self.queue}:audit"

    @property
    def auditor(self) -> str:
        """STRING, who is auditing just now; one at a time."""
        return f"{self.queue}:auditor"

    @property
    def workers(self) -> str:
        """ZSET, names of workers by their last sign of life, in milliseconds."""
        return f"{self.queue}:workers"

    def worker(self, consumer: str) -> str:
        """STRING, what a worker says of itself, as JSON; gone soon after the worker is."""
        return f"{self.queue}:worker:{consumer}"

    @property
    def index(self) -> str:
        """ZSET, ids of the newest jobs by when they were accepted, for listings. No truth: jobs
        in it may be gone, and older ones have left it."""
        return f"{self.queue}:index"

    @property
    def counts(self) -> str:
        """HASH, how many jobs were accepted and how many ended; drain rate and history use it."""
        return f"{self.queue}:counts"

    @property
    def hints(self) -> str:
        """CHANNEL, ids of jobs that just got events. A wake-up only: the streams are the truth."""
        return f"{self.queue}:hints"

    @property
    def replicated(self) -> str:
        """STRING, empty: what gateways write and wait for replicas to have, where they do that."""
        return f"{self.queue}:replicated"

    @property
    def schema(self) -> str:
        """STRING, how the jobs here are kept, as JSON: what all processes must agree on."""
        return f"{self.queue}:schema"

    @property
    def probe(self) -> str:
        """STRING that never exists; deleting it proves that Redis takes writes."""
        return f"{self.queue}:probe"
