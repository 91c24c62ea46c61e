"""Names of the BullMQ door: what of the real protocol we spell ourselves. No logic.

Keys and fields that only the package's scripts touch are theirs, and are not repeated here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

DEFAULT_PREFIX: Final = "bull"
#: The release of the PyPI package whose scripts these are.
PACKAGE: Final = "bullmq"
PACKAGE_VERSION: Final = "3.4.4"
#: Which step the gateway says that BullMQ's events come from: they do not say themselves.
EVENTS_STEP: Final = "bullmq.events"


class BullField:
    """Fields of a job's hash that we read."""

    NAME: Final = "name"
    DATA: Final = "data"
    OPTS: Final = "opts"
    TIMESTAMP: Final = "timestamp"
    DELAY: Final = "delay"
    PRIORITY: Final = "priority"
    PROGRESS: Final = "progress"
    RETURN_VALUE: Final = "returnvalue"
    FAILED_REASON: Final = "failedReason"
    STACKTRACE: Final = "stacktrace"
    PROCESSED_ON: Final = "processedOn"
    FINISHED_ON: Final = "finishedOn"
    #: Attempts started, attempts made, times it stalled.
    STARTED: Final = "ats"
    MADE: Final = "atm"
    STALLED: Final = "stc"
    #: Who has it, or had it last.
    PROCESSED_BY: Final = "pb"
    #: Why the next worker must fail it without running it.
    DEFERRED_FAILURE: Final = "defa"
    #: The scheduler it comes from.
    SCHEDULER: Final = "rjk"
    PARENT_KEY: Final = "parentKey"


class BullState(str, Enum):
    """Where a job is, as Node's `getState` says it."""

    WAITING = "waiting"
    ACTIVE = "active"
    DELAYED = "delayed"
    PRIORITIZED = "prioritized"
    WAITING_CHILDREN = "waiting-children"
    COMPLETED = "completed"
    FAILED = "failed"
    UNKNOWN = "unknown"


class BullEvent:
    """Types of events that we tell apart or add."""

    ADDED: Final = "added"
    WAITING: Final = "waiting"
    ACTIVE: Final = "active"
    DELAYED: Final = "delayed"
    PROGRESS: Final = "progress"
    COMPLETED: Final = "completed"
    FAILED: Final = "failed"
    STALLED: Final = "stalled"
    REMOVED: Final = "removed"
    #: The seed's, in addition to BullMQ's own `delayed` or `waiting`.
    RETRY: Final = "retry"


class BullEventField:
    """Fields of an event."""

    EVENT: Final = "event"
    JOB_ID: Final = "jobId"
    DELAY: Final = "delay"
    DATA: Final = "data"
    RETURN_VALUE: Final = "returnvalue"
    FAILED_REASON: Final = "failedReason"


class BullOpt:
    """Members of a job's `opts` that a worker heeds, as they are stored."""

    ATTEMPTS: Final = "attempts"
    BACKOFF: Final = "backoff"
    #: Of a backoff, but for `delay`, which a job has, too.
    BACKOFF_TYPE: Final = "type"
    EXPONENTIAL: Final = "exponential"
    JITTER: Final = "jitter"
    DELAY: Final = "delay"
    LIFO: Final = "lifo"
    REMOVE_ON_COMPLETE: Final = "removeOnComplete"
    REMOVE_ON_FAIL: Final = "removeOnFail"
    KEEP_LOGS: Final = "kl"
    STACK_LIMIT: Final = "stackTraceLimit"
    #: What a tracer of the producer's left for the worker's, JSON in a string.
    TELEMETRY: Final = "tm"
    #: Of a scheduler's jobs: how they repeat, and when this one was due.
    REPEAT: Final = "repeat"
    PREVIOUS_MS: Final = "prevMillis"
    REPEAT_KEY: Final = "repeatJobKey"
    JOB_ID: Final = "jobId"
    TIMESTAMP: Final = "timestamp"


class BullCallOpt:
    """Members of the packed options of the scripts that lock and end jobs."""

    TOKEN: Final = "token"
    LOCK_MS: Final = "lockDuration"
    WORKER: Final = "name"
    LIMITER: Final = "limiter"
    LIMITER_MAX: Final = "max"
    LIMITER_MS: Final = "duration"
    KEEP: Final = "keepJobs"
    KEEP_COUNT: Final = "count"
    ATTEMPTS: Final = "attempts"
    METRICS: Final = "maxMetricsSize"


class BullRepeat:
    """Members of `repeat` that we read or count up."""

    EVERY: Final = "every"
    PATTERN: Final = "pattern"
    LIMIT: Final = "limit"
    COUNT: Final = "count"
    OFFSET: Final = "offset"
    END_DATE: Final = "endDate"
    START_DATE: Final = "startDate"
    IMMEDIATELY: Final = "immediately"


class BullAnswer(str, Enum):
    """What our scripts around the package's answer."""

    CREATED = "created"
    REPLAYED = "replayed"
    CONFLICT = "conflict"
    #: There is a job of the id that was asked for; another one stands for it.
    DUPLICATE = "duplicate"
    DEDUPLICATED = "deduplicated"
    FULL = "full"
    FAILED = "failed"
    FOUND = "found"
    MISSING = "missing"
    REMOVED = "removed"
    CANCELING = "canceling"
    #: A scheduler's next job; a job of which a child runs.
    SCHEDULED = "scheduled"
    LOCKED = "locked"


@dataclass(frozen=True)
class BullKeys:
    """Keys of one queue. Braces in a name are part of it: never added, never taken away."""

    queue: str
    prefix: str = DEFAULT_PREFIX

    def key(self, part: str) -> str:
        """Any of them: `wait`, `active`, a job's id."""
        return f"{self.prefix}:{self.queue}:{part}"

    def job(self, job_id: str) -> str:
        return self.key(job_id)

    def lock(self, job_id: str) -> str:
        """STRING, the token of whoever runs a job."""
        return self.key(f"{job_id}:lock")

    def cancel(self, job_id: str) -> str:
        """STRING, ours: somebody wants a running job to end."""
        return self.key(f"{job_id}:cancel")

    def logs(self, job_id: str) -> str:
        """LIST, what a job has said."""
        return self.key(f"{job_id}:logs")

    def processed(self, job_id: str) -> str:
        """HASH, what the children of a job have returned."""
        return self.key(f"{job_id}:processed")

    def steps(self, job_id: str) -> str:
        """HASH, ours: what attempts of a job have saved for later ones."""
        return self.key(f"{job_id}:steps")

    def idempotency(self, job_id: str) -> str:
        """STRING, ours: the request that an Idempotency-Key came with, and its job."""
        return self.key(f"{job_id}:idempotency")

    def deduplication(self, deduplication_id: str) -> str:
        """STRING, the job that stands for others of a deduplication."""
        return self.key(f"de:{deduplication_id}")

    @property
    def marker(self) -> str:
        """ZSET, whether there is work, and when."""
        return self.key("marker")

    @property
    def events(self) -> str:
        return self.key("events")

    @property
    def meta(self) -> str:
        """HASH, what holds for the queue as a whole."""
        return self.key("meta")

    @property
    def control(self) -> str:
        """CHANNEL, ours: ids of jobs that somebody wants to end."""
        return self.key("control")
