"""The job contract: every key, field, status, event type and step of `contract.md`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from common.contracts.queue import Lane

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


class EventType:
    """Types of events that Sluice itself writes; handlers may add their own."""

    QUEUED: Final = "queued"
    SCHEDULED: Final = "scheduled"
    RUNNING: Final = "running"
    MESSAGE: Final = "message"
    RETRY: Final = "retry"
    RELEASED: Final = "released"
    CANCELING: Final = "canceling"
    DONE: Final = "done"
    ERROR: Final = "error"
    CANCELED: Final = "canceled"


class FrameType:
    """Types that exist only on the wire to a client, never in Redis."""

    HELLO: Final = "hello"
    GAP: Final = "gap"
    GONE: Final = "gone"
    SHUTDOWN: Final = "shutdown"
    HEARTBEAT: Final = "heartbeat"


class Step:
    """Who wrote an event."""

    GATEWAY_ENQUEUE: Final = "gateway.enqueue"
    GATEWAY_SCHEDULE: Final = "gateway.schedule"
    GATEWAY_CANCEL: Final = "gateway.cancel"
    GATEWAY_REDRIVE: Final = "gateway.redrive"
    GATEWAY_STREAM: Final = "gateway.stream"
    WORKER_START: Final = "worker.start"
    WORKER_ECHO: Final = "worker.echo"
    WORKER_HANDLER: Final = "worker.handler"
    WORKER_DONE: Final = "worker.done"
    WORKER_ERROR: Final = "worker.error"
    WORKER_RETRY: Final = "worker.retry"
    WORKER_RELEASE: Final = "worker.release"
    WORKER_CANCEL: Final = "worker.cancel"
    WORKER_REPAIR: Final = "worker.repair"


class QueueField:
    """The three fields of a queue message."""

    JOB_ID: Final = "job_id"
    TASK: Final = "task"
    PAYLOAD: Final = "payload"


class JobField:
    """The nine fields of the job hash."""

    JOB_ID: Final = "job_id"
    TASK: Final = "task"
    PAYLOAD: Final = "payload"
    STATUS: Final = "status"
    CREATED_TS: Final = "created_ts"
    UPDATED_TS: Final = "updated_ts"
    TTL_S: Final = "ttl_s"
    RESULT: Final = "result"
    ERROR: Final = "error"


class EventField:
    """The four fields of an event."""

    TYPE: Final = "type"
    TS: Final = "ts"
    STEP: Final = "step"
    DATA: Final = "data"


class LeaseField:
    """Our bookkeeping beside a job, in `job:{id}:lease`; foreign readers may ignore it."""

    ATTEMPT: Final = "attempt"
    TOKEN: Final = "token"
    OWNER: Final = "owner"
    DEADLINE_MS: Final = "deadline_ms"
    EVENT_SEQ: Final = "event_seq"
    #: The request's own wishes.
    MAX_ATTEMPTS: Final = "max_attempts"
    OPTIONS: Final = "options"
    #: Between attempts: not before when, under which message, and what went wrong so far.
    NOT_BEFORE_MS: Final = "not_before_ms"
    MESSAGE_ID: Final = "message_id"
    RELEASED: Final = "released"
    FIRST_ERROR: Final = "first_error"
    LAST_ERROR: Final = "last_error"
    #: When somebody asked for the end.
    CANCEL_MS: Final = "cancel_ms"


class DataField:
    """Members of the JSON in `error` and in the `data` of our own events."""

    KIND: Final = "kind"
    MESSAGE: Final = "message"
    ATTEMPT: Final = "attempt"
    BUDGET_S: Final = "budget_s"
    MS: Final = "ms"
    DELAY_MS: Final = "delay_ms"
    MAX_ATTEMPTS: Final = "max_attempts"
    RUN_AT_MS: Final = "run_at_ms"
    STAGE: Final = "stage"
    GRACE_S: Final = "grace_s"
    REASON: Final = "reason"
    DEAD_LETTER_ID: Final = "dead_letter_id"


class CancelStage(str, Enum):
    """How far a cancellation has got, in the `stage` of an event."""

    ASKED = "asked"
    FORCED = "forced"
    COOPERATIVE = "cooperative"


class Option:
    """Members of the lease's `options`, as in the request: its body, then its headers."""

    TIMEOUT_S: Final = "timeout_s"
    BACKOFF: Final = "backoff"
    TRACEPARENT: Final = "traceparent"
    TRACESTATE: Final = "tracestate"
    #: Whose job it is, and which tools the caller's key may use; absent: nobody's, any.
    TENANT: Final = "tenant"
    TOOLS: Final = "tools"
    #: Absent: the normal one.
    LANE: Final = "lane"


