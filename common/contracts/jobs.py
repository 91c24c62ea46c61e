"""The job contract: every key, field, status, event type and step of `contract.md`, and the
internal keys of `docs/redis-keys.md`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from sluice.common.contracts.queue import Lane

QUEUE_STREAM: Final = "jobs:stream"
WORKER_GROUP: Final = "workers"
DEAD_LETTER_STREAM: Final = "jobs:dlq"


class Task(str, Enum):
    """Task of a job."""

    CHAT = "chat"
    PLAN = "plan"
    CODE = "code"
    TOOL = "tool"
    RAG = "rag"
    EMBED = "embed"


#: Task names in the order of the contract.
TASKS: Final = tuple(task.value for task in Task)


class Status(str, Enum):
    """Status of a job."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    ERROR = "error"
    CANCELED = "canceled"


class EventType:
    """Event types that Sluice writes; handlers may add their own."""

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
    """Event types that exist only in SSE streams, never in Redis."""

    HELLO: Final = "hello"
    GAP: Final = "gap"
    GONE: Final = "gone"
    SHUTDOWN: Final = "shutdown"
    HEARTBEAT: Final = "heartbeat"


class Step:
    """`step` of an event: the component that wrote it, and its action."""

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
    """Fields of `job:{id}:lease`, internal to Sluice; third-party readers may ignore it."""

    ATTEMPT: Final = "attempt"
    TOKEN: Final = "token"
    OWNER: Final = "owner"
    DEADLINE_MS: Final = "deadline_ms"
    EVENT_SEQ: Final = "event_seq"
    #: Options of the request.
    MAX_ATTEMPTS: Final = "max_attempts"
    OPTIONS: Final = "options"
    #: Between attempts: when the next one is due, the message id, and the errors so far.
    NOT_BEFORE_MS: Final = "not_before_ms"
    MESSAGE_ID: Final = "message_id"
    RELEASED: Final = "released"
    FIRST_ERROR: Final = "first_error"
    LAST_ERROR: Final = "last_error"
    #: When the cancel was requested.
    CANCEL_MS: Final = "cancel_ms"


class DataField:
    """Members of the JSON in `error`, and in the `data` of Sluice's own events."""

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
    """`stage` of a cancellation, in the data of an event."""

    ASKED = "asked"
    FORCED = "forced"
    COOPERATIVE = "cooperative"


class Option:
    """Members of the lease's `options`, from the body and the headers of the request."""

    TIMEOUT_S: Final = "timeout_s"
    BACKOFF: Final = "backoff"
    TRACEPARENT: Final = "traceparent"
    TRACESTATE: Final = "tracestate"
    #: The owner, and the tools that the caller's key may use. Absent: no owner, all tools.
    TENANT: Final = "tenant"
    TOOLS: Final = "tools"
    #: Absent for the normal lane.
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
    #: The options of the lease, for the permissions of a redriven job; absent if unknown.
    OPTIONS: Final = "options"


class DeadReason(str, Enum):
    """Why a message was dead-lettered."""

    NO_JOB_ID = "message_without_job_id"
    NO_JOB = "job_missing_or_expired"
    EXPIRED = "expired_before_start"
    CORRUPT = "job_keys_corrupt"
    EXHAUSTED = "attempts_exhausted"


class ErrorKind:
    """Error kinds that Sluice sets, not a handler."""

    EXHAUSTED: Final = "attempts_exhausted"
    EXPIRED: Final = "expired_before_start"
    TIMEOUT: Final = "timeout"


class CountField:
    """Fields of the counts hash: accepted jobs, and ended jobs by status."""

    ACCEPTED: Final = "accepted"
    DONE: Final = "done"
    ERROR: Final = "error"
    CANCELED: Final = "canceled"


class AuditField:
    """Fields of the audit hash: the last audit, and totals of all audits."""

    LAST_TS: Final = "last_ts"
    LAST_JOBS: Final = "last_jobs"
    LAST_VIOLATIONS: Final = "last_violations"
    LAST_MS: Final = "last_ms"
    #: The first violations of the last audit (JSON).
    LAST_FOUND: Final = "last_found"
    JOBS_TOTAL: Final = "jobs_total"
    VIOLATIONS_TOTAL: Final = "violations_total"
    #: The number of lost jobs among them: unfinished, and no worker will finish them.
    LOST_TOTAL: Final = "lost_total"


class SchemaField:
    """Members of the schema key, which all processes of a Redis must agree on."""

    VERSION: Final = "version"
    PARTITIONS: Final = "partitions"


#: Version of Sluice's data in Redis; raised only if older processes could not run alongside newer.
SCHEMA_VERSION: Final = 1
TERMINAL: Final = frozenset({Status.DONE.value, Status.ERROR.value, Status.CANCELED.value})
RAW_PAYLOAD: Final = "_raw"
#: Prefix of a checkpoint's field in the lease.
CHECKPOINT_PREFIX: Final = "step:"
#: Prefix of the consumer that holds the waiting messages of a task.
WAIT_QUEUE_PREFIX: Final = "waiting:"
TTL_MIN_S: Final = 1
TTL_MAX_S: Final = 30 * 24 * 3600
LEASE_MAX_MS: Final = 3_600_000
#: Jobs kept in the index.
INDEX_MAX: Final = 10_000
PARTITIONS_MAX: Final = 256