class BackoffField:
    """Members of `backoff`."""

    INITIAL_S: Final = "initial_s"
    FACTOR: Final = "factor"
    MAX_S: Final = "max_s"
    JITTER: Final = "jitter"


class DeadLetterField:
    """Fields of a dead letter."""

    REASON: Final = "reason"
    MESSAGE_ID: Final = "message_id"
    TS: Final = "ts"
    FIELDS: Final = "fields"
    JOB_ID: Final = "job_id"
    ATTEMPTS: Final = "attempts"
    FIRST_ERROR: Final = "first_error"
    LAST_ERROR: Final = "last_error"
    #: The lease's, for the rights of a job that is made of the letter; absent where not known.
    OPTIONS: Final = "options"


class DeadReason(str, Enum):
    """Why a message could not become a finished job."""

    NO_JOB_ID = "message_without_job_id"
    NO_JOB = "job_missing_or_expired"
    EXPIRED = "expired_before_start"
    CORRUPT = "job_keys_corrupt"
    EXHAUSTED = "attempts_exhausted"


class ErrorKind:
    """Kinds of job errors that come from us, not from a handler."""

    EXHAUSTED: Final = "attempts_exhausted"
    EXPIRED: Final = "expired_before_start"
    TIMEOUT: Final = "timeout"


class CountField:
    """Fields of the counts hash: what gateways accepted, then how jobs ended, by their status."""

    ACCEPTED: Final = "accepted"
    DONE: Final = "done"
    ERROR: Final = "error"
    CANCELED: Final = "canceled"


class AuditField:
    """Fields of the audit hash: the last audit, and the sums of all of them."""

    LAST_TS: Final = "last_ts"
    LAST_JOBS: Final = "last_jobs"
    LAST_VIOLATIONS: Final = "last_violations"
    LAST_MS: Final = "last_ms"
    #: The first violations of the last audit, as JSON.
    LAST_FOUND: Final = "last_found"
    JOBS_TOTAL: Final = "jobs_total"
    VIOLATIONS_TOTAL: Final = "violations_total"
    #: Of those, unfinished jobs that nobody was going to finish.
    LOST_TOTAL: Final = "lost_total"


class SchemaField:
    """Members of what processes agree on before they share a Redis."""

    VERSION: Final = "version"
    PARTITIONS: Final = "partitions"


#: Of our bookkeeping; another one only where older processes could not go on beside newer ones.
SCHEMA_VERSION: Final = 1
TERMINAL: Final = frozenset({Status.DONE.value, Status.ERROR.value, Status.CANCELED.value})
RAW_PAYLOAD: Final = "_raw"
#: Before the name of a step that a handler has saved, in the lease.
CHECKPOINT_PREFIX: Final = "step:"
#: Before a task's name: the consumer that has the messages which wait for a place of the task.
WAIT_QUEUE_PREFIX: Final = "waiting:"
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

    def for_lane(self, lane: str) -> JobKeys:
        """The same keys with the stream of a lane."""
        return replace(self, lane="" if lane == Lane.NORMAL.value else lane)

    def partition(self, number: int) -> JobKeys:
        """The same keys in a partition of their own: under a hash tag, so that Redis Cluster keeps
        all of them on one server."""
        tag = f"{{{number}}}:"
        return JobKeys(tag + self.queue, tag + self.dead_letters, self.index_max, tag)

    def job(self, job_id: str) -> str:
        return f"{self.tag}job:{job_id}"

    @property
    def job_pattern(self) -> str:
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
    def audit_lock(self) -> str:
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
    def replication_marker(self) -> str:
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