@dataclass(frozen=True)
class JobKeys:
    """Every Redis key of jobs, derived from the name of the queue."""

    queue: str = QUEUE_STREAM
    dead_letters: str = DEAD_LETTER_STREAM
    #: Maximum number of jobs in the index; 0 for no index.
    index_max: int = INDEX_MAX
    #: Prefix of every key; already part of `queue` and `dead_letters`. See `partition`.
    tag: str = ""
    #: The lane; empty for the normal one. Lanes share all keys except the stream.
    lane: str = ""

    @property
    def stream(self) -> str:
        """STREAM, waiting and pending messages: the queue, or the stream of a lane.

        No other key begins like that of a lane: gateways may read all keys except these.
        """
        return f"{self.queue}.lane:{self.lane}" if self.lane else self.queue

    def for_lane(self, lane: str) -> JobKeys:
        """The same keys, with the stream of a lane."""
        return replace(self, lane="" if lane == Lane.NORMAL.value else lane)

    def partition(self, number: int) -> JobKeys:
        """The keys of a partition: they share a hash tag, so that Redis Cluster stores all of them
        on one server."""
        tag = f"{{{number}}}:"
        return JobKeys(tag + self.queue, tag + self.dead_letters, self.index_max, tag)

    def job(self, job_id: str) -> str:
        return f"{self.tag}job:{job_id}"

    @property
    def job_pattern(self) -> str:
        """Pattern of the job hashes of all partitions."""
        return f"{'{*}:' if self.tag else ''}job:*"

    def events(self, job_id: str) -> str:
        """STREAM, the events of a job."""
        return f"{self.tag}job:{job_id}:events"

    def lease(self, job_id: str) -> str:
        """HASH, the current attempt of a job; deleted when the job ends."""
        return f"{self.tag}job:{job_id}:lease"

    def idempotency(self, key: str, tenant: str = "") -> str:
        """STRING, the job id of an Idempotency-Key. Each tenant has its own keys."""
        owner = f"idempotency.of:{tenant}" if tenant else "idempotency"
        return f"{self.tag}{owner}:{key}"

    def fingerprint(self, key: str, tenant: str = "") -> str:
        """STRING, digest of the request of an Idempotency-Key."""
        owner = f"idempotency.fingerprint.of:{tenant}" if tenant else "idempotency.fingerprint"
        return f"{self.tag}{owner}:{key}"

    def redriven(self, letter_id: str) -> str:
        """STRING, id of the job created from a dead letter."""
        return f"{self.queue}:redriven:{letter_id}"

    def running(self, task: str) -> str:
        """ZSET, running jobs of a limited task, by the end of their lease."""
        return f"{self.queue}:running:{task}"

    @property
    def scheduled(self) -> str:
        """ZSET, scheduled jobs by due time."""
        return f"{self.queue}:scheduled"

    @property
    def control(self) -> str:
        """CHANNEL, ids of running jobs to cancel. The lease is authoritative."""
        return f"{self.queue}:control"

    @property
    def audit(self) -> str:
        """HASH, result of the last audit, and totals of all audits."""
        return f"{self.queue}:audit"

    @property
    def audit_lock(self) -> str:
        """STRING, lock of the process that runs an audit; one at a time."""
        return f"{self.queue}:auditor"

    @property
    def workers(self) -> str:
        """ZSET, worker names by their last heartbeat, in Unix milliseconds."""
        return f"{self.queue}:workers"

    def worker(self, consumer: str) -> str:
        """STRING, the heartbeat of a worker (JSON); expires soon after the worker ends."""
        return f"{self.queue}:worker:{consumer}"

    def tools(self, digest: str) -> str:
        """STRING, a list of tools (JSON) that live workers offer, by the digest in their
        heartbeats."""
        return f"{self.queue}:tools:{digest}"

    @property
    def index(self) -> str:
        """ZSET, ids of the newest jobs by acceptance time, for listings. It is not authoritative:
        jobs in it may be gone, and older ones were removed from it."""
        return f"{self.queue}:index"

    @property
    def counts(self) -> str:
        """HASH, numbers of accepted and ended jobs; used for the drain rate and statistics."""
        return f"{self.queue}:counts"

    @property
    def hints(self) -> str:
        """CHANNEL, ids of jobs with new events. Only a wake-up: the streams are authoritative."""
        return f"{self.queue}:hints"

    @property
    def replication_marker(self) -> str:
        """STRING, empty; written by gateways that wait for replicas (WAIT_REPLICAS)."""
        return f"{self.queue}:replicated"

    @property
    def schema(self) -> str:
        """STRING, schema version and partition count (JSON), the same for all processes."""
        return f"{self.queue}:schema"

    @property
    def probe(self) -> str:
        """STRING that never exists; deleting it proves that Redis accepts writes."""
        return f"{self.queue}:probe"
